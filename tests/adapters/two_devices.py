"""Two devices on a machine that has none: tensors of the CPU that behave as if they were on `cpu:0` and `cpu:1`.

Inside `TwoDevices()`, a tensor that is moved to `cpu:0` or `cpu:1`, or made there, remembers it, and so do the results of
every function on it. A function on tensors of different devices raises, as it would on two GPUs. A tensor without a mark is
on the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import accelerate
import torch
from torch.overrides import TorchFunctionMode

from arr_coc.layer.inference import all_weights
from arr_coc.layer.universal import shipped_layer

INDEXING = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}  # an index may be on the host


class DeviceMismatch(RuntimeError):
    """What a GPU would raise."""


class TwoDevices(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return _device(args[0])
        if func is torch.Tensor.to:
            return _to(args, given)
        if func is torch.Tensor.cpu:
            return _marked(args[0].detach().clone() if _mark(args[0]) is not None else args[0], None)
        if func is torch.Tensor.copy_:
            return func(*args, **given)
        device = given.get("device")
        if device is not None and torch.device(device).type == "cpu":
            given["device"] = "cpu"
            return _marked(func(*args, **given), torch.device(device).index)
        index = func in INDEXING
        marks = {_mark(one) for one in _tensors((args, given)) if one.ndim or index}
        if index:
            marks = {_mark(args[0])} | (marks - {None})
        if len(marks) > 1:
            raise DeviceMismatch(f"{getattr(func, '__name__', func)} on tensors of {sorted(map(str, marks))}")
        return _marked(func(*args, **given), next(iter(marks), None))


def spread(model: Any, device_map: dict[str, int]) -> Any:
    """Spread a model by accelerate's hooks; weights and hooks get the device of the longest prefix of their name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a parameter's own name in a device map is no module
        model = accelerate.dispatch_model(model, dict.fromkeys(device_map, "cpu"), force_hooks=True)

    def device(name: str) -> int:
        fitting = [prefix for prefix in device_map if f"{name}.".startswith(f"{prefix}.")]
        return device_map[max(fitting, key=len)] if fitting else 0

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        tensor._pretended = device(name)
    for name, module in model.named_modules():
        if getattr(module, "_hf_hook", None) is not None and module._hf_hook.execution_device is not None:
            module._hf_hook.execution_device = torch.device("cpu", device(name))
    shipped_layer(torch.device("cpu"))  # of the model that is compared with, read before anything pretends
    for tensor in all_weights(shipped_layer(torch.device("cpu", 0))):
        tensor._pretended = 0  # type: ignore[attr-defined]
    return model


def _mark(tensor: Any) -> int | None:
    return getattr(tensor, "_pretended", None)


def _device(tensor: torch.Tensor) -> torch.device:
    mark = _mark(tensor)
    return torch.device("cpu") if mark is None else torch.device("cpu", mark)


def _to(args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """`Tensor.to`: its target device may be a device, a string, a number or another tensor."""
    tensor, mark = args[0], _mark(args[0])
    rest = []
    for one in (*args[1:], *([given.pop("device")] if "device" in given else [])):
        if isinstance(one, torch.Tensor):
            mark = _mark(one)
            rest.append(one.dtype)
        elif isinstance(one, torch.device | str) or type(one) is int:
            mark = one if type(one) is int else torch.device(one).index
        elif one is not None:
            rest.append(one)
    made = torch.Tensor.to(tensor, *rest, **given) if rest or given else tensor
    if made is tensor and mark != _mark(tensor):
        made = tensor.view_as(tensor)
    return _marked(made, mark)


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value)


def _marked(result: Any, mark: int | None) -> Any:
    for tensor in _tensors(result):
        tensor._pretended = mark  # type: ignore[attr-defined]
    return result
