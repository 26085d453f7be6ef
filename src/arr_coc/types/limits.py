"""Dataclasses of limits: their fields, and the check of their values. The command line reads them without loading torch."""

from __future__ import annotations

import math
from dataclasses import field, fields
from typing import Any

from arr_coc.errors import ArrCocError


def limit_field(default: float, meaning: str) -> Any:
    """A limit with its default; the help of its option names both."""
    return field(default=default, metadata={"help": f"{meaning} ({default:g})"})


def check_limits(limits: Any) -> None:
    """Raise where a field of a dataclass of limits is not a number above 0."""
    for one in fields(limits):
        value = getattr(limits, one.name)
        if not 0 < value < math.inf:
            raise ArrCocError(f"expected the limit {one.name} above 0, got {value!r}")
