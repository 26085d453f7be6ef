"""EndpointLimits of the endpoint. The command line reads them without loading it."""

from __future__ import annotations

from dataclasses import dataclass

from arr_coc.types.limits import check_limits, limit_field


@dataclass(frozen=True)
class EndpointLimits:
    """Maxima for each request and for the server. Every one is an option of `arr-coc serve`."""

    megabytes: float = limit_field(20.0, "size of an image's file")
    megapixels: float = limit_field(40.0, "size of the images of a request together")
    images: int = limit_field(8, "images of a request")
    letters: int = limit_field(8000, "characters in the text of a request")
    tokens: int = limit_field(1024, "length of an answer; also the default")
    queue: int = limit_field(32, "waiting requests; further ones are refused with 429")
    batch: int = limit_field(8, "requests that are answered together")
    kept_megapixels: float = limit_field(600.0, "size of all images that wait or are read, together")
    seconds: float = limit_field(30.0, "seconds for a request to arrive, or for an image to be fetched")

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def body_bytes(self) -> int:
        """The longest body: images as base64 take a third more, and JSON takes some."""
        return int(self.megabytes * 1e6 * 4 / 3 * min(self.images, 4)) + 8 * self.letters + 65536
