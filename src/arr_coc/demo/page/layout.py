"""The components of the page: the question at the top, the tabs, and at the side the settings that the open tab uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from arr_coc.demo.app import AppState
from arr_coc.demo.glossary import explain
from arr_coc.demo.markup import macros
from arr_coc.demo.state import LINK_FIELDS, MAX_SELECTORS, SLIDER_STOPS, PageState, parse_setting
from arr_coc.demo.tab_compare import REFERENCE, selector_names
from arr_coc.relevance.realizing import SCORES
from arr_coc.texture import FULL40
from arr_coc.vlm.request import DETAILS, STRAIGHTEN

UPLOADED = ("my image", "")
BOARD = "arrcoc.board(element, trigger)"
DEFAULT = PageState()
FIRST_STOP = SLIDER_STOPS.index("12.5%")  # of a slider while its switch says auto
STALE = {  # what to do about a result that no longer fits the settings
    "ask": "The settings have changed since this answer: press Ask.",
    "compare": "The settings have changed since this comparison: press Compare.",
    "channels": "The image has changed: press Show the channels.",
    "knowing": "The settings have changed since these scores: press Show scores.",
    "report": "Another report is chosen: press Open.",
    "find": "The text has changed since this search: press Find.",
}


def used_by(*tabs: str) -> list[str]:
    """CSS classes of a component that only some tabs use: the others hide it."""
    return ["for-some", *(f"for-{tab}" for tab in tabs)]


class Parts(dict[str, Any]):
    """Components by name."""

    def add(self, kind: Any, name: str, *arguments: Any, **options: Any) -> Any:
        """Create a component. Its element id is its name with dashes, unless the options say otherwise."""
        self[name] = kind(*arguments, **({"elem_id": name.replace("_", "-")} | options))
        return self[name]

    def add_html(self, *names: str, **options: Any) -> None:
        for name in names:
            self.add(gr.HTML, name, "", **options)


class Controls(Parts):
    """The components that set the page's state, by the name of the setting."""

    def inputs(self, tab: str | None = None) -> list[Any]:
        """The components whose settings a tab uses; without one, all."""
        return [self[name] for name in self.names(tab)]

    def names(self, tab: str | None = None) -> list[str]:
        return list(self) if tab is None else [name for name in self if name in LINK_FIELDS[tab]]

    def to_state(self, tab: str, values: Sequence[Any], names: Sequence[str] | None = None) -> PageState:
        """The state that values of controls make (`names`; all of them by default); raises where one is not possible."""
        found = dict(zip(names or self.names(), values, strict=True))
        state = {name: parse_setting(name, value) for name, value in found.items()}
        for name in ("budget", "glance"):
            if name in state:
                state[name] = state[name].strip() or "auto"
        return PageState(tab=tab, **state)

    def from_state(self, state: PageState) -> dict[str, Any]:
        """The value of each control, by name."""
        found = {name: getattr(state, name) for name in self}
        found["selectors"] = list(state.selectors)
        found["exploit"] = "" if state.exploit is None else f"{state.exploit:g}"
        return found


def add_question_bar(controls: Controls, parts: Parts) -> None:
    """The question and the button of each tab that asks it, side by side, with example questions below."""
    with gr.Column(elem_id="bar", elem_classes=used_by("ask", "compare", "knowing")):
        with gr.Row(elem_id="question-row"):
            controls.add(
                gr.Textbox,
                "question",
                DEFAULT.question,
                label="Question",
                show_label=False,
                container=False,
                placeholder="Ask something about the image",
                max_lines=4,
                scale=8,
            )
            for tab, label in (("ask", "Ask"), ("compare", "Compare"), ("knowing", "Show scores")):
                go = {"variant": "primary", "scale": 1, "min_width": 96, "elem_classes": used_by(tab)}
                parts.add(gr.Button, f"{tab}_go", label, **go)
        parts.add_html("questions", js_on_load=BOARD)


def add_side(app: AppState, controls: Controls, parts: Parts) -> None:
    """Image, budget, glance and model, each only in the tabs that use it."""
    asking = ("ask", "compare", "knowing")
    with gr.Column(elem_id="side", elem_classes=used_by(*asking, "channels")):
        parts.add_html("picture_message")
        names, models = list(app.examples), list(app.models.names)
        choices = [*((name, name) for name in names), UPLOADED]
        controls.add(gr.Dropdown, "image", choices, value=names[0], label="Image", elem_id="example")
        parts.add(
            gr.Image,
            "picture",
            show_label=False,
            type="filepath",
            image_mode=None,
            sources=["upload", "clipboard"],
            height=230,
            buttons=[],
            placeholder="Drop an image here, or click to upload one",
        )
        add_budget(controls, parts, "budget", "Budget", asking)
        add_budget(controls, parts, "glance", "Glance", ("ask",))
        controls.add(
            gr.Checkbox, "dense", True, label="Also answer from all tokens, and time both", elem_classes=used_by("ask")
        )
        controls.add(
            gr.Checkbox, "follow", False, label="Continue the conversation after the last answer",
            elem_classes=used_by("ask"),
        )  # fmt: skip
        controls.add(
            gr.Textbox, "gaze", "", label="Gaze: x, y in pixels; click on the image above", elem_classes=used_by("ask")
        )
        with gr.Accordion(
            "Detail, straightening, selector, model, exact budget",
            open=False,
            elem_classes=used_by(*asking),
            elem_id="more",
        ):
            selectors = [name for name in selector_names(app.models.embeddings) if name != "oracle"]
            controls.add(
                gr.Dropdown, "selector", selectors, value="arr-coc", label="Selector", elem_classes=used_by("ask")
            )
            for name, label, offered in (
                ("detail", "Detail of large images", DETAILS),
                ("straighten", "Straighten documents", STRAIGHTEN),
            ):
                controls.add(
                    gr.Dropdown, name, offered, value=offered[0], label=label, elem_classes=used_by("ask"),
                    info=explain(name),
                )  # fmt: skip
            controls.add(gr.Dropdown, "model", models, value=models[0], label="Model")
            controls.add(gr.Textbox, "layer", "auto", label="Layer: auto, none, or a folder below --files")
            controls.add(gr.Textbox, "budget", "auto", label="Exact budget, such as 128, 12.5% or mass 90%")
            controls.add(
                gr.Textbox, "glance", "auto", label="Exact glance, such as 300 or 40%", elem_classes=used_by("ask")
            )


def add_budget(controls: Controls, parts: Parts, name: str, title: str, tabs: Sequence[str]) -> None:
    """A switch for auto and a slider that is fuller for more tokens. Both write into the exact setting."""
    with gr.Group(elem_classes=["stops", *used_by(*tabs)]):
        with gr.Row(elem_classes="setting-row"):
            gr.HTML(macros.setting(name, title, explain(name)))
            parts.add(
                gr.Checkbox, f"{name}_auto", True, label="auto", container=False, elem_classes="switch", min_width=70
            )
        last = len(SLIDER_STOPS) - 1
        slider = {"label": title, "show_label": False, "elem_classes": "stop", "buttons": []}
        parts.add(gr.Slider, f"{name}_stop", 0, last, value=FIRST_STOP, step=1, **slider)
        gr.HTML(macros.ticks(name, SLIDER_STOPS))


def add_ask_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    parts.add_html("ask_turns", elem_classes="result")
    with gr.Row(elem_id="answers", elem_classes="result"):
        parts.add_html("ask_answer", "ask_dense")
    parts.add_html("ask_strip", js_on_load=BOARD, elem_classes="result")
    with gr.Row():
        with gr.Column(scale=3, min_width=300, elem_id="ask-viewer"):
            controls.add(
                gr.Slider,
                "heat",
                0,
                100,
                value=DEFAULT.heat,
                step=5,
                label="Strength of the colours, percent",
                buttons=[],
            )
            parts.add_html("ask_pictures")
        with gr.Column(scale=2, min_width=280, elem_classes="result"):
            parts.add_html("ask_facts")
    parts.add_html("ask_live", visible="hidden")


def add_compare_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    names = [name for name in selector_names(app.models.embeddings) if name != REFERENCE]
    controls.add(
        gr.Dropdown,
        "selectors",
        names,
        value=list(DEFAULT.selectors),
        multiselect=True,
        max_choices=MAX_SELECTORS,
        label="One to four selectors, compared with all tokens",
    )
    parts.add_html("compare_note", "compare_columns", elem_classes="result")
    with gr.Accordion("Mark the answer: draw a box around it", open=True):
        controls.add(gr.Textbox, "box", "", label="Box: x0, y0, x1, y1 in pixels (empty: the example's own)")
        parts.add_html("compare_board", js_on_load=BOARD)


def add_channels_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    parts.add(gr.Button, "channels_go", "Show the channels", size="sm", elem_classes="only-stale")
    with gr.Row(elem_classes="result"):
        with gr.Column(scale=3, min_width=300):
            with gr.Row(equal_height=True):
                controls.add(gr.Dropdown, "channel", list(FULL40), value="edges", label="Channel")
                levels = controls.add(gr.Slider, "level", 0, 10, value=0, step=1, label="Pyramid level", buttons=[])
                parts["channels_levels"] = levels
                controls.add(gr.Textbox, "point", "", label="Point: x, y from 0 to 1")
            parts.add_html("channels_large", js_on_load=BOARD)
            parts.add_html("channels_about")
        with gr.Column(scale=2, min_width=280):
            parts.add_html("channels_values")
            parts.add_html("channels_gallery", js_on_load=BOARD)


def add_knowing_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    parts.add_html("knowing_pictures", elem_classes="result")
    with gr.Row():
        with gr.Column(min_width=280, elem_classes="result"):
            parts.add_html("knowing_bars")
        with gr.Column(min_width=280):
            with gr.Row(equal_height=True):
                controls.add(gr.Checkbox, "learned", True, label="Use the trained layer")
                parts.add(gr.Button, "knowing_reset", "Reset the weights", size="sm")
            for name in ("exploit", *SCORES):
                label = name if name == "exploit" else f"weight of {name}"
                options = {"label": label, "info": explain(name), "buttons": []}
                parts.add(gr.Slider, f"knowing_{name}", 0, 1, value=0, step=0.01, **options)
    for name in ("exploit", "weights"):
        controls.add(gr.Textbox, name, "", visible=False)


def add_report_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        labels = {"report": "A folder that arr-coc eval --report wrote", "against": "A second one to compare with"}
        for name, label in labels.items():
            options = {"label": label, "allow_custom_value": True, "elem_id": f"{name}-folder"}
            controls.add(gr.Dropdown, name, [""], value="", **options)
        parts.add(gr.Button, "report_go", "Open", variant="primary", scale=0, min_width=120)
    parts.add_html("report_changes", "report_page", elem_classes="result")


def add_find_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        folder = "the indexed folder" if app.index is None else repr(app.index.folder.name)
        options = {"label": f"What to find in {folder}", "elem_id": "find-text", "max_lines": 1}
        controls.add(gr.Textbox, "find", DEFAULT.find, **options)
        controls.add(gr.Checkbox, "find_heat", False, label="Colour the cells by their score", scale=0, min_width=220)
        parts.add(gr.Button, "find_go", "Find", variant="primary", scale=0, min_width=120)
    parts.add_html("find_images", elem_classes="result")


def add_actions(tab: str, parts: Parts) -> None:
    """The link, the Python code and the JSON of a tab's result. They can be used once there is one."""
    labels = {"copy_link": "Copy link", "copy_python": "Copy as Python", "save_json": "Save JSON"}
    with gr.Row(elem_classes="acts"):
        for action, label in labels.items():
            parts.add(gr.Button, f"{tab}_{action}", label, size="sm", interactive=False)
    with gr.Accordion("Python code", open=False):
        parts.add(gr.Code, f"{tab}_python", "", language="python", show_label=False, buttons=[])
    for name in ("json", "link"):
        parts.add(gr.Textbox, f"{tab}_{name}", "", visible=False)


ADD_TAB = {
    "ask": add_ask_tab,
    "compare": add_compare_tab,
    "channels": add_channels_tab,
    "knowing": add_knowing_tab,
    "report": add_report_tab,
    "find": add_find_tab,
}
