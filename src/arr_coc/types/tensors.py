"""Numbers in whatever container they come, as a tensor, or one clear sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from arr_coc.errors import ArrCocError

Numbers: TypeAlias = "torch.Tensor | np.ndarray | Sequence[Any] | float"


def as_tensor(value: object, what: str) -> torch.Tensor:
    """A tensor, array, list or number as a tensor; `what` names it in the error.

    Arrays are copied, because torch takes neither foreign byte orders, negative strides nor read-only memory.
    """
    if isinstance(value, torch.Tensor):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError
        dtype = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(array, dtype=dtype, order="C"))
    except (TypeError, ValueError):
        raise ArrCocError(f"expected {what} as a tensor, an array or numbers, got {type(value).__name__}") from None
