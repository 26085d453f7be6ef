"""Devices: checking them and moving tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from arr_coc.errors import ArrCocError, first_line


def check_device(device: torch.device | str | None) -> torch.device | None:
    """The device, if torch can allocate on it; None stays None."""
    if device is None:
        return None
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArrCocError(f"there is no device {str(device)!r} here ({first_line(error)}); use 'cpu'") from None
    return place


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`, copied asynchronously where possible."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def tensors(held: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, mappings and dataclasses."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        yield from tensors(list(held.values()))
    elif isinstance(held, list | tuple):
        for one in held:
            yield from tensors(one)
    elif is_dataclass(held) and not isinstance(held, type):
        yield from tensors([getattr(held, one.name) for one in fields(held)])
