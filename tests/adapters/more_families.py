"""The families of the generic adapter and its relatives: a tiny random model each, and prompts made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from arr_coc.adapters.families import adapter, check_transformers
from arr_coc.adapters.families import family as family_of
from arr_coc.errors import ModelError

OLDEST_COMPLETE = (5, 22)


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


PAD, END, IMAGE, VIDEO, START, STOP, NEWLINE = 0, 1, 3, 4, 5, 6, 9
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 4096, "head_dim": 8,
    "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 2,
}  # fmt: skip
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
ENDS = {"vision_start_token_id": START, "vision_end_token_id": STOP}
IMAGE_ENDS = {"image_start_token_id": START, "image_end_token_id": STOP}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
VIT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 3, "num_channels": 3}
CLIP = VIT | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "projection_dim": 16}
SIGLIP = VIT | {"model_type": "siglip_vision_model", "image_size": 32, "patch_size": 8, "vision_use_head": False}
PIXTRAL = VIT | {"model_type": "pixtral", "image_size": 64, "patch_size": 4, "head_dim": 16}
LLAMA = TEXT | {"model_type": "llama"}
QWEN2 = {k: v for k, v in TEXT.items() if k != "head_dim"} | {"model_type": "qwen2"}
MISTRAL = TEXT | {"model_type": "mistral", "sliding_window": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GLM_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "image_size": 24, "attention_bias": True,
}  # fmt: skip


GLM_TEXT = {k: v for k, v in TEXT.items() if k != "head_dim"} | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [1, 1, 0],
        "partial_rotary_factor": 0.5,
    }
}
QWEN3_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "num_position_embeddings": 36,
}  # fmt: skip
QWEN35_TEXT = TEXT | {
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0],
                        "partial_rotary_factor": 0.5},
}  # fmt: skip
AUDIO = {
    "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 32,
    "num_mel_bins": 8, "max_source_positions": 16, "n_window": 2,
}  # fmt: skip


class Pictures:
    """What a processor would return for the pictures of a prompt: `grid` in cells is from 2 x 2 to 3 x 4."""

    def __init__(self, seed: int = 1) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.grids: list[tuple[int, int]] = []
        self.tensors: dict[str, list[torch.Tensor]] = {}

    def add(self, **tensors: torch.Tensor) -> None:
        for name, tensor in tensors.items():
            self.tensors.setdefault(name, []).append(tensor)

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.dice)


def square(tokens: int, side: int = 32) -> Callable[[Pictures, int, int], list[int]]:
    """One view of `side` pixels with a fixed number of tokens."""

    def picture(made: Pictures, h: int, w: int) -> list[int]:
        made.add(pixel_values=made.noise(1, 3, side, side))
        return [START, *[IMAGE] * tokens, STOP]

    return picture


def tiles(tokens: int, side: int = 32) -> Callable[[Pictures, int, int], list[int]]:
    """As many views as a picture is high, one run of tokens."""

    def picture(made: Pictures, h: int, w: int) -> list[int]:
        made.add(pixel_values=made.noise(h, 3, side, side))
        return [START, *[IMAGE] * tokens * h, STOP]

    return picture


def patches(width: int, **more: int) -> Callable[[Pictures, int, int], list[int]]:
    """Flat patches of `width` numbers, 2 x 2 to a cell, with their `image_grid_thw`."""

    def picture(made: Pictures, h: int, w: int) -> list[int]:
        made.add(pixel_values=made.noise(4 * h * w, width), image_grid_thw=torch.tensor([[1, 2 * h, 2 * w]]))
        made.add(**{name: torch.tensor([value]) for name, value in more.items()})
        return [START, *[IMAGE] * (h * w), STOP]

    return picture


def square_patches(side: int) -> Callable[[Pictures, int, int], list[int]]:
    """Patches `[3, side, side]`, 2 x 2 to a cell, row by row."""

    def picture(made: Pictures, h: int, w: int) -> list[int]:
        made.add(pixel_values=made.noise(4 * h * w, 3, side, side), image_grid_thw=torch.tensor([[1, 2 * h, 2 * w]]))
        return [START, *[IMAGE] * (h * w), STOP]

    return picture


def sized(made: Pictures, h: int, w: int) -> list[int]:
    """A picture of 8 pixels a cell on a canvas of 32 x 32."""
    pixels = torch.zeros(1, 3, 32, 32)
    pixels[..., : 8 * h, : 8 * w] = made.noise(1, 3, 8 * h, 8 * w)
    made.add(pixel_values=pixels, image_sizes=torch.tensor([[8 * h, 8 * w]]))
    return [START, *[IMAGE] * (h * w), STOP]


def emu3_picture(made: Pictures, h: int, w: int) -> list[int]:
    """Two pixels a cell, and an end-of-row token after each row."""
    pixels = torch.zeros(1, 3, 8, 8)
    pixels[..., : 2 * h, : 2 * w] = made.noise(1, 3, 2 * h, 2 * w)
    made.add(pixel_values=pixels, image_sizes=torch.tensor([[2 * h, 2 * w]]))
    return [START, *[IMAGE] * (h * (w + 1)), STOP]


def hunyuan_picture(made: Pictures, h: int, w: int) -> list[int]:
    made.add(pixel_values=made.noise(4 * h * w, 48), image_grid_thw=torch.tensor([[1, 2 * h, 2 * w]]))
    return [START, *[IMAGE] * (h * (w + 1) + 2), STOP]


def fuyu_picture(made: Pictures, h: int, w: int) -> list[int]:
    """Always 3 x 4 patches: those of a batch have equally many."""
    made.add(pixel_values=made.noise(1, 12, 48))
    return [START, *([*[IMAGE] * 4, NEWLINE] * 3), STOP]


def lfm2_picture(made: Pictures, h: int, w: int) -> list[int]:
    pixels, real = torch.zeros(1, 64, 48), torch.zeros(1, 64, dtype=torch.long)
    pixels[:, : 4 * h * w], real[:, : 4 * h * w] = made.noise(1, 4 * h * w, 48), 1
    made.add(pixel_values=pixels, pixel_attention_mask=real, spatial_shapes=torch.tensor([[2 * h, 2 * w]]))
    return [START, *[IMAGE] * (h * w), STOP]


def minicpm_picture(made: Pictures, h: int, w: int) -> list[int]:
    """Two views of each picture, 4 x 4 patches to a cell."""
    for _ in range(2):
        made.add(minicpm_pixels=made.noise(1, 3, 4, 4 * 16 * h * w), target_sizes=torch.tensor([[4 * h, 4 * w]]))
    return [START, *[IMAGE] * (2 * h * w), STOP]


def gemma4_picture(made: Pictures, h: int, w: int) -> list[int]:
    """2 x 2 patches to a cell, padded to 48 patches."""
    places = torch.full((1, 48, 2), -1)
    rows, columns = torch.meshgrid(torch.arange(2 * h), torch.arange(2 * w), indexing="ij")
    places[0, : 4 * h * w] = torch.stack([columns.flatten(), rows.flatten()], -1)
    made.add(pixel_values=made.noise(1, 48, 48).sigmoid(), image_position_ids=places)
    return [START, *[IMAGE] * (h * w), STOP]


def anyres_picture(cells: int) -> Callable[[Pictures, int, int], list[int]]:
    """An overview and tiles of `cells` x `cells` cells each; pictures of 32 pixels a row and column of cells."""

    def picture(made: Pictures, h: int, w: int) -> list[int]:
        pixels = torch.zeros(1, 5, 3, 32, 32)
        down, across = (2, 2) if h > 2 else (1, 2)
        count = 1 + down * across
        pixels[:, :count] = made.noise(1, count, 3, 32, 32)
        made.add(pixel_values=pixels, image_sizes=torch.tensor([[32 * down, 32 * across]]))
        return [START, *[IMAGE] * (cells**2 + down * cells * (across * cells + 1)), STOP]

    return picture


def film(stamps: bool, **more: float) -> Callable[[Pictures, int, int, int], list[int]]:
    """A video of `t` frames as patches; with a timestamp before each frame, or as one run of tokens."""

    def video(made: Pictures, t: int, h: int, w: int) -> list[int]:
        made.add(
            pixel_values_videos=made.noise(4 * t * h * w, 96), video_grid_thw=torch.tensor([[t, 2 * h, 2 * w]]),
            **{name: torch.tensor([value]) for name, value in more.items()},
        )  # fmt: skip
        frame = [START, *[VIDEO] * (h * w), STOP]
        runs = [[80 + number, *frame] for number in range(t)] if stamps else [[START, *[VIDEO] * (t * h * w), STOP]]
        return [token for run in runs for token in run]

    return video


def square_film(made: Pictures, t: int, h: int, w: int) -> list[int]:
    """Frames of 32 pixels, pooled to 2 x 2 cells."""
    made.add(pixel_values_videos=made.noise(1, t, 3, 32, 32))
    return [START, *[VIDEO] * (4 * t), STOP]


@dataclass(frozen=True)
class Tiny:
    config: Callable[[], Any]
    picture: Callable[[Pictures, int, int], list[int]]
    semantics: str = "masked"
    glances: bool = False
    video: Callable[[Pictures, int, int, int], list[int]] | None = None
    sees: Callable[[torch.Tensor], dict[str, torch.Tensor]] = field(default=lambda ids: {})  # from a prompt's ids


def _mm_types(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mm_token_type_ids": (ids == IMAGE).int() + 2 * (ids == VIDEO).int()}


MORE: dict[str, Tiny] = {
    "vipllava": Tiny(
        lambda: transformers.VipLlavaConfig(
            vision_config=CLIP, text_config=LLAMA, image_token_id=IMAGE, vision_feature_layers=[-1, -2]
        ),
        square(16),
    ),
    "video_llava": Tiny(
        lambda: transformers.VideoLlavaConfig(vision_config=CLIP, text_config=LLAMA, **TOKENS), square(16)
    ),
    "deepseek_vl": Tiny(
        lambda: transformers.DeepseekVLConfig(vision_config=SIGLIP, text_config=LLAMA, image_token_id=IMAGE), square(16)
    ),
    "janus": Tiny(
        lambda: transformers.JanusConfig(
            vision_config=VIT | {"model_type": "janus_vision_model", "image_size": 32, "patch_size": 8, "mlp_ratio": 1.5,
                                 "projection_dim": 32, "depth": 2},
            vq_config={"embed_dim": 8, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32,
                       "channel_multiplier": [1, 1], "num_res_blocks": 1, "num_hidden_layers": 1, "hidden_size": 32,
                       "image_token_embed_dim": 32, "projection_dim": 32, "num_patches": 16},
            text_config=LLAMA, image_token_id=IMAGE,
        ),
        square(16),
    ),
    "got_ocr2": Tiny(
        lambda: transformers.GotOcr2Config(
            vision_config={"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "image_size": 64, "patch_size": 4, "mlp_dim": 48, "window_size": 4, "global_attn_indexes": [1],
                           "use_rel_pos": True, "num_pos_feats": 8},
            text_config=QWEN2, image_token_id=IMAGE,
        ),
        tiles(16, 64),
    ),
    "qianfan_ocr": Tiny(
        lambda: transformers.QianfanOCRConfig(
            vision_config=VIT | {"model_type": "qianfan_ocr_vision", "image_size": [32, 32], "patch_size": [4, 4]},
            text_config=TEXT | {"model_type": "qwen3"}, image_token_id=IMAGE,
        ),
        tiles(16),
    ),
    "aria": Tiny(
        lambda: transformers.AriaConfig(
            vision_config=VIT | {"model_type": "idefics3_vision", "image_size": 32, "patch_size": 8},
            text_config=TEXT | {"model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 2,
                                "moe_num_shared_experts": 1},
            image_token_id=IMAGE, projector_patch_to_query_dict={16: 6},
        ),
        square(6),
    ),
    "ovis2": Tiny(
        lambda: transformers.Ovis2Config(
            vision_config=VIT | {"image_size": 32, "patch_size": 4, "vocab_size": 40, "hidden_stride": 2,
                                 "num_visual_indicator_tokens": 2},
            text_config=QWEN2, image_token_id=IMAGE, visual_indicator_token_ids=[START, STOP], hidden_size=32,
            vocab_size=128,
        ),
        tiles(16),
    ),
    "ernie4_5_vl_moe": Tiny(
        lambda: transformers.Ernie4_5_VLMoeConfig(
            vision_config={"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "intermediate_size": 48},
            text_config={k: v for k, v in TEXT.items() if k != "head_dim"}
            | {"moe_intermediate_size": [16, 16], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1,
               "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
               "mlp_layer_types": ["dense", "sparse", "sparse"]},
            **TOKENS, **IMAGE_ENDS, video_start_token_id=7, video_end_token_id=8,
        ),
        patches(48),
        sees=lambda ids: _mm_types(ids) | {"moe_mm_token_type_ids": (ids == IMAGE).int()},
    ),
    "video_llama_3": Tiny(
        lambda: transformers.VideoLlama3Config(
            vision_config=VIT | {"patch_size": 4}, text_config=QWEN2, **TOKENS
        ),
        patches(48, image_merge_sizes=2),
    ),
    "chameleon": Tiny(
        lambda: transformers.ChameleonConfig(
            **{k: v for k, v in TEXT.items() if k != "head_dim"},
            vq_config={"embed_dim": 8, "num_embeddings": 16, "latent_channels": 32, "resolution": 32,
                       "base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1},
            vocabulary_map={"<image>": IMAGE} | {f"IMGIMG{chr(65 + i // 10)}{chr(65 + i % 10)}Z": 100 + i for i in range(16)}
            | {chr(c): c for c in range(32, 100)},
        ),
        square(256),
    ),
    "emu3": Tiny(
        lambda: transformers.Emu3Config(
            vq_config={"embed_dim": 8, "codebook_size": 16, "latent_channels": 8, "base_channels": 32,
                       "channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": [], "hidden_size": 32,
                       "in_channels": 3, "out_channels": 3, "temporal_downsample_factor": 2},
            text_config=TEXT | {"model_type": "emu3_text_model"},
            vocabulary_map={"<image>": IMAGE, "<|extra_200|>": NEWLINE}
            | {f"<|visual token {i:06}|>": 100 + i for i in range(16)} | {chr(c): c for c in range(32, 100)},
            image_token_id=IMAGE,
        ),
        emu3_picture,
    ),
    "aya_vision": Tiny(
        lambda: transformers.AyaVisionConfig(
            vision_config=SIGLIP, image_token_id=IMAGE, adapter_layer_norm_eps=1e-6,
            text_config=TEXT | {"model_type": "cohere2", "sliding_window": 12,
                                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        ),
        tiles(4),
        semantics="removed",
    ),
    "gemma3": Tiny(
        lambda: transformers.Gemma3Config(
            vision_config=SIGLIP, image_token_id=IMAGE, mm_tokens_per_image=4, boi_token_index=START,
            eoi_token_index=STOP,
            text_config=TEXT | {"sliding_window": 12, "query_pre_attn_scalar": 8,
                                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        ),
        tiles(4),
        semantics="removed",
        sees=lambda ids: {"token_type_ids": (ids == IMAGE).long()},
    ),
    "gemma4": Tiny(
        lambda: transformers.Gemma4Config(
            vision_config={"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                           "num_key_value_heads": 2, "head_dim": 16, "pooling_kernel_size": 2, "patch_size": 4,
                           "position_embedding_size": 16},
            audio_config=None, image_token_id=IMAGE, video_token_id=VIDEO, boi_token_id=START, eoi_token_id=STOP,
            audio_token_id=10,
            text_config=TEXT | {"sliding_window": 12, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128,
                                "use_bidirectional_attention": "vision", "num_hidden_layers": 4,
                                "layer_types": ["sliding_attention", "full_attention"] * 2},
        ),
        gemma4_picture,
        semantics="removed",
        sees=lambda ids: {"mm_token_type_ids": (ids == IMAGE).long()},
    ),
    "llama4": Tiny(
        lambda: transformers.Llama4Config(
            vision_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
                           "vision_output_dim": 24, "image_size": 32, "patch_size": 4, "projector_input_dim": 24,
                           "projector_output_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            text_config=TEXT | {"intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 12,
                                "no_rope_layer_interval": 3, "floor_scale": 8, "interleave_moe_layer_step": 2},
            image_token_index=IMAGE, boi_token_index=START, eoi_token_index=STOP,
        ),
        tiles(16),
        semantics="removed",
    ),
    "lfm2_vl": Tiny(
        lambda: transformers.Lfm2VlConfig(
            vision_config=VIT | {"model_type": "siglip2_vision_model", "patch_size": 4, "num_patches": 16,
                                 "vision_use_head": False},
            text_config={k: v for k, v in TEXT.items() if k != "head_dim"}
            | {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
            image_token_id=IMAGE, projector_hidden_size=32,
        ),
        lfm2_picture,
        semantics="removed",
    ),
    "minicpmv4_6": Tiny(
        lambda: transformers.MiniCPMV4_6Config(
            vision_config=VIT | {"patch_size": 4, "image_size": 64, "insert_layer_id": 0},
            text_config=QWEN35_TEXT | {"model_type": "qwen3_5_text"}, **TOKENS, insert_layer_id=0,
        ),
        minicpm_picture,
        semantics="removed",
    ),
    "qwen3_5": Tiny(
        lambda: transformers.Qwen3_5Config(vision_config=QWEN3_VISION, text_config=QWEN35_TEXT, **TOKENS, **ENDS),
        patches(96), semantics="removed", glances=True, sees=_mm_types, video=film(stamps=True),
    ),
    "qwen3_5_moe": Tiny(
        lambda: transformers.Qwen3_5MoeConfig(
            vision_config=QWEN3_VISION,
            text_config=QWEN35_TEXT | EXPERTS | {"shared_expert_intermediate_size": 16}, **TOKENS, **ENDS,
        ),
        patches(96), semantics="removed", glances=True, sees=_mm_types, video=film(stamps=True),
    ),
    "qwen2_5_omni_thinker": Tiny(
        lambda: transformers.Qwen2_5OmniThinkerConfig(
            vision_config={k: v for k, v in QWEN3_VISION.items() if k != "num_position_embeddings"}
            | {"window_size": 16, "fullatt_block_indexes": [1]},
            text_config={k: v for k, v in TEXT.items() if k != "head_dim"} | {"rope_parameters": MROPE},
            audio_config=AUDIO, image_token_index=IMAGE, video_token_index=VIDEO, audio_token_index=10,
            vision_start_token_id=START, vision_end_token_id=STOP,
        ),
        patches(96), glances=True, video=film(stamps=False, video_second_per_grid=1.0),
    ),
    "qwen3_omni_moe_thinker": Tiny(
        lambda: transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe.Qwen3OmniMoeThinkerConfig(
            vision_config=QWEN3_VISION | {"deepstack_visual_indexes": [0, 1]},
            text_config=TEXT | EXPERTS | {"rope_parameters": MROPE},
            audio_config=AUDIO | {"n_window_infer": 8, "downsample_hidden_size": 8, "conv_chunksize": 8},
            **TOKENS, audio_token_id=10, vision_start_token_id=START, vision_end_token_id=STOP, audio_start_token_id=11,
        ),
        patches(96), glances=True, video=film(stamps=False, video_second_per_grid=1.0),
    ),
    "glm4v": Tiny(
        lambda: transformers.Glm4vConfig(
            vision_config=GLM_VISION, text_config=GLM_TEXT, **TOKENS, **IMAGE_ENDS, video_start_token_id=7,
            video_end_token_id=8,
        ),
        patches(96), glances=True, sees=_mm_types,
    ),
    "glm4v_moe": Tiny(
        lambda: transformers.Glm4vMoeConfig(
            vision_config=GLM_VISION,
            text_config=GLM_TEXT | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                                    "n_shared_experts": 1, "first_k_dense_replace": 1},
            **TOKENS, **IMAGE_ENDS, video_start_token_id=7, video_end_token_id=8,
        ),
        patches(96), glances=True, sees=_mm_types,
    ),
    "glm46v": Tiny(
        lambda: transformers.Glm46VConfig(
            vision_config=GLM_VISION | {"model_type": "glm4v_vision"}, text_config=GLM_TEXT | {"model_type": "glm4v_text"},
            **TOKENS, **IMAGE_ENDS, video_start_token_id=7, video_end_token_id=8,
        ),
        patches(96), glances=True, sees=_mm_types,
    ),
    "glmga": Tiny(
        lambda: transformers.models.glmga.configuration_glmga.GlmgaConfig(
            vision_config=GLM_VISION | {"model_type": "glm4v_vision"}, text_config=GLM_TEXT | {"model_type": "glm4v_text"},
            **TOKENS, **IMAGE_ENDS, video_start_token_id=7, video_end_token_id=8,
        ),
        patches(96), glances=True, sees=_mm_types,
    ),
    "glm_ocr": Tiny(
        lambda: transformers.GlmOcrConfig(
            vision_config=GLM_VISION, text_config=GLM_TEXT | {"head_dim": 8}, **TOKENS, **IMAGE_ENDS,
            video_start_token_id=7, video_end_token_id=8,
        ),
        patches(96), glances=True, sees=_mm_types,
    ),
    "kimi_k25": Tiny(
        lambda: transformers.Kimi_K25Config(
            vision_config=VIT | {"patch_size": 4, "pos_emb_height": 6, "pos_emb_width": 6},
            text_config=LLAMA | {"model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
                                 "topk_group": 1, "moe_intermediate_size": 16, "n_shared_experts": 1, "kv_lora_rank": 16,
                                 "q_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
                                 "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 4},
            projection_hidden_size=32, **TOKENS, **ENDS,
        ),
        square_patches(4), glances=True,
    ),
    "paddleocr_vl": Tiny(
        lambda: transformers.PaddleOCRVLConfig(
            vision_config=VIT | {"patch_size": 4, "image_size": 24}, text_config=TEXT | {"rope_parameters": MROPE}, **TOKENS,
            **ENDS,
        ),
        square_patches(4), glances=True, sees=_mm_types,
    ),
    "hunyuan_vl": Tiny(
        lambda: transformers.HunYuanVLConfig(
            vision_config=VIT | {"patch_size": 4, "max_image_size": 24, "text_hidden_size": 32, "out_hidden_size": 32},
            text_config=TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                    "mrope_section": [1, 1, 1, 1]}},
            image_token_id=IMAGE, im_start_id=START, im_end_id=STOP, im_newline_id=NEWLINE,
        ),
        hunyuan_picture, glances=True, sees=_mm_types,
    ),
    "mistral3": Tiny(
        lambda: transformers.Mistral3Config(
            vision_config=PIXTRAL, text_config=MISTRAL, image_token_id=IMAGE, spatial_merge_size=2, vision_feature_layer=-1
        ),
        sized, glances=True,
    ),
    "pixtral": Tiny(
        lambda: transformers.LlavaConfig(
            vision_config=PIXTRAL | {"patch_size": 8}, text_config=MISTRAL, image_token_id=IMAGE, vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        sized, glances=True,
    ),
    "lighton_ocr": Tiny(
        lambda: transformers.LightOnOcrConfig(
            vision_config=PIXTRAL, text_config=TEXT | {"model_type": "qwen3"}, image_token_id=IMAGE, spatial_merge_size=2
        ),
        sized, glances=True,
    ),
    "fuyu": Tiny(
        lambda: transformers.FuyuConfig(
            **{k: v for k, v in TEXT.items() if k not in ("head_dim", "num_key_value_heads")}, patch_size=4,
            image_token_id=IMAGE,
            text_config={k: v for k, v in TEXT.items() if k not in ("head_dim", "num_key_value_heads")}
            | {"model_type": "persimmon"},
        ),
        fuyu_picture,
    ),
    "llava_window": Tiny(
        lambda: transformers.LlavaConfig(
            vision_config=CLIP, text_config=MISTRAL | {"sliding_window": 12}, image_token_id=IMAGE
        ),
        square(16), semantics="removed",
    ),
    "qwen2_vl_window": Tiny(
        lambda: transformers.Qwen2VLConfig(
            vision_config={"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4},
            text_config={k: v for k, v in TEXT.items() if k != "head_dim"}
            | {"rope_parameters": MROPE, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
            **TOKENS, **ENDS,
        ),
        patches(96), semantics="removed", sees=_mm_types,
    ),
    "llava_next_video": Tiny(
        lambda: transformers.LlavaNextVideoConfig(
            vision_config=CLIP, text_config=LLAMA, image_grid_pinpoints=[[32, 64], [64, 64]], **TOKENS
        ),
        anyres_picture(4), video=square_film,
    ),
    "granite4_vision": Tiny(
        lambda: transformers.Granite4VisionConfig(
            vision_config=SIGLIP | {"patch_size": 4, "hidden_size": 64},
            text_config=TEXT | {"model_type": "granite4_vision_text"},
            image_grid_pinpoints=[[32, 64], [64, 64]], image_token_id=IMAGE, downsample_rate="4/8",
            deepstack_layer_map=[[-1, 0], [1, 1]], spatial_target_layers=[2], vision_feature_select_strategy="full",
            qformer_config={"model_type": "blip_2_qformer", "num_hidden_layers": 1, "intermediate_size": 48,
                            "cross_attention_frequency": 1, "use_qformer_text_input": False},
        ),
        anyres_picture(4),
    ),
}  # fmt: skip


def model(family: str, attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> Any:
    """A random model whose answers depend on the picture: the weights are large enough that attention is not flat."""
    torch.manual_seed(0)
    attention = "eager" if family == "got_ocr2" else attention  # its vision tower has no other
    built = transformers.AutoModelForImageTextToText.from_config(
        MORE[family].config(), attn_implementation=attention, dtype=dtype
    )
    for name, weights in built.named_parameters():
        _initialise(name, weights)
    return built.eval()


def _initialise(name: str, weights: torch.Tensor) -> None:
    if any(part in name for part in ("embed", "newline", "cls_token", "class_", "pos_emb", "query", "codebook")):
        torch.nn.init.normal_(weights, std=0.5)
    elif weights.ndim > 1:
        torch.nn.init.normal_(weights, std=1.0 / weights[0].numel() ** 0.5)
    elif "bias" in name:
        torch.nn.init.normal_(weights, std=0.1)


Row = list[Any]
ROWS: dict[str, list[Row]] = {
    "image": [[65, 66, (3, 4), 67, 68, 69]],
    "video": [[65, (2, 2, 3), 66, (3, 2), 67, 68], [70, (2, 3, 2), 71]],
    "ragged": [[65, 66, (2, 3), 67, 68, 69], [70, (3, 2), 71], [72, 73, 74, (2, 2), 75, (3, 4), 76, 77]],
}


def prompt(family: str, rows: str | Sequence[Row] = "ragged", side: str = "left", seed: int = 1) -> dict[str, Any]:
    """What a processor would return; a tuple in a row is a picture of that many rows and columns of cells."""
    made = Pictures(seed)
    ids = []
    for row in ROWS[rows] if isinstance(rows, str) else rows:
        parts = [[part] if isinstance(part, int) else _visual(family, made, *part) for part in row]
        ids.append([token for part in parts for token in part])
    length = max(map(len, ids))
    padded = [[PAD] * (length - len(r)) + r if side == "left" else r + [PAD] * (length - len(r)) for r in ids]
    inputs = {"input_ids": torch.tensor(padded)}
    inputs["attention_mask"] = (inputs["input_ids"] != PAD).long()
    inputs |= {name: torch.cat(parts) for name, parts in made.tensors.items() if name != "minicpm_pixels"}
    if "minicpm_pixels" in made.tensors:  # side by side
        inputs["pixel_values"] = torch.cat(made.tensors["minicpm_pixels"], -1)
    return inputs | MORE[family].sees(inputs["input_ids"])


def _visual(family: str, made: Pictures, *size: int) -> list[int]:
    """A picture of rows and columns, or a video of frames, rows and columns."""
    if len(size) == 2:
        return MORE[family].picture(made, *size)
    video = MORE[family].video
    assert video is not None
    return video(made, *size)


def _known(family: str) -> bool:
    """Whether the installed transformers is new enough for the family."""
    kind = {"pixtral": "llava"}.get(family, family.removesuffix("_window"))
    try:
        check_transformers(family_of(kind))
        adapter(model(family, "eager"))
    except (AttributeError, ModelError):
        return False
    return True


VIDEOS = [name for name in MORE if MORE[name].video is not None]
# With the newest tested transformers all of them are there; older ones lack some.
LISTED = [name for name in MORE if _version() >= OLDEST_COMPLETE or _known(name)]
