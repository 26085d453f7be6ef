"""CLIP, SigLIP, SigLIP 2 and open_clip checkpoints as dense encoders.

A contrastive model is trained with one pooled vector per image, so a patch's final hidden state describes the whole
image. The *value* that attention pooling takes from a patch describes that patch alone, and is used here:

- CLIP: the last block's value path (value and output projection), final norm and projection into the joint space. The
  block's residual and MLP are left out (`path="value"`), because the residual carries a summary of the whole image;
  `path="block"` keeps both.
- SigLIP and SigLIP 2: the attention-pooling head with all attention on one patch, which is what the stock head returns
  for an image of that single token.

Position embeddings are interpolated to the image's grid. Questions become captions ("a photo of stop sign"), as in
training. torchvision is not needed. A checkpoint with missing weights is refused; transformers would fill them with
noise and a warning.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from arr_coc.embedding.encoder import EXPECTED, fingerprint
from arr_coc.embedding.windows import WindowedEncoder, fit_grid, resize
from arr_coc.errors import EncoderError, raise_as
from arr_coc.types.question import subject

CAPTION = "a photo of {}"


class VisionTower(ABC):
    """Dense features of a contrastive model."""

    kind: ClassVar[str]  # `config.model_type`
    padding: ClassVar[str]  # of the tokenizer
    path: str = "value"

    def __init__(self, model: Any, width: int, side: int) -> None:
        """`width`: dimensions of the joint space. `side`: px of one side of the images that it was trained on."""
        self.model, self.vision = model, model.vision_model
        self.width, self.side = int(width), int(side)
        self.cell = int(model.config.vision_config.patch_size)

    @abstractmethod
    def patch_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised pixels `[B, 3, h * cell, w * cell]` to features `[B, h * w, D]`."""

    @abstractmethod
    def attention(self, pixels: torch.Tensor) -> torch.Tensor:
        """The mean attention of all heads from the class token, or the pooled query, to the patches: `[B, h * w]`, sum 1."""


class ClipTower(VisionTower):
    kind = "clip"
    padding = "longest"

    def __init__(self, model: Any, path: Literal["value", "block"] = "value") -> None:
        super().__init__(model, model.config.projection_dim, model.config.vision_config.image_size)
        self.path = path

    def patch_features(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = self.vision.pre_layrnorm(self.vision.embeddings(pixels, interpolate_pos_encoding=True))
        *early, last = self.vision.encoder.layers
        for block in early:
            hidden = block(hidden, None)
        patches = hidden[:, 1:]  # without the class token
        value = last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(patches)))
        if self.path == "block":
            value = patches + value
            value = value + last.mlp(last.layer_norm2(value))
        return self.model.visual_projection(self.vision.post_layernorm(value))

    def attention(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = self.vision.pre_layrnorm(self.vision.embeddings(pixels, interpolate_pos_encoding=True))
        *early, last = self.vision.encoder.layers
        for block in early:
            hidden = block(hidden, None)
        normed, part = last.layer_norm1(hidden), last.self_attn
        return _attended(part.q_proj(normed[:, :1]), part.k_proj(normed), part.num_heads)[:, 1:]


class SiglipTower(VisionTower):
    kind = "siglip"
    padding = "max_length"

    def __init__(self, model: Any, side: int | None = None) -> None:
        vision = model.config.vision_config
        super().__init__(model, vision.hidden_size, vision.image_size if side is None else side)
        if getattr(self.vision, "head", None) is None:
            raise EncoderError(
                "expected a SigLIP checkpoint with its pooling head, got one with vision_use_head=False: "
                "without the head its features are not in the space of its texts"
            )

    def patch_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.pool_each(self.hidden(pixels))

    def hidden(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the pooling head reads: `[B, N, D]`."""
        return self.vision(pixels, interpolate_pos_encoding=True).last_hidden_state

    def attention(self, pixels: torch.Tensor) -> torch.Tensor:
        head, hidden = self.vision.head, self.hidden(pixels)
        width = hidden.shape[-1]
        weight, bias = head.attention.in_proj_weight, head.attention.in_proj_bias
        query = F.linear(head.probe.expand(len(hidden), -1, -1), weight[:width], bias[:width])
        key = F.linear(hidden, weight[width : 2 * width], bias[width : 2 * width])
        return _attended(query, key, head.attention.num_heads)

    def pool_each(self, hidden: torch.Tensor) -> torch.Tensor:
        """The pooling head on each patch separately: `[B, N, D]` to `[B, N, D]`."""
        head = self.vision.head
        width = hidden.shape[-1]
        weight, bias = head.attention.in_proj_weight[2 * width :], head.attention.in_proj_bias[2 * width :]
        value = head.attention.out_proj(F.linear(hidden, weight, bias))
        return value + head.mlp(head.layernorm(value))


class Siglip2Tower(SiglipTower):
    """SigLIP 2 with variable aspect ratio (NaFlex); its checkpoints of fixed size have the type `siglip`."""

    kind = "siglip2"

    def __init__(self, model: Any) -> None:
        vision = model.config.vision_config
        super().__init__(model, int(vision.num_patches**0.5) * vision.patch_size)

    def hidden(self, pixels: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = pixels.shape
        rows, columns, cell = height // self.cell, width // self.cell, self.cell
        patches = pixels.view(batch, 3, rows, cell, columns, cell).permute(0, 2, 4, 3, 5, 1)  # rows, columns, y, x, RGB
        patches = patches.reshape(batch, rows * columns, cell * cell * 3)
        mask = torch.ones(batch, rows * columns, dtype=torch.long, device=pixels.device)
        shapes = torch.tensor([[rows, columns]] * batch)
        return self.vision(patches, mask, shapes).last_hidden_state


def _attended(query: torch.Tensor, key: torch.Tensor, heads: int) -> torch.Tensor:
    """The attention of one query `[B, 1, D]` to keys `[B, N, D]`, the mean over heads: `[B, N]`."""
    query, key = (one.unflatten(-1, (heads, -1)).transpose(1, 2).float() for one in (query, key))
    return (query @ key.transpose(2, 3) / key.shape[-1] ** 0.5).softmax(-1).mean(1)[:, 0]


TOWERS: dict[str, Callable[[Any], VisionTower]] = {"clip": ClipTower, "siglip": SiglipTower, "siglip2": Siglip2Tower}


class ContrastiveEncoder(WindowedEncoder):
    """A vision tower with its tokenizer."""

    attends = True

    def __init__(
        self,
        tower: VisionTower,
        tokenizer: Any,
        mean: list[float],
        deviation: list[float],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`mean` and `deviation` normalise each colour of pixels in [0, 1]."""
        self.name, self.width, self.cell, self.side = tower.kind, tower.width, tower.cell, tower.side
        self.device, self.dtype = device, dtype
        self.tower, self.tokenizer = tower, tokenizer
        config = tower.model.config
        behaviour = [  # settings that change features but not weights
            getattr(part, name)
            for part in (config.vision_config, config.text_config)
            for name in ("hidden_act", "layer_norm_eps", "num_attention_heads")
        ]
        settings = (tower.kind, tower.path, tower.side, mean, deviation, CAPTION, *behaviour)
        self._identity = f"{tower.kind}-{fingerprint(tower.model.state_dict(), settings)}"
        tower.model.eval().to(device, dtype)
        self._mean, self._deviation = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (mean, deviation))
        self._max_tokens = int(config.text_config.max_position_embeddings)

    @property
    def identity(self) -> str:
        return self._identity

    def encode_batch(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = images.shape[2] // self.cell, images.shape[3] // self.cell
        patches = self.tower.patch_features(((images - self._mean) / self._deviation).to(self.dtype))
        return patches.transpose(1, 2).unflatten(2, (rows, columns))

    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        rows, columns = fit_grid(int(pixels.shape[1]), int(pixels.shape[2]), (self.side // self.cell) ** 2)
        image = resize(pixels, (rows * self.cell, columns * self.cell))[None]
        found = self.tower.attention(((image - self._mean) / self._deviation).to(self.dtype)).view(rows, columns)
        return found / found.sum()  # without the class token's share

    def embed(self, questions: list[str]) -> torch.Tensor:
        captions = [CAPTION.format(subject(question)) for question in questions]
        tokens = self.tokenizer(
            captions, padding=self.tower.padding, truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )
        names = [name for name in ("input_ids", "attention_mask") if name in tokens]
        inputs = {name: tokens[name].to(self.device) for name in names}
        return self.tower.model.get_text_features(**inputs).pooler_output


def open_checkpoint(name: str, device: torch.device, dtype: torch.dtype) -> ContrastiveEncoder:
    """A CLIP, SigLIP or SigLIP 2 checkpoint from a folder or the hub."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer, ImageProcessingMixin

    folder = Path(name).expanduser()
    exists = bool(name) and folder.is_dir()
    if not exists and (folder.exists() or len(folder.parts) != 2 or name.startswith((".", "/", "~"))):
        raise EncoderError(f"there is no encoder {name!r}: {EXPECTED}")
    place = str(folder) if exists else name
    with raise_as(EncoderError, f"cannot load the encoder {name!r}"):
        kind = AutoConfig.from_pretrained(place, trust_remote_code=False).model_type
        if kind not in TOWERS:
            raise EncoderError(f"{name!r} is a model of the type {kind!r}, which is no encoder here: {EXPECTED}")
        model, report = AutoModel.from_pretrained(
            place, dtype="auto", output_loading_info=True, trust_remote_code=False
        )
        if report["missing_keys"]:
            raise EncoderError(
                f"the checkpoint {name!r} lacks {len(report['missing_keys'])} of its weights, "
                f"e.g. {min(report['missing_keys'])}: download it again"
            )
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        settings, _ = ImageProcessingMixin.get_image_processor_dict(place)
        mean, deviation = list(settings["image_mean"]), list(settings["image_std"])
    return ContrastiveEncoder(TOWERS[kind](model), tokenizer, mean, deviation, device, dtype)


# open_clip: its weights under transformers' names. open_clip itself is not needed (it would bring torchvision).
# The folder is as open_clip writes it to the hub. Plain vision transformers with a class token and CLIP's text
# transformer are supported; other architectures are refused by name.

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)
HEAD_WIDTH = 64  # open_clip's defaults
MEAN, DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
VISION_KEYS = {"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size"}
TEXT_KEYS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
NAMES = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1": "vision_model.embeddings.patch_embedding",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "token_embedding": "text_model.embeddings.token_embedding",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final": "text_model.final_layer_norm",
    "logit_scale": "logit_scale",
}
TRANSPOSED = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
SUPPORTED = "expected an open_clip model of two plain transformers"


def open_open_clip(name: str, device: torch.device, dtype: torch.dtype) -> ContrastiveEncoder:
    """An open_clip checkpoint from a folder."""
    from transformers import AutoTokenizer, CLIPModel

    folder = Path(name).expanduser()
    weights = next((folder / file for file in OPEN_CLIP_WEIGHTS if (folder / file).is_file()), None)
    if not (folder / OPEN_CLIP_CONFIG).is_file() or weights is None:
        files = f"{OPEN_CLIP_CONFIG} and {OPEN_CLIP_WEIGHTS[0]} or {OPEN_CLIP_WEIGHTS[-1]}"
        raise EncoderError(f"expected a folder with {files}, got {name!r}")
    with raise_as(EncoderError, f"cannot load the open_clip checkpoint {name!r}"):
        config = json.loads((folder / OPEN_CLIP_CONFIG).read_text())
        model = CLIPModel(convert_open_clip_config(config["model_cfg"]))
        model.load_state_dict(convert_open_clip_weights(_read_weights(weights)))
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    preprocess = config.get("preprocess_cfg", {})
    mean, deviation = list(preprocess.get("mean", MEAN)), list(preprocess.get("std", DEVIATION))
    return ContrastiveEncoder(ClipTower(model), tokenizer, mean, deviation, device, dtype)


def convert_open_clip_config(config: Mapping[str, Any]) -> Any:
    """open_clip's `model_cfg` as a `CLIPConfig`."""
    from transformers import CLIPConfig

    vision, text = config["vision_cfg"], config["text_cfg"]
    unknown = sorted((vision.keys() - VISION_KEYS) | (text.keys() - TEXT_KEYS))
    if unknown or not isinstance(vision["layers"], int):
        raise EncoderError(f"{SUPPORTED}, got one with {', '.join(unknown) or 'a ResNet'}")
    activation = "quick_gelu" if config.get("quick_gelu") else "gelu"
    return CLIPConfig(
        projection_dim=config["embed_dim"],
        vision_config={
            "hidden_size": vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision.get("head_width", HEAD_WIDTH),
            "intermediate_size": int(vision["width"] * vision.get("mlp_ratio", 4.0)),
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "hidden_act": activation,
        },
        text_config={
            "hidden_size": text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
            "max_position_embeddings": text.get("context_length", 77),
            "vocab_size": text.get("vocab_size", 49408),
            "hidden_act": activation,
            "eos_token_id": 2,  # makes transformers pool at the largest token id, as open_clip does
        },
    )


def convert_open_clip_weights(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """open_clip's weights under transformers' names."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in stored.items():
        name = name.removeprefix("module.")
        stem, _, last = name.rpartition(".")
        block = re.fullmatch(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)", name)
        if name == "attn_mask":  # the causal mask, which transformers builds itself
            continue
        if name in TRANSPOSED:
            out[TRANSPOSED[name]] = tensor.T.contiguous()
        elif name in NAMES:
            out[NAMES[name]] = tensor
        elif stem in NAMES:
            out[f"{NAMES[stem]}.{last}"] = tensor
        elif block is not None and block[3] in (*BLOCK_NAMES, "attn.in_proj"):
            place = f"{'vision' if block[1] else 'text'}_model.encoder.layers.{block[2]}."
            if block[3] == "attn.in_proj":  # query, key and value in one matrix
                parts = zip("qkv", tensor.chunk(3), strict=True)
                out |= {f"{place}self_attn.{part}_proj.{block[4]}": chunk for part, chunk in parts}
            else:
                out[f"{place}{BLOCK_NAMES[block[3]]}.{block[4]}"] = tensor
        else:
            raise EncoderError(f"{SUPPORTED}, got one with {name!r}")
    return out


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return dict(stored.get("state_dict", stored))
