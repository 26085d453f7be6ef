"""From something touched to something shown. Whatever goes wrong on the way is one sentence in the page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from arr_coc.demo import asking, channels, comparing, drawing, knowing, reporting
from arr_coc.demo.memory import give_back
from arr_coc.demo.page.controls import Controls, named
from arr_coc.demo.views import TABS, View
from arr_coc.demo.visit import House, Visit
from arr_coc.errors import ArrCocError, first_line

Output = dict[str, Any]
Logic = Callable[[Visit], Iterator[Output]]

LOGIC: dict[str, Logic] = {
    "ask": asking.ask, "compare": comparing.compare, "channels": channels.channels, "knowing": knowing.know,
    "report": reporting.report,
}  # fmt: skip
CLEARED: dict[str, tuple[str, ...]] = {  # what would be wrong to leave there beside a complaint
    "ask": ("ask_answer", "ask_dense", "ask_pictures", "ask_facts"),
    "compare": ("compare_columns", "compare_note"),
    "channels": ("channels_values",),
    "knowing": (),
    "report": ("report_changes", "report_page"),
}
log = logging.getLogger("arr_coc.demo")


class Wiring:
    """Handlers for one page: `parts` are its outputs by name."""

    def __init__(self, house: House, controls: Controls, parts: dict[str, Any]) -> None:
        self.house, self.controls, self.parts = house, controls, parts
        self.page: Any = None
        self.numbers: frozenset[int] = frozenset()

    def belongs_to(self, page: gr.Blocks) -> None:
        """The finished page, whose components have these numbers and no others."""
        self.page, self.numbers = page, frozenset(page.blocks)

    def forget(self, visitor: str | None) -> None:
        """gradio keeps a copy of every output that it ever updated for a visitor, under a new number each: those go."""
        holder = getattr(getattr(self.page, "app", None), "state_holder", None)
        if holder is None or visitor not in holder.session_data:
            return  # a page that nobody serves
        state = holder[visitor]
        for kept in (state.blocks_config.blocks, state.config_values):
            for number in set(kept) - self.numbers:
                kept.pop(number, None)

    def outputs(self, *tabs: str) -> list[Any]:
        """The components that a tab's answers go to."""
        return [part for name, part in self.parts.items() if name.partition("_")[0] in tabs]

    def handler(self, tab: str, logic: Logic | None = None) -> Callable[..., Any]:
        """A function for gradio that runs a tab's logic with all controls' values."""

        def run(request: gr.Request, *values: Any) -> Iterator[Any]:
            yield from self.shown(tab, logic or LOGIC[tab], request, values)

        return run

    def shown(self, tab: str, logic: Logic, request: gr.Request, values: Sequence[Any]) -> Iterator[dict[Any, Any]]:
        """A tab's outputs by component, as they come; a complaint takes the place of what it would contradict."""
        told = self.parts[f"{tab}_told"]
        try:
            view = self.controls.view(tab, values)
            if view.model == self.house.shelf.names[0]:
                view = another(view, model="")  # the usual one is not worth a word in a link
            yield {told: ""}
            for made in logic(self.house.visit(request.session_hash, view)):
                yield named(self.parts, made)
        except ArrCocError as error:
            yield self._complaint(tab, str(error))
        except Exception as error:  # nobody else's page may suffer
            log.exception("a request failed")
            yield self._complaint(
                tab,
                f"this went wrong here, and not by your doing ({type(error).__name__}: {first_line(error)[:200]}): try again",
            )
        finally:
            self.forget(request.session_hash)
            give_back()

    def _complaint(self, tab: str, words: str) -> dict[Any, Any]:
        sentence = words[:1].upper() + words[1:] + ("" if words.endswith((".", "?", "!")) else ".")
        cleared = dict.fromkeys((self.parts[name] for name in CLEARED[tab]), "")
        return cleared | {self.parts[f"{tab}_told"]: drawing.told(sentence, "alert")}

    def current(self) -> Callable[..., Any]:
        """A function for gradio that runs whichever tab is open: the first input is its name."""

        def run(request: gr.Request, tab: str, *values: Any) -> Iterator[Any]:
            if tab in TABS:
                yield from self.shown(tab, LOGIC[tab], request, values)
            else:
                yield {self.parts["ask_told"]: gr.skip()}  # a generator that yields nothing would empty every output

        return run

    def quietly(self, change: Callable[[Visit], dict[str, Any]], view: View, request: gr.Request) -> dict[str, Any]:
        """A small change beside the tabs, such as another picture; a complaint goes below the picture."""
        try:
            return {"picture_told": "", **change(self.house.visit(request.session_hash, view))}
        except ArrCocError as error:
            return {"picture_told": drawing.told(str(error)[:1].upper() + str(error)[1:] + ".", "alert")}
        except Exception as error:
            log.exception("a request failed")
            return {"picture_told": drawing.told(f"This went wrong here ({type(error).__name__}): try again.", "alert")}


def board(visit: Visit) -> str:
    """The picture to draw a box on, with the box that is there."""
    image, small = visit.subject.image, drawing.shrunk(visit.subject.image, 700)
    width, height = image.size
    frames = ""
    for group in visit.evidence:
        for left, top, right, bottom, *_ in group:
            place = f"left:{100 * left / width:.2f}%;top:{100 * top / height:.2f}%"
            size = f"width:{100 * (right - left) / width:.2f}%;height:{100 * (bottom - top) / height:.2f}%"
            frames += f"<i class='drawn' style='{place};{size}'></i>"
    shown = f"<img src='{drawing.address(small)}' alt='the picture, to draw a box on' draggable='false'>"
    return f"<div class='board box' data-width='{width}' data-height='{height}'>{shown}{frames}</div>"


def questions(visit: Visit) -> list[str]:
    """What is asked about the view's example."""
    example = visit.house.examples.get(visit.view.image)
    return [] if example is None else list(dict.fromkeys(sample.question for sample in example.samples))


def another(view: View, **changes: Any) -> View:
    return replace(view, **changes)
