"""Which model a layer belongs to."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from arr_coc.embedding.encoder import fingerprint
from arr_coc.errors import LayerError
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.model import ArrCocLayer

ROWS = 256  # rows hashed of each matrix: hashing whole matrices of a large model takes seconds


class ModelParts(Protocol):
    """What a layer needs to know of a wrapped model; adapters have it."""

    @property
    def model(self) -> Any: ...

    @property
    def text_model(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...


def identity(adapter: ModelParts) -> str:
    """A model's name for its layers: its kind, and a fingerprint of some of its word embeddings and encoder weights.

    Of their signs, which are the same in every precision that a model may be loaded in.
    """
    words = adapter.model.get_input_embeddings().weight
    language = {id(parameter) for parameter in adapter.text_model.parameters()} | {id(words)}
    matrices = [p for p in adapter.model.parameters() if p.ndim == 2 and id(p) not in language]
    parts = {"words": words, **{f"encoder {place}": matrices[place] for place in (0, len(matrices) // 2, -1)}}
    some = {name: weights.detach()[:ROWS].signbit() for name, weights in parts.items()}
    return f"{adapter.model.config.model_type}-{fingerprint(some)}"


def config_for(adapter: ModelParts, **shape: Any) -> LayerConfig:
    """The shape of a new layer for a model."""
    width = adapter.model.get_input_embeddings().weight.shape[-1]
    return LayerConfig(identity(adapter), token_width=width, word_width=width, **shape)


def check(layer: ArrCocLayer, adapter: ModelParts) -> ArrCocLayer:
    """The layer, in float32 on the model's device, if it was made for this model."""
    mine = identity(adapter)
    if layer.config.model != mine:
        raise LayerError(
            f"this layer was trained for {layer.config.model}, and the model is {mine}: train one with arr-coc train"
        )
    return layer.to(adapter.device, torch.float32).eval()


def mark(layer: ArrCocLayer) -> str:
    """What tells two layers apart."""
    return fingerprint(layer.state_dict())
