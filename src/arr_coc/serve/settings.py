"""Settings of the endpoint: what an answer reads by default, and which addresses of images are opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from arr_coc.errors import ArrCocError
from arr_coc.selectors import names, selector
from arr_coc.serve.limits import EndpointLimits
from arr_coc.types.budget import Budget, limit
from arr_coc.vlm.confidence import REFUSE


@dataclass(frozen=True)
class Selection:
    """What is encoded and read: the arguments of `VLM.generate` of the same names."""

    budget: Budget = "auto"
    glance: Budget = "auto"
    selector: str = "arr-coc"
    glance_selector: str | None = None
    shared: bool = False
    seed: int = 0
    sure: float | None = None  # of `VLM.ask`: read more cells where the confidence is below this
    refuse: str = "auto"  # "off": never answer that something is not in the picture

    def __post_init__(self) -> None:
        if self.refuse not in REFUSE:
            raise ArrCocError(f"expected refuse as one of {', '.join(REFUSE)}, got {self.refuse[:80]!r}")
        if self.sure is not None and not 0 <= self.sure <= 1:
            raise ArrCocError(f"expected sure between 0 and 1, got {self.sure!r}")
        limit(self.budget, 1000, "budget")
        limit(self.glance, 1000, "glance")
        for name in (self.selector, self.glance_selector):
            # Clients name selectors, too, and "module:Name" would import code.
            if name is not None and name not in names():
                raise ArrCocError(f"expected a selector among {', '.join(names())}, got {name[:80]!r}")
        selector(self.selector).check_budget(self.budget)


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
    limits: EndpointLimits = field(default_factory=EndpointLimits)
    selection: Selection = field(default_factory=Selection)  # where a request does not say otherwise
    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    api_key: str | None = field(default=None, repr=False)
    grace: float = 30.0  # seconds for accepted requests after a stop signal

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ArrCocError("expected an API key, got an empty one: unset it to serve without a key")
        if not 0 <= self.grace < 3600:
            raise ArrCocError(f"expected --grace from 0 to 3600 seconds, got {self.grace:g}")
