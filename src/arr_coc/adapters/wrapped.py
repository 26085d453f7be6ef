"""Models inside other objects, and models whose weights are not in one place.

- `unwrap`: the transformers model inside a `PeftModel` or behind `torch.compile(model)`.
- `check_placement`, `execution_device`, `weights_loaded`: a model that accelerate spread over devices or offloaded.
- `weights_state`: a value that changes when an adapter is switched, merged or replaced, or weights are written.
- `without_compilation`: compiled code runs eagerly, because it ignores hooks.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from arr_coc.errors import ModelError

# Adapters that act inside the layers of the model, so that the model alone computes what the `PeftModel` does.
PEFT_TYPES = ("LORA", "ADALORA", "LOHA", "LOKR", "OFT", "IA3", "VERA")
SAMPLED = 4  # values of each weight that are compared


def unwrap(model: Any) -> Any:
    """The model that computes: without the wrappers of `torch.compile` and peft."""
    while True:
        if isinstance(inner := getattr(model, "_modules", {}).get("_orig_mod"), nn.Module):
            model = inner
        elif _is_peft(model):
            check_peft(model)
            model = model.base_model.model
        else:
            return model


def check_peft(model: Any) -> None:
    """Raise where a `PeftModel` does more than its layers do; adapters can be loaded after the model was wrapped."""
    if not _is_peft(model):
        return
    for name, config in model.peft_config.items():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if kind not in PEFT_TYPES or getattr(config, "alora_invocation_tokens", None):
            came = "an activated LoRA" if kind == "LORA" else kind
            raise ModelError(
                f"expected adapters that act inside the model's layers ({', '.join(PEFT_TYPES)}), got {name!r}, "
                f"{came}: merge it or leave it out"
            )


def _is_peft(model: Any) -> bool:
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel | peft.PeftMixedModel)


class _EagerStance:
    """The stance of torch's compiler, which is one for all threads: the first that enters sets it, the last restores it."""

    def __init__(self) -> None:
        self._lock, self._count, self._stance = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._count == 0:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._count += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._stance.close()


_EAGER = _EagerStance()


def without_compilation() -> AbstractContextManager[None]:
    """Inside, compiled modules and functions run eagerly: code that was compiled before a hook was added ignores it."""
    return _EAGER if "torch._dynamo" in sys.modules else nullcontext()


# Models on several devices.


def check_placement(model: nn.Module) -> None:
    """Raise where weights lie on several devices, or nowhere, and no hook of accelerate moves what they need."""
    devices: set[str] = set()
    for module in model.modules():
        for weights in module.parameters(recurse=False):
            if weights.device.type == "meta" and not _offloads(module):
                raise ModelError(
                    "expected a model with weights, got some on the device 'meta', which holds none: load them with "
                    "from_pretrained(...), or with device_map='auto' and an offload_folder"
                )
            devices.add(str(weights.device))
    if len(devices - {"meta"}) > 1 and not _hooks(model):
        raise ModelError(
            f"expected the model on one device, or spread by device_map, got it on {', '.join(sorted(devices))} without "
            "accelerate's hooks: load it with device_map='auto' or move it with model.to(...)"
        )


def is_spread(model: nn.Module, part: nn.Module) -> bool:
    """Whether a part of a model lies on several devices, or is loaded for each call: its blocks must be called whole."""
    if not _hooks(model):
        return False
    devices = {weights.device for weights in part.parameters()}
    return len(devices) > 1 or any(device.type == "meta" for device in devices)


def execution_device(module: Any) -> torch.device:
    """The device on which a module with a `weight` computes, though the weight may be offloaded."""
    device = module.weight.device
    if device.type == "meta":
        for hook in _hooks(module):
            if getattr(hook, "execution_device", None) is not None:
                return torch.empty(0, device=hook.execution_device).device
    return device


@contextmanager
def weights_loaded(module: Any) -> Iterator[None]:
    """Inside, a module's own weights are there, as in its forward pass; those of its submodules come with their calls."""
    offloading = [hook for hook in _hooks(module) if getattr(hook, "offload", False)]
    for hook in offloading:
        hook.pre_forward(module)
    try:
        yield
    finally:
        for hook in offloading:
            hook.post_forward(module, None)


def _hooks(module: Any) -> list[Any]:
    """The hooks of accelerate on a module."""
    hook = getattr(module, "_hf_hook", None)
    return list(getattr(hook, "hooks", [hook])) if hook is not None else []


def _offloads(module: nn.Module) -> bool:
    return any(getattr(hook, "offload", False) for hook in _hooks(module))


# What a cache depends on.


@dataclass(frozen=True)
class WeightsState:
    """Equal states mean equal weights, as far as versions and samples show."""

    adapters: tuple[str, ...]  # names of the active adapters
    layers: tuple[Any, ...] = field(repr=False)  # of each layer with adapters: the active and merged ones, their scales
    written: int  # how often weights were written, in total
    values: str  # a hash of some values of each weight

    def __str__(self) -> str:
        return f"the adapter {', '.join(map(repr, self.adapters))}" if self.adapters else "no adapter"


def weights_state(model: nn.Module, without: Sequence[Any] = ()) -> WeightsState:
    """The state of a model's weights, apart from those of the modules `without`.

    Versions count what torch sees; writing through `.data`, as peft does when it merges, shows in the sampled values.
    Offloaded weights have neither: of those, only the adapters are compared.
    """
    skipped = {id(module) for module in without if module is not None}
    names: set[str] = set()
    layers, weights = [], []
    modules: list[nn.Module] = [model]
    for module in modules:
        if id(module) in skipped:
            continue
        if hasattr(module, "_active_adapter"):
            layers.append(_adapter_state(module))
            names |= set() if layers[-1][1] else set(layers[-1][0])
        weights += [one for one in module._parameters.values() if one is not None]
        modules += [child for child in module._modules.values() if child is not None]
    kinds = tuple(id(one) for one in weights if type(one) not in (nn.Parameter, torch.Tensor))  # quantised weights
    written = sum(0 if one.is_inference() else one._version for one in weights)
    return WeightsState(tuple(sorted(names)), (*layers, kinds), written, _samples(weights))


def _adapter_state(module: Any) -> tuple[Any, ...]:
    """Of a layer with adapters: the active ones, whether they are disabled, the merged ones, and their scales."""
    active = module._active_adapter
    scales = getattr(module, "scaling", None)
    return (
        (active,) if isinstance(active, str) else tuple(active),
        bool(module._disable_adapters),
        tuple(module.merged_adapters),
        tuple(sorted((str(name), float(scale)) for name, scale in scales.items())) if isinstance(scales, dict) else (),
    )


@torch.no_grad()
def _samples(weights: Sequence[torch.Tensor]) -> str:
    """A hash of some values of each weight, evenly spaced. One transfer for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for one in weights:
        if type(one) in (nn.Parameter, torch.Tensor) and one.device.type != "meta" and one.numel():
            flat = one.detach().flatten()
            groups.setdefault((one.device, one.dtype), []).append(flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED])
    digest = hashlib.blake2b(digest_size=8)
    for group in groups.values():
        digest.update(torch.cat(group).cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
