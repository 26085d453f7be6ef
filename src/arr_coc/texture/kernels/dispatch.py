"""Dispatch: run an operation by its Triton kernel or by the torch code, which is the reference.

- `ARR_COC_KERNELS` = auto, triton or torch sets the backend of the process; `using(...)` overrides it for a block;
- auto, the default, uses kernels on CUDA devices with compute capability 7.0 or higher if Triton is installed, else torch;
- triton is an error where kernels cannot run; `used()` says which backend each operation took;
- with TRITON_INTERPRET=1 kernels also run on CPU tensors, slowly: that is how they are tested without a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import torch

from arr_coc.errors import ArrCocError

Backend: TypeAlias = Literal["auto", "triton", "torch"]

VARIABLE = "ARR_COC_KERNELS"
MIN_CAPABILITY = (7, 0)  # what Triton compiles for
MAX_SIDE = 1 << 15  # px; kernels multiply rows by columns in 32 bits, offsets into memory have 64 where they need them

_backend: ContextVar[Backend | None] = ContextVar("backend", default=None)
_used: dict[str, str] = {}


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Set the backend inside a `with` block.

    >>> with using("torch"):
    ...     requested_backend()
    'torch'
    """
    token = _backend.set(_check_backend(backend, "backend"))
    try:
        yield
    finally:
        _backend.reset(token)


def requested_backend() -> Backend:
    """The backend set by `using`, else by the environment, else auto."""
    return _backend.get() or _check_backend(os.environ.get(VARIABLE) or "auto", VARIABLE)


def used() -> dict[str, str]:
    """By operation: the backend of its last run in this process, "triton" or "torch"."""
    return dict(_used)


def use_kernel(name: str, *tensors: torch.Tensor) -> bool:
    """Whether the operation `name` on these tensors runs by its kernel; recorded for `used`.

    Kernels have no gradients: torch runs where one is needed.
    """
    backend = requested_backend()
    device = tensors[0].device
    for other in tensors[1:]:
        if other.device != device:
            raise ArrCocError(
                f"expected all tensors for {name} on one device, got {device} and {other.device}: move one with .to(...)"
            )
    obstacle = None if backend == "torch" else reason(device) or _too_large(tensors)
    needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if backend == "triton" and obstacle is not None:
        raise ArrCocError(f"expected to run {name} by Triton, and cannot: {obstacle}; use {VARIABLE}=auto or torch")
    runs_here = device.type == "cuda" or backend == "triton"
    by_kernel = backend != "torch" and obstacle is None and not needs_gradient and runs_here
    _used[name] = "triton" if by_kernel else "torch"
    return by_kernel


def _too_large(tensors: tuple[torch.Tensor, ...]) -> str | None:
    side = max((max(one.shape[-2:], default=0) for one in tensors), default=0)
    return None if side <= MAX_SIDE else f"a side of {side:,} px is longer than {MAX_SIDE:,}"


def reason(device: torch.device | str) -> str | None:
    """Why kernels cannot run on tensors of this device; None: they can."""
    place = torch.device(device)
    if not has_triton():
        return "Triton is not installed (extra `kernels`)"
    if place.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "True")
        return None if interpreted else "these tensors lie on the CPU"
    if place.type != "cuda":
        return f"Triton does not run on {place.type} devices"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    found = capability(place.index if place.index is not None else torch.cuda.current_device())
    if found < MIN_CAPABILITY:
        return f"this GPU has compute capability {found[0]}.{found[1]}, and Triton needs {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@lru_cache
def capability(index: int) -> tuple[int, int]:
    """A GPU's compute capability."""
    return torch.cuda.get_device_capability(index)


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current one for launches; does nothing for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _check_backend(value: str, what: str) -> Backend:
    if value not in get_args(Backend):
        raise ArrCocError(f"expected {what} as one of {', '.join(get_args(Backend))}, got {value!r}")
    return value  # type: ignore[return-value]
