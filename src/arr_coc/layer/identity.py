"""For which model a layer is: a model's identity, by its weights, and a layer checked against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from arr_coc.embedding.encoder import fingerprint
from arr_coc.errors import LayerError
from arr_coc.layer.model import ArrCocLayer, LayerConfig

HASHED_ROWS = 256  # of each matrix: hashing whole matrices of a large model takes seconds


class ModelParts(Protocol):
    """What a layer needs of a wrapped model; adapters have it."""

    @property
    def model(self) -> Any: ...

    @property
    def text_model(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...


def model_identity(adapter: ModelParts) -> str:
    """A model's name for its layers: its type, and a hash of the signs of some word embeddings and encoder weights.

    Signs are the same in every precision that a model may be loaded in. Quantised weights have signs of their own, and
    adapters (peft) do not count.
    """
    return identity_of(adapter.model.config.model_type, identity_weights(adapter))


def identity_weights(adapter: ModelParts) -> dict[str, torch.Tensor]:
    """The matrices whose first `HASHED_ROWS` rows identify a model."""
    words = adapter.model.get_input_embeddings().weight
    other = {id(parameter) for parameter in adapter.text_model.parameters()} | {id(words)}
    other |= {id(parameter) for module in adapted_modules(adapter.model) for parameter in adapter_weights(module)}
    matrices = [p for p in adapter.model.parameters() if p.ndim == 2 and id(p) not in other]
    return {"words": words, **{f"encoder {place}": matrices[place] for place in (0, len(matrices) // 2, -1)}}


def identity_of(model_type: str, weights: Mapping[str, torch.Tensor]) -> str:
    """The identity of a model from its `identity_weights`."""
    if any(values.device.type == "meta" for values in weights.values()):
        raise LayerError(
            "expected the word embeddings and the encoder on a device, to check for which model a layer is, got them "
            "offloaded: load the model without offloading, or without a layer"
        )
    return f"{model_type}-{fingerprint({name: _signs(values) for name, values in weights.items()})}"


def _signs(weights: torch.Tensor) -> torch.Tensor:
    """The signs of a matrix's first rows; packed values (4 bits each) as they are."""
    weights = weights.detach()
    if is_traceable_wrapper_subclass(weights):  # torchao
        weights = weights.dequantize()
    return weights[:HASHED_ROWS] if weights.dtype == torch.uint8 else weights[:HASHED_ROWS].signbit()


def adapted_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that peft put in the place of a model's own."""
    return [module for module in model.modules() if hasattr(module, "_active_adapter")]


def adapter_weights(module: nn.Module) -> list[nn.Parameter]:
    """The weights of an adapted module's adapters, without its own."""
    own = ("base_layer.", "original_module.")
    return [weights for name, weights in module.named_parameters() if not name.startswith(own)]


def config_for(adapter: ModelParts, **sizes: Any) -> LayerConfig:
    """The configuration of a new layer for a model."""
    width = adapter.model.get_input_embeddings().weight.shape[-1]
    return LayerConfig(model_identity(adapter), token_width=width, word_width=width, **sizes)


def fit_to_model(layer: ArrCocLayer, adapter: ModelParts) -> ArrCocLayer:
    """The layer in float32 on the model's device. It must have been trained for this model, or for any."""
    if layer.is_universal:
        return layer.to(adapter.device, torch.float32).eval()
    identity = model_identity(adapter)
    if layer.config.model != identity:
        raise LayerError(
            f"this layer was trained for {layer.config.model}, and the model is {identity}: train one with arr-coc train"
        )
    language = {id(module) for module in adapter.text_model.modules()} | {id(adapter.model.get_output_embeddings())}
    if any(id(module) not in language for module in adapted_modules(adapter.model)):
        raise LayerError(
            "expected the encoder that this layer was trained with, got one with adapters in its encoder (peft): train a "
            "layer for the merged model, or wrap the model without one"
        )
    return layer.to(adapter.device, torch.float32).eval()
