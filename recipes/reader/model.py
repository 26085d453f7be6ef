"""The reader's network: a small Qwen2-VL, by default with about 19 million parameters (39 MB in half precision)."""

from dataclasses import dataclass

from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from recipes.reader import vocabulary

PATCH = 14
CELL = 28  # one visual token covers a cell of 2 x 2 patches
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class ReaderShape:
    """Sizes of the network. Both widths must be multiples of `head_width`."""

    vision_depth: int = 6
    vision_width: int = 320
    depth: int = 6
    width: int = 384
    key_heads: int = 2
    head_width: int = 64
    max_positions: int = 4096

    def __post_init__(self) -> None:
        for name in ("vision_width", "width"):
            width = getattr(self, name)
            if width % self.head_width:
                raise ValueError(f"expected {name} to be a multiple of head_width={self.head_width}, got {width}")
        heads = self.width // self.head_width
        if heads % self.key_heads:
            raise ValueError(
                f"expected key_heads to divide the {heads} heads of width={self.width}, got {self.key_heads}"
            )


STANDARD = ReaderShape()
TINY = ReaderShape(vision_depth=2, vision_width=64, depth=2, width=64, key_heads=2, head_width=32)


def mrope_section(head_width: int) -> list[int]:
    """The rotary frequencies of time, row and column: a quarter, and three eighths each."""
    rows = head_width // 2 * 3 // 8
    return [head_width // 2 - 2 * rows, rows, rows]


def config(shape: ReaderShape = STANDARD) -> Qwen2VLConfig:
    return Qwen2VLConfig(
        vision_config={
            "depth": shape.vision_depth,
            "embed_dim": shape.vision_width,
            "num_heads": shape.vision_width // shape.head_width,
            "hidden_size": shape.width,
            "mlp_ratio": 4,
            "patch_size": PATCH,
            "spatial_merge_size": CELL // PATCH,
            "temporal_patch_size": 2,
            "in_channels": 3,
        },
        text_config={
            "hidden_size": shape.width,
            "intermediate_size": shape.width * 8 // 3 // 64 * 64,
            "num_hidden_layers": shape.depth,
            "num_attention_heads": shape.width // shape.head_width,
            "num_key_value_heads": shape.key_heads,
            "vocab_size": vocabulary.VOCABULARY_SIZE,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": ROPE_THETA,
                "mrope_section": mrope_section(shape.head_width),
            },
            "max_position_embeddings": shape.max_positions,
            "bos_token_id": vocabulary.USER,
            "eos_token_id": vocabulary.END,
            "pad_token_id": vocabulary.PAD,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
        image_token_id=vocabulary.IMAGE,
        video_token_id=vocabulary.VIDEO,
        vision_start_token_id=vocabulary.VISION_START,
        vision_end_token_id=vocabulary.VISION_END,
        tie_word_embeddings=True,
    )


def build(shape: ReaderShape = STANDARD) -> Qwen2VLForConditionalGeneration:
    """A reader with random weights in float32."""
    return Qwen2VLForConditionalGeneration._from_config(config(shape), attn_implementation="sdpa")
