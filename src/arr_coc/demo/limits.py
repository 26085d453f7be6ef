"""Limits for each user of the page and for its server. The command line reads them without loading the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from arr_coc.errors import ArrCocError


def _limit(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"help": f"{meaning} ({default:g})"})


@dataclass(frozen=True)
class Limits:
    """Maxima for each user and for the server. Every one is an option of `arr-coc demo`."""

    megabytes: float = _limit(20.0, "size of an uploaded file")
    megapixels: float = _limit(40.0, "size of an uploaded image")
    letters: int = _limit(1000, "length of a question")
    tokens: int = _limit(160, "length of an answer")
    queue: int = _limit(32, "waiting requests; further ones are refused")
    visitors: int = _limit(32, "users whose images are kept")
    minutes: float = _limit(30.0, "minutes that they are kept after their last request")
    kept_megapixels: float = _limit(600.0, "size of all users' images and channels together, 3 bytes a pixel")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 < value < math.inf:
                raise ArrCocError(f"expected the limit {one.name} above 0, got {value!r}")
