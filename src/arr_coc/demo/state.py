"""The state of the page: every setting that decides what it shows, and the link that restores them.

A link names an example, never an uploaded image: uploads are visible to the user who sent them only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from arr_coc.errors import ArrCocError

TABS = ("ask", "compare", "channels", "knowing", "report", "find")
# The stops of the sliders for budget and glance: a fuller slider means more tokens. `auto` is a switch next to them.
SLIDER_STOPS = ("1%", "2%", "3%", "4.5%", "6.25%", "9%", "12.5%", "18%", "25%", "35%", "50%", "70%", "all")
STRIP_BUDGETS = ("1%", "3%", "6.25%", "12.5%", "25%", "all")  # budgets at which an example is answered
MAX_SELECTORS = 4
MAX_NUMBER = 100  # of whole numbers: percent, or a pyramid level
_QUESTION_FIELDS = ("image", "question", "model", "layer", "budget")
LINK_FIELDS = {  # settings that the link of each tab holds
    "ask": (*_QUESTION_FIELDS, "glance", "detail", "straighten", "selector", "dense", "follow", "gaze", "heat"),
    "compare": (*_QUESTION_FIELDS, "selectors", "box"),
    "channels": ("image", "channel", "level", "point"),
    "knowing": (*_QUESTION_FIELDS, "learned", "exploit", "weights"),
    "report": ("report", "against"),
    "find": ("find", "find_heat"),
}
_NUMBER_EXAMPLES = {"box": "40, 60, 90, 80", "gaze": "280, 600", "point": "0.5, 0.25"}


@dataclass(frozen=True)
class PageState:
    """All settings of the page. Each is a short text, a number or a few of them, so that it fits into a link."""

    tab: str = "ask"
    image: str = "receipt"  # an example; empty: the user's own image
    question: str = "What is the total amount?"
    model: str = ""  # empty: the first one
    layer: str = "auto"
    budget: str = "auto"
    glance: str = "auto"
    detail: str = "auto"  # how a large image is shown
    straighten: str = "auto"  # whether a document is shown upright
    selector: str = "arr-coc"
    dense: bool = True  # also answer from all tokens
    follow: bool = False  # continue the conversation: the question follows the last answer
    gaze: str = ""  # "x, y" in pixels: where the user looks
    heat: int = 60  # opacity of the relevance overlay, in percent
    selectors: tuple[str, ...] = ("arr-coc", "divprune", "uniform")
    box: str = ""  # "x0, y0, x1, y1" in pixels
    channel: str = "edges"
    level: int = 0
    point: str = ""  # "x, y" as shares of the image
    learned: bool = True
    exploit: float | None = None  # None: as computed
    weights: str = ""  # "coupling 1, text 0.2"; empty: as computed
    report: str = ""
    against: str = ""
    find: str = "a dog"
    find_heat: bool = False

    def __post_init__(self) -> None:
        if self.tab not in TABS:
            raise ArrCocError(f"expected a tab among {', '.join(TABS)}, got {self.tab[:40]!r}")

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> PageState:
        """Read the query of a link. Unknown names, which other sites add, are ignored; a bad value raises."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: parse_setting(name, text) for name, text in query.items() if name in known})

    def to_query(self) -> str:
        """The query of a link, with the settings of this tab that differ from the defaults."""
        default = PageState()
        query = {"tab": self.tab}
        for name in LINK_FIELDS[self.tab]:
            value = getattr(self, name)
            if value != getattr(default, name) or name in ("image", "question"):
                query[name] = _format(value)
        return f"?{urlencode(query)}"

    def parse_numbers(self, name: str, count: int) -> tuple[float, ...]:
        """The numbers in a text setting such as `box`; empty where it is not set."""
        text = getattr(self, name)
        if not text.strip():
            return ()
        try:
            numbers = tuple(float(part) for part in text.replace(",", " ").split())
        except ValueError:
            numbers = ()
        if len(numbers) != count or not all(abs(number) < 1e9 for number in numbers):  # false for NaN, too
            raise ArrCocError(
                f"expected {count} numbers for the {name}, such as {_NUMBER_EXAMPLES[name]!r}, got {text[:60]!r}"
            )
        return numbers

    def parse_weights(self) -> dict[str, float]:
        """The weights that the user set, by score."""
        weights = {}
        for part in self.weights.split(","):
            name, _, value = part.strip().partition(" ")
            if not name:
                continue
            try:
                weights[name] = float(value)
            except ValueError:
                raise ArrCocError(
                    f"expected weights such as 'coupling 1, text 0.2', got {self.weights[:80]!r}"
                ) from None
        return weights


def format_weights(weights: Mapping[str, float]) -> str:
    """Weights as a setting.

    >>> format_weights({"coupling": 1.0, "text": 0.25})
    'coupling 1, text 0.25'
    """
    return ", ".join(f"{name} {value:g}" for name, value in weights.items())


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def parse_setting(name: str, value: Any) -> Any:
    """The value of a control, or the text of a link, as a value of the setting's type."""
    default = getattr(PageState(), name)
    try:
        if name == "exploit":
            return None if value in (None, "") else float(value)
        if isinstance(default, bool):
            return {"0": False, "1": True}[value] if isinstance(value, str) else bool(value)
        if isinstance(default, int):
            return range(MAX_NUMBER + 1).index(int(value))  # raises outside of it
    except (TypeError, ValueError, KeyError, OverflowError):
        kind = f"a whole number from 0 to {MAX_NUMBER}" if type(default) is int else "a number"
        raise ArrCocError(f"expected {kind} for {name}, got {str(value)[:40]!r}") from None
    if isinstance(default, tuple):
        parts = value.split() if isinstance(value, str) else value
        return tuple(map(str, parts)) if isinstance(parts, list | tuple) else ()
    return "" if value is None else str(value)
