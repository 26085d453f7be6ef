"""Settings of the endpoint: its limits, what an answer reads by default, and which addresses of images are opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arr_coc.errors import ArrCocError
from arr_coc.hosting import check_limits
from arr_coc.selectors import names
from arr_coc.types.budget import Budget, limit


def _limit(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"help": f"{meaning} ({default:g})"})


@dataclass(frozen=True)
class Limits:
    """Maxima for each request and for the server. Every one is an option of `arr-coc serve`."""

    megabytes: float = _limit(20.0, "size of an image's file")
    megapixels: float = _limit(40.0, "size of the images of a request together")
    images: int = _limit(8, "images of a request")
    letters: int = _limit(8000, "length of the text of a request")
    tokens: int = _limit(1024, "length of an answer; also the default")
    queue: int = _limit(32, "waiting requests; further ones are refused with 429")
    batch: int = _limit(8, "requests that are answered together")
    kept_megapixels: float = _limit(600.0, "size of all images that wait or are read, together")
    seconds: float = _limit(30.0, "seconds for a request to arrive, or for an image to be fetched")

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def body_bytes(self) -> int:
        """The longest body: images as base64 take a third more, and JSON takes some."""
        return int(self.megabytes * 1e6 * 4 / 3 * min(self.images, 4)) + 8 * self.letters + 65536


@dataclass(frozen=True)
class Selection:
    """What is encoded and read: the arguments of `VLM.generate` of the same names."""

    budget: Budget = "all"
    glance: Budget = "all"
    selector: str = "arr-coc"
    glance_selector: str | None = None
    shared: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        limit(self.budget, 1000, "budget")
        limit(self.glance, 1000, "glance")
        for name in (self.selector, self.glance_selector):
            # Clients name selectors, too, and "module:Name" would import code.
            if name is not None and name not in names():
                raise ArrCocError(f"expected a selector among {', '.join(names())}, got {name[:80]!r}")


@dataclass(frozen=True)
class AddressPolicy:
    """Which addresses of images are opened besides data: URIs."""

    folders: tuple[Path, ...] = ()  # file: addresses below them
    hosts: tuple[str, ...] = ()  # http: and https: addresses of these hosts, as "name" or "name:port"

    def __post_init__(self) -> None:
        for folder in self.folders:
            if not folder.is_dir():
                raise ArrCocError(f"expected a folder for --allow-folder, and there is no folder {str(folder)!r}")
        for host in self.hosts:
            if not host or "/" in host:
                raise ArrCocError(f"expected --allow-host as a name or name:port, got {host!r}")


@dataclass(frozen=True)
class ServeSettings:
    """Everything about the endpoint but the model itself."""

    name: str = "reader"  # the model's name in requests
    limits: Limits = field(default_factory=Limits)
    selection: Selection = field(default_factory=Selection)  # where a request does not say otherwise
    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    api_key: str | None = field(default=None, repr=False)
    grace: float = 30.0  # seconds for accepted requests after a stop signal

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ArrCocError("expected an API key, got an empty one: unset it to serve without a key")
        if not 0 <= self.grace < 3600:
            raise ArrCocError(f"expected --grace from 0 to 3600 seconds, got {self.grace:g}")
