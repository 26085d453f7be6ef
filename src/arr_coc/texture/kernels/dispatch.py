"""Which way a piece of work goes: a Triton kernel, or the torch code that is the truth.

Notable:
- `ARR_COC_KERNELS` = auto, triton or torch decides for a process, `using(...)` for a stretch of code, which counts for more;
- auto, the default, takes kernels on CUDA devices from compute capability 7.0 on, where Triton can be imported, and torch elsewhere;
- asking for triton where it cannot run is an error, and what ran is written down: `used()`;
- with TRITON_INTERPRET=1 kernels run on CPU tensors too, slowly: that is how they are tested without a GPU.
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

Way: TypeAlias = Literal["auto", "triton", "torch"]

VARIABLE = "ARR_COC_KERNELS"
DEFAULT: Way = "auto"
OLDEST = (7, 0)  # compute capability from which Triton compiles
LONGEST = 1 << 15  # px of a side

_way: ContextVar[Way | None] = ContextVar("way", default=None)
_used: dict[str, str] = {}


@contextmanager
def using(way: Way) -> Iterator[None]:
    """Go one way inside a `with` block.

    >>> with using("torch"):
    ...     way()
    'torch'
    """
    token = _way.set(_checked(way, "way"))
    try:
        yield
    finally:
        _way.reset(token)


def way() -> Way:
    """What is asked for: by `using`, else by the environment, else auto."""
    return _way.get() or _checked(os.environ.get(VARIABLE) or DEFAULT, VARIABLE)


def used() -> dict[str, str]:
    """By piece of work: which way it went the last time in this process, "triton" or "torch"."""
    return dict(_used)


def chosen(name: str, *tensors: torch.Tensor) -> bool:
    """Whether the piece of work `name` on these tensors goes to its kernel; written down for `used`.

    Kernels know no gradients: where one is wanted, torch does the work.
    """
    wish = way()
    device = tensors[0].device
    for other in tensors[1:]:
        if other.device != device:
            raise ArrCocError(
                f"expected all tensors for {name} on one device, got {device} and {other.device}: move one with .to(...)"
            )
    hindrance = None if wish == "torch" else reason(device) or _too_long(tensors)
    graded = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if wish == "triton" and hindrance is not None:
        raise ArrCocError(f"expected to run {name} by Triton, and cannot: {hindrance}; use {VARIABLE}=auto or torch")
    by_kernel = wish != "torch" and hindrance is None and not graded and (device.type == "cuda" or wish == "triton")
    _used[name] = "triton" if by_kernel else "torch"
    return by_kernel


def _too_long(tensors: tuple[torch.Tensor, ...]) -> str | None:
    """Kernels multiply rows by columns in 32 bits; offsets into memory have 64 where they need them."""
    side = max((max(one.shape[-2:], default=0) for one in tensors), default=0)
    return None if side <= LONGEST else f"a side of {side:,} px is longer than {LONGEST:,}"


def reason(device: torch.device | str) -> str | None:
    """Why kernels cannot run on tensors of this device, in words; None: they can."""
    place = torch.device(device)
    if not has_triton():
        return "Triton is not installed (extra `kernels`)"
    if place.type == "cpu":
        return None if interpreted() else "these tensors lie on the CPU"
    if place.type != "cuda":
        return f"Triton does not run on {place.type} devices"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    able = capability(place.index if place.index is not None else torch.cuda.current_device())
    if able < OLDEST:
        return f"this GPU has compute capability {able[0]}.{able[1]}, and Triton needs {OLDEST[0]}.{OLDEST[1]}"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels step by step on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "True")


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@lru_cache
def capability(index: int) -> tuple[int, int]:
    """A GPU's compute capability."""
    return torch.cuda.get_device_capability(index)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Launches go to this device, also where another is the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _checked(value: str, what: str) -> Way:
    if value not in get_args(Way):
        raise ArrCocError(f"expected {what} as one of {', '.join(get_args(Way))}, got {value!r}")
    return value  # type: ignore[return-value]
