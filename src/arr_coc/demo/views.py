"""A view: everything that decides what the page shows, and the link that leads back to it.

A link names an example, never an uploaded picture: what a visitor sent stays with that visitor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from arr_coc.errors import ArrCocError

TABS = ("ask", "compare", "channels", "knowing", "report")
STOPS = ("all", "50%", "25%", "12.5%", "6.25%", "auto")  # of the sliders for budget and glance
MOST_SELECTORS = 4
_ASKED = ("image", "question", "model", "layer", "budget")
FIELDS = {  # what each tab's link holds
    "ask": (*_ASKED, "glance", "selector", "dense", "heat"),
    "compare": (*_ASKED, "selectors", "box"),
    "channels": ("image", "channel", "level", "point"),
    "knowing": (*_ASKED, "learned", "exploit", "weights"),
    "report": ("report", "against"),
}


@dataclass(frozen=True)
class View:
    """The state of the page. Every field is a short text, a number or a few of them, so that it fits into a link."""

    tab: str = "ask"
    image: str = "receipt"  # an example; empty: the visitor's own picture
    question: str = "What is the total amount?"
    model: str = ""  # empty: the first one
    layer: str = "auto"
    budget: str = "auto"
    glance: str = "auto"
    selector: str = "arr-coc"
    dense: bool = True  # also read all tokens, to compare
    heat: int = 60  # how strong the heat is, in percent
    selectors: tuple[str, ...] = ("arr-coc", "divprune", "uniform")
    box: str = ""  # "x0, y0, x1, y1" in pixels
    channel: str = "edges"
    level: int = 0
    point: str = ""  # "x, y" as shares of the picture
    learned: bool = True
    exploit: float | None = None  # set by hand
    weights: str = ""  # "coupling 1, text 0.2", set by hand
    report: str = ""
    against: str = ""

    def __post_init__(self) -> None:
        if self.tab not in TABS:
            raise ArrCocError(f"expected a tab among {', '.join(TABS)}, got {self.tab[:40]!r}")

    def query(self) -> str:
        """The link's query, with what this tab shows and differs from a fresh page."""
        usual = View()
        found = {"tab": self.tab}
        for name in FIELDS[self.tab]:
            value = getattr(self, name)
            if value != getattr(usual, name) or name in ("image", "question"):
                found[name] = _text(value)
        return f"?{urlencode(found)}"

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A field of numbers, such as the box; empty where it is not set."""
        text = getattr(self, name)
        if not text.strip():
            return ()
        try:
            found = tuple(float(part) for part in text.replace(",", " ").split())
        except ValueError:
            found = ()
        if len(found) != count or not all(abs(one) < 1e9 for one in found):
            raise ArrCocError(
                f"expected {count} numbers for the {name}, such as {_EXAMPLES[name]!r}, got {text[:60]!r}"
            )
        return found

    def weighed(self) -> dict[str, float]:
        """The weights that were set by hand, by way of knowing."""
        found = {}
        for part in self.weights.split(","):
            name, _, value = part.strip().partition(" ")
            if not name:
                continue
            try:
                found[name] = float(value)
            except ValueError:
                raise ArrCocError(
                    f"expected weights such as 'coupling 1, text 0.2', got {self.weights[:80]!r}"
                ) from None
        return found


_EXAMPLES = {"box": "40, 60, 90, 80", "point": "0.5, 0.25"}


def from_query(query: Mapping[str, str]) -> View:
    """The view that a link leads to; one sentence where it holds something that no view has."""
    known = {one.name: one for one in fields(View)}
    given: dict[str, Any] = {}
    for name, text in query.items():
        if name.startswith("__"):  # the page's own, such as its theme
            continue
        if name not in known:
            raise ArrCocError(f"expected a link with some of {', '.join(known)}, got {name[:40]!r}")
        given[name] = _value(name, text)
    return replace(View(), **given)


def written(weights: Mapping[str, float]) -> str:
    """Weights as they stand in a view.

    >>> written({"coupling": 1.0, "text": 0.25})
    'coupling 1, text 0.25'
    """
    return ", ".join(f"{name} {value:g}" for name, value in weights.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return (
        str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value or "")
    )


def _value(name: str, text: str) -> Any:
    """A link's text as the type that the field has."""
    usual = getattr(View(), name)
    try:
        if name == "exploit":
            return float(text) if text else None
        if isinstance(usual, bool):
            return {"0": False, "1": True}[text]
        if isinstance(usual, int):
            return int(text)
    except (ValueError, KeyError):
        raise ArrCocError(f"expected a number for {name!r} in the link, got {text[:40]!r}") from None
    return tuple(text.split()) if isinstance(usual, tuple) else text
