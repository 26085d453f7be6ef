"""What a visitor may ask of the page, at most."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from arr_coc.errors import ArrCocError


@dataclass(frozen=True)
class Limits:
    """All of them can be set on the command line."""

    megabytes: float = 20.0  # of an uploaded file
    megapixels: float = 40.0  # of an uploaded picture
    letters: int = 1000  # of a question
    tokens: int = 160  # of an answer
    queue: int = 32  # requests that wait; more are refused with a sentence
    visitors: int = 32  # whose pictures are kept at once
    minutes: float = 30.0  # for which a visitor's pictures are kept after the last question
    kept_megapixels: float = 600.0  # of all visitors' pictures together; what is worked out of them counts by its size

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 < value < math.inf:
                raise ArrCocError(f"expected the limit {one.name} above 0, got {value!r}")
