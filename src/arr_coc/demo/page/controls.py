"""What a visitor can set, and the way from there to a view and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from arr_coc.demo.views import STOPS, View
from arr_coc.demo.visit import House
from arr_coc.errors import ArrCocError

OWN = ("my own picture", "")


@dataclass(eq=False)
class Controls:
    """Components by name; all of them go into every request, so that a request says everything there is to say."""

    parts: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, part: Any) -> Any:
        self.parts[name] = part
        return part

    @property
    def inputs(self) -> list[Any]:
        return list(self.parts.values())

    def view(self, tab: str, values: Sequence[Any]) -> View:
        """The view that the controls' values make."""
        found: dict[str, Any] = dict(zip(self.parts, values, strict=True))
        for name in ("budget", "glance"):
            stop = found.pop(f"{name}_stop")
            words = str(found.pop(f"{name}_words", "") or "").strip()
            found[name] = words or STOPS[_whole(stop, name, len(STOPS) - 1)]
        for name, value in found.items():
            usual = getattr(View(), name)
            if name == "exploit":
                found[name] = _exploit(value)
            elif isinstance(usual, tuple):
                found[name] = tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()
            elif isinstance(usual, bool):
                found[name] = bool(value)
            elif isinstance(usual, int):
                found[name] = _whole(value, name, 100)
            else:
                found[name] = "" if value is None else str(value)
        return View(tab=tab, **found)

    def values(self, view: View) -> dict[str, Any]:
        """What each control shows for a view."""
        found: dict[str, Any] = {}
        for name in self.parts:
            what, _, form = name.rpartition("_")
            if form == "stop":
                found[name] = STOPS.index(getattr(view, what)) if getattr(view, what) in STOPS else len(STOPS) - 1
            elif form == "words":
                found[name] = "" if getattr(view, what) in STOPS else getattr(view, what)
            else:
                value = getattr(view, name)
                found[name] = list(value) if isinstance(value, tuple) else value
        found["exploit"] = "" if view.exploit is None else f"{view.exploit:g}"
        return found


def shared(house: House, controls: Controls) -> dict[str, Any]:
    """The picture, the question and the budget: the same for all tabs. Returns what is not a part of a view."""
    own: dict[str, Any] = {}
    own["picture"] = gr.Image(
        label="Picture: drop, paste or choose one", type="filepath", image_mode=None, sources=["upload", "clipboard"],
        height=300, elem_id="picture", buttons=[],
    )  # fmt: skip
    own["picture_told"] = gr.HTML("", elem_id="picture-told")
    names = list(house.examples)
    controls.add(
        "image", gr.Dropdown([*((name, name) for name in names), OWN], value=names[0], label="Example", elem_id="example")
    )  # fmt: skip
    controls.add("question", gr.Textbox(value=View().question, label="Question", max_lines=4, elem_id="question"))
    own["questions"] = gr.Dropdown([], value=None, label="Questions to try", elem_id="questions")
    for name, about in (("budget", "tokens that the model reads"), ("glance", "cells that are encoded at all")):
        with gr.Group(elem_classes="stops"):
            slider = gr.Slider(
                0, len(STOPS) - 1, value=STOPS.index("auto"), step=1, label=f"{name.capitalize()}: {about}",
                elem_id=f"{name}-stop", elem_classes="stop",
            )  # fmt: skip
            controls.add(f"{name}_stop", slider)
            ticks = "".join(f"<span{' style=font-weight:bold' * (stop == 'auto')}>{stop}</span>" for stop in STOPS)
            gr.HTML(f"<div class='ticks' id='{name}-ticks'>{ticks}</div>")
    with gr.Accordion("Model, layer, exact budget", open=False):
        shelf = house.shelf
        controls.add("model", gr.Dropdown(list(shelf.names), value=shelf.names[0], label="Model", elem_id="model"))
        controls.add(
            "layer", gr.Textbox(value="auto", label="Layer: auto, none, or a folder below --files", elem_id="layer")
        )
        controls.add(
            "budget_words",
            gr.Textbox(value="", label="Exact budget: 128, 12.5%, mass 90%", elem_id="budget-words"),
        )
    return own


def updates(controls: Controls, view: View) -> dict[Any, Any]:
    """Every control set to a view's values."""
    return {controls.parts[name]: value for name, value in controls.values(view).items()}


def _exploit(value: Any) -> float | None:
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError):
        raise ArrCocError(f"expected exploit from 0 to 1, got {str(value)[:40]!r}") from None


def _whole(value: Any, name: str, most: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ArrCocError(f"expected a whole number for {name}, got {str(value)[:40]!r}") from None
    if not 0 <= number <= most:
        raise ArrCocError(f"expected {name} from 0 to {most}, got {number}")
    return number


def named(parts: Mapping[str, Any], made: Mapping[str, Any]) -> dict[Any, Any]:
    """Outputs by name as outputs by component; a new maximum for the slider of levels, and a value for everything else."""
    found: dict[Any, Any] = {}
    for name, value in made.items():
        if name == "channels_levels":
            found[parts["channels_levels"]] = gr.update(maximum=value)
        else:
            found[parts[name]] = value
    return found
