"""What the capture of a CUDA graph refuses, and what makes the host wait for a GPU, found without one.

    with fake_gpu() as gpu:
        fake = gpu.module(model)                        # its weights are now on a GPU that does not exist
        capture(work, inputs, weights_of(fake))         # raises `Refused` where a capture would fail, or would be wrong

Tensors are fake: they have a device, a shape and a dtype, and no values. Triton kernels do not run; their arguments are checked.
A control with a planted fault belongs to every use.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arr_coc.texture.kernels import cuda_graph

DEVICE = torch.device("cuda", 0)
WAITING = {  # the host reads a value, or how large the result is
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "_unique", "unique_dim",
    "unique_consecutive", "bincount", "_linalg_check_errors",
}  # fmt: skip
RANDOM = {
    "rand",
    "randn",
    "randint",
    "randperm",
    "bernoulli",
    "bernoulli_",
    "multinomial",
    "native_dropout",
    "normal_",
    "uniform_",
}
READING = {  # of a tensor, by Python
    getattr(torch.Tensor, name)
    for name in ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist", "numpy", "nonzero")
}  # fmt: skip
AS_OPERATORS = {  # whose Python methods need a GPU, or values
    torch.Tensor.__invert__: torch.ops.aten.bitwise_not,
    torch.Tensor.data_ptr: lambda tensor: 0,
    torch.Tensor.copy_: torch.ops.aten.copy_,
}


class Refused(Exception):
    """What a capture refuses, or what waits."""


class Reads(TorchDispatchMode):
    """Refuses what needs a value of a tensor on a GPU: fake tensors have none."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "prim":  # asks for a device or a layout
            return function(*args, **kwargs)
        name, given = function.overloadpacket.__name__, _tensors((args, kwargs))
        there = [one for one in given if one.is_cuda]
        if there:
            _check_value(function, name, args, kwargs)
        self.before(name, there)
        if name in ("_to_copy", "copy_"):
            self.copied(name, args, kwargs)
        made = function(*args, **kwargs)
        self.after(name, _tensors(made))
        return made

    def before(self, name: str, given: Sequence[torch.Tensor]) -> None:
        pass

    def after(self, name: str, made: Sequence[torch.Tensor]) -> None:
        pass

    def copied(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        pass


class Waits(Reads):
    """Refuses what makes the host wait for a GPU. Tensors may go there, if the host does not wait for the copy."""

    def copied(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        source, target = _copy_devices(name, args, kwargs)
        if source == "cuda" != target:
            raise Refused(f"{name} waits: a tensor comes from the GPU")
        waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        if target == "cuda" != source and waits:
            raise Refused(f"{name} waits: a tensor is copied to the GPU, and not with non_blocking=True")


class Captures(Waits):
    """Refuses what a graph cannot hold, either: copies between devices, random numbers, and memory that it does not own.

    `known`: what lies at its place as long as the graph does: its inputs, weights and buffers. None: anything.
    """

    def __init__(self, known: Iterable[torch.Tensor] | None) -> None:
        super().__init__()
        self._anything = known is None
        self._held: list[Any] = list(known or ())  # a storage's number is given again once it is freed
        self._known = {_storage(one) for one in self._held}
        self.made: list[weakref.ref[torch.Tensor]] = []

    def before(self, name: str, given: Sequence[torch.Tensor]) -> None:
        if name in RANDOM:
            raise Refused(f"{name} draws random numbers")
        for one in given:
            if not self._anything and _storage(one) not in self._known:
                raise Refused(f"{name} reads memory {list(one.shape)} that is neither an input nor made in the capture")

    def after(self, name: str, made: Sequence[torch.Tensor]) -> None:
        for one in made:
            if one.is_cuda and _storage(one) not in self._known:
                self._known.add(_storage(one))
                self._held.append(one.untyped_storage())
                self.made.append(weakref.ref(one))

    def copied(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        source, target = _copy_devices(name, args, kwargs)
        if source != target:
            raise Refused(f"{name} copies from {source} to {target}")


CAPTURING: list[Captures] = []  # the capture that is under way; launches of kernels are no operators


class _Methods(TorchFunctionMode):
    """Some methods by operators: torch's own ask for a guard of the device, which a build without CUDA does not have."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.__getitem__ and args[0].is_cuda:
            view, indices = _view(*args)
            return view if indices is None else torch.ops.aten.index(view, indices)
        if function in AS_OPERATORS:
            return AS_OPERATORS[function](*args, **(kwargs or {}))
        if function in READING and args[0].is_cuda:
            raise Refused(f"{function.__name__} waits: the host reads a tensor of the GPU")
        if function is torch.Tensor.__setitem__ and args[0].is_cuda:
            view, indices = _view(*args[:2])
            value = args[2]
            if indices is not None:
                value = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=view.dtype)
                torch.ops.aten.index_put_(view, indices, value)
            elif isinstance(value, torch.Tensor):
                torch.ops.aten.copy_(view, value)
            else:
                view.fill_(value)
            return None
        return function(*args, **(kwargs or {}))


def _view(given: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None] | None]:
    """What numbers, slices, None and an ellipsis select, and the tensors that index this; None where there are none."""
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum(1 for one in parts if one is not None and one is not Ellipsis)
    if not any(one is Ellipsis for one in parts):
        parts.append(Ellipsis)
    axis, indices = 0, []
    for one in parts:
        if one is Ellipsis:
            skipped = given.ndim - axis - (used - len([None for x in parts[: parts.index(one)] if x is not None]))
            indices += [None] * skipped
            axis += skipped
        elif one is None:
            given = given.unsqueeze(axis)
            indices.append(None)
            axis += 1
        elif isinstance(one, slice):
            given = torch.ops.aten.slice(given, axis, one.start, one.stop, one.step or 1)
            indices.append(None)
            axis += 1
        elif isinstance(one, torch.Tensor) and (one.ndim or one.dtype == torch.bool):
            indices.append(one)
            axis += 1
        elif isinstance(one, list):
            indices.append(torch.tensor(one))
            axis += 1
        else:
            given = given.select(axis, int(one))
    return given, indices if any(one is not None for one in indices) else None


class _Stream:
    """Work comes in the order of its launches."""

    cuda_stream = 0

    def __init__(self, device: Any = None) -> None: ...

    def wait_stream(self, other: _Stream) -> None: ...

    def wait_event(self, event: _Event) -> None: ...


class _Event:
    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self, stream: _Stream) -> None: ...


class FakeGpu:
    """A GPU that does not exist."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.launches: list[str] = []  # names of the Triton kernels
        self.graphs = 0
        self.asked = 0  # how often the host wanted a value, by `fetch_later`

    def tensor(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor like this one on the GPU, without its values."""
        return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=DEVICE)

    def from_host(self, make: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            real = make(*args, **kwargs)
        return self.mode.from_tensor(real)

    def module(self, real: nn.Module) -> Any:
        """A copy of a module on the GPU. Tensors that are neither parameters nor buffers stay where they are, as in `.to`."""
        with unset_fake_temporarily():
            made = copy.deepcopy(real)
        for module in made.modules():
            for held in (module._parameters, module._buffers):
                for name, one in held.items():
                    if one is not None:
                        fake = self.tensor(one)
                        held[name] = nn.Parameter(fake, requires_grad=False) if isinstance(one, nn.Parameter) else fake
        return made

    def moved(self, real: Any) -> Any:
        """An object of this package that was made on the CPU, moved with all tensors that it holds. In place where it can be."""
        if isinstance(real, torch.Tensor):
            return self.tensor(real)
        if isinstance(real, torch.device):
            return DEVICE
        if isinstance(real, dict):
            return {name: self.moved(one) for name, one in real.items()}
        if isinstance(real, tuple) and hasattr(real, "_fields"):
            return type(real)(*map(self.moved, real))
        if isinstance(real, list | tuple):
            return type(real)(map(self.moved, real))
        if type(real).__module__.startswith(("arr_coc.", "gpu_graphs.")):
            for name, one in vars(real).items():
                object.__setattr__(real, name, self.moved(one))
        return real

    def capture_graph(
        self, work: Callable[[], object], device: torch.device, pool: Any = None, stream: Any = None
    ) -> SimpleNamespace:
        """In the place of the package's: `work` is captured, and replaying it does nothing."""
        assert device.type == "cuda"
        capture(work, (), None)
        self.graphs += 1
        return SimpleNamespace(replay=lambda: None)

    def fetch_later(self, value: torch.Tensor) -> Callable[[], bool]:
        """Every row goes on, however often the host asks."""
        self.asked += 1
        return lambda: True

    def launch(self, kernel: Any, *args: Any, **kwargs: Any) -> None:
        name = getattr(getattr(kernel, "fn", kernel), "__name__", str(kernel))
        for one in [found for given in (*args, *kwargs.values()) for found in held_by(given)]:
            if not one.is_cuda:
                raise Refused(f"the kernel {name} gets a tensor on {one.device}")
            for mode in CAPTURING:
                mode.before(f"the kernel {name}", [one])
        self.launches.append(name)


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """Inside, tensors are fake and may be on a GPU; Triton kernels are launched on it, by name."""
    with ExitStack() as stack:
        gpu = FakeGpu(FakeTensorMode())
        patch = lambda target, value: stack.enter_context(mock.patch(target, value))  # noqa: E731
        patch("arr_coc.texture.kernels.dispatch.reason", lambda device: None)
        patch("arr_coc.texture.channels.text._graphs", cuda_graph.GraphCache(8))
        patch("arr_coc.texture.kernels.cuda_graph.capture_graph", gpu.capture_graph)
        for name in ("frombuffer", "from_numpy"):
            patch(f"torch.{name}", partial(gpu.from_host, getattr(torch, name)))
        # torch's own rules for fake tensors call this one, where no mode sees it
        patch("torch.Tensor.contiguous", lambda tensor, **given: torch.ops.aten.contiguous(tensor, **given))
        patch("torch.Tensor.pin_memory", lambda tensor, *given: tensor)
        patch("torch.cuda.device", _no_guard)
        patch("torch.cuda.graph_pool_handle", lambda: (0, 1))
        patch("torch.cuda.synchronize", lambda device=None: None)
        patch("torch.cuda.Event", _Event)
        patch("torch.cuda.empty_cache", lambda: None)
        patch("torch.cuda.memory_reserved", lambda device=None: 0)
        patch("arr_coc.vlm.recording.fetch_later", gpu.fetch_later)
        stack.enter_context(mock.patch.dict(cuda_graph.RecordedWork._streams, clear=True))
        patch("torch.cuda.current_stream", lambda device=None: _Stream())
        patch("torch.cuda.Stream", _Stream)
        patch("torch.cuda.stream", _no_guard)
        patch("torch.cuda.is_current_stream_capturing", lambda: False)
        try:
            import triton
        except ImportError:
            pass
        else:
            kinds = {type(one) for one in _kernels(triton)}
            for kind in kinds:
                run = lambda kernel, *args, grid, warmup, **rest: gpu.launch(kernel, *args, **rest)  # noqa: E731
                stack.enter_context(mock.patch.object(kind, "run", run))
        stack.callback(_forget)
        stack.enter_context(gpu.mode)
        stack.enter_context(_Methods())
        _forget()
        yield gpu


def _forget() -> None:
    """Drop what the package keeps by device: fake tensors are good for one block."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("arr_coc.", "gpu_graphs.")):
            for one in list(vars(module).values()):
                if hasattr(one, "cache_clear"):
                    one.cache_clear()


@contextmanager
def _no_guard(device: torch.device) -> Iterator[None]:
    yield


def _kernels(triton: Any) -> list[Any]:
    from arr_coc.texture.kernels import pointwise

    return [one for one in vars(pointwise).values() if hasattr(one, "run") and hasattr(one, "fn")]


def weights_of(*modules: nn.Module) -> list[torch.Tensor]:
    return [one for module in modules for one in (*module.parameters(), *module.buffers())]


def held_by(owner: Any) -> list[torch.Tensor]:
    """All tensors that an object of this package holds, however deep."""
    if isinstance(owner, torch.Tensor):
        return [owner]
    if isinstance(owner, dict):
        return [found for one in owner.values() for found in held_by(one)]
    if isinstance(owner, list | tuple):
        return [found for one in owner for found in held_by(one)]
    if type(owner).__module__.startswith(("arr_coc.", "gpu_graphs.")):
        return held_by(getattr(owner, "__dict__", {}))
    return []


def capture(
    work: Callable[..., Any], inputs: Sequence[torch.Tensor], known: Iterable[torch.Tensor] | None = (), owner: Any = None
) -> Any:  # fmt: skip
    """Warm `work` up, then capture it as `capture_graph` does. `owner`: what lives as long as the graph; it may hold memory, too."""
    with torch.no_grad():
        with Reads():
            for _ in range(2):
                work(*inputs)
        mode = Captures(None if known is None else [*inputs, *known, *held_by(owner)])
        CAPTURING.append(mode)
        try:
            with mode:
                made = work(*inputs)
        finally:
            CAPTURING.remove(mode)
    kept = {_storage(one) for one in _tensors(made)}
    for reference in mode.made if known is not None else ():
        one = reference()
        if one is not None and _storage(one) not in kept:
            raise Refused(
                f"memory of the graph {list(one.shape)} is kept after the capture, and every replay overwrites it"
            )
    return made


def _check_value(function: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    if name in WAITING:
        raise Refused(f"{name} waits for the GPU")
    if name == "histc" and (len(args) < 4 or args[2] == args[3]):
        raise Refused("histc without a range waits for the GPU")
    if (
        name == "repeat_interleave"
        and function._overloadname.startswith("Tensor")
        and kwargs.get("output_size") is None
    ):
        raise Refused("repeat_interleave without output_size waits for the GPU")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        for one in args[1]:
            if one is None:
                continue
            scalar = name != "index" and args[2].numel() == 1 and not args[2].is_cuda
            if one.dtype in (torch.bool, torch.uint8) and not scalar:
                raise Refused(f"{name} by a mask waits for the GPU")
            if one.device != args[0].device:
                raise Refused(f"{name} by a tensor on {one.device} waits: it is copied to {args[0].device}")


def _copy_devices(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, str]:
    if name == "copy_":
        return args[1].device.type, args[0].device.type
    target = kwargs.get("device")
    return args[0].device.type, args[0].device.type if target is None else torch.device(target).type


def _tensors(held: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(held) if isinstance(one, torch.Tensor)]


def _storage(one: torch.Tensor) -> int:
    return int(one.untyped_storage()._cdata)
