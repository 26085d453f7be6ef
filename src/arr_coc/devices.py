"""Devices that are there."""

from __future__ import annotations

import torch

from arr_coc.errors import ArrCocError, first_line


def check_device(device: torch.device | str | None) -> torch.device | None:
    """The device, if torch can put something there; None stays None."""
    if device is None:
        return None
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArrCocError(f"there is no device {str(device)!r} here ({first_line(error)}); use 'cpu'") from None
    return place


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On `device`, without waiting for what that device is still doing."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
