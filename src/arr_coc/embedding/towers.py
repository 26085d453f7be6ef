"""Dense features of contrastive vision towers, made for saying *where*, not *what*.

A contrastive model is trained on one vector a picture: what attention gathered from everywhere. A place's own hidden state
after that attention speaks of the whole picture. What attention *would have gathered from this place alone* is its value, so
that is what each place is given here, carried on into the joint space:

- CLIP: the last block's values through its output projection, final norm and the projection into the joint space. Its
  residual and its MLP are left out (`path="value"`), because the residual carries the whole picture's summary back in;
  `path="block"` keeps both.
- SigLIP and SigLIP 2: the attention-pooling head with all of its attention on this place; that is exactly what the stock
  head says of a picture that consists of this one token.

Pictures keep their shape: position embeddings are interpolated to the grid (as these models allow), nothing is squashed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from arr_coc.errors import EncoderError

Path = Literal["value", "block"]


class Tower(ABC):
    """The vision half of a model, with what is asked of its text half."""

    kind: ClassVar[str]  # `config.model_type`
    padding: ClassVar[str]  # how the text half wants its words
    path: str = "value"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.vision = model.vision_model

    @property
    def cell(self) -> int:
        return int(self.model.config.vision_config.patch_size)

    @property
    def side(self) -> int:
        return int(self.model.config.vision_config.image_size)

    @property
    @abstractmethod
    def width(self) -> int:
        """Dimensions of the joint space."""

    @abstractmethod
    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised pixels `[B, 3, h * cell, w * cell]` to features `[B, h * w, D]`."""

    def text(self, words: dict[str, torch.Tensor]) -> torch.Tensor:
        """Tokens `[Q, T]` to vectors `[Q, D]`."""
        return self.model.get_text_features(**words).pooler_output


class ClipTower(Tower):
    kind = "clip"
    padding = "longest"

    def __init__(self, model: Any, path: Path = "value") -> None:
        super().__init__(model)
        self.path = path

    @property
    def width(self) -> int:
        return int(self.model.config.projection_dim)

    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = self.vision.pre_layrnorm(self.vision.embeddings(pixels, interpolate_pos_encoding=True))
        *early, last = self.vision.encoder.layers
        for block in early:
            hidden = block(hidden, None)
        places = hidden[:, 1:]  # without the class token
        value = last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(places)))
        if self.path == "block":
            value = places + value
            value = value + last.mlp(last.layer_norm2(value))
        return self.model.visual_projection(self.vision.post_layernorm(value))


class SiglipTower(Tower):
    kind = "siglip"
    padding = "max_length"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if getattr(self.vision, "head", None) is None:
            raise EncoderError(
                "expected a SigLIP checkpoint with its pooling head, got one with vision_use_head=False: "
                "without the head its features are not in the space of its texts"
            )

    @property
    def width(self) -> int:
        return int(self.model.config.vision_config.hidden_size)

    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.pooled_alone(self.vision(pixels, interpolate_pos_encoding=True).last_hidden_state)

    def pooled_alone(self, hidden: torch.Tensor) -> torch.Tensor:
        """The pooling head on each place by itself: `[B, N, D]` to `[B, N, D]`."""
        head = self.vision.head
        width = hidden.shape[-1]
        weight, bias = head.attention.in_proj_weight[2 * width :], head.attention.in_proj_bias[2 * width :]
        value = head.attention.out_proj(F.linear(hidden, weight, bias))
        return value + head.mlp(head.layernorm(value))


class Siglip2Tower(SiglipTower):
    """SigLIP 2 in its form for any shape (NaFlex); its checkpoints of fixed size are of the type `siglip`."""

    kind = "siglip2"

    @property
    def side(self) -> int:
        return int(self.model.config.vision_config.num_patches**0.5) * self.cell

    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = pixels.shape
        rows, columns, cell = height // self.cell, width // self.cell, self.cell
        patches = pixels.view(batch, 3, rows, cell, columns, cell).permute(0, 2, 4, 3, 5, 1)  # rows, columns, y, x, RGB
        patches = patches.reshape(batch, rows * columns, cell * cell * 3)
        mask = torch.ones(batch, rows * columns, dtype=torch.long, device=pixels.device)
        shapes = torch.tensor([[rows, columns]] * batch)
        return self.pooled_alone(self.vision(patches, mask, shapes).last_hidden_state)


TOWERS: dict[str, type[Tower]] = {tower.kind: tower for tower in (ClipTower, SiglipTower, Siglip2Tower)}
