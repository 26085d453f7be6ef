"""Limits for each user of the page and for its server. The command line reads them without loading the page."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.types.limits import check_limits, limit_field


@dataclass(frozen=True)
class Limits:
    """Maxima for each user and for the server. Every one is an option of `arr-coc demo`."""

    megabytes: float = limit_field(20.0, "size of an uploaded file")
    megapixels: float = limit_field(40.0, "size of an uploaded image")
    letters: int = limit_field(1000, "length of a question")
    tokens: int = limit_field(160, "length of an answer")
    queue: int = limit_field(32, "waiting requests; further ones are refused")
    visitors: int = limit_field(32, "users whose images are kept")
    minutes: float = limit_field(30.0, "minutes that they are kept after their last request")
    kept_megapixels: float = limit_field(600.0, "size of all users' images and channels together, 3 bytes a pixel")

    def __post_init__(self) -> None:
        check_limits(self)
