"""The components of the page: the shared controls on the left, and five tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from arr_coc.demo.app import AppState
from arr_coc.demo.markup import macros
from arr_coc.demo.state import MAX_SELECTORS, SLIDER_STOPS, PageState, parse_setting
from arr_coc.demo.tab_compare import selector_names
from arr_coc.errors import ArrCocError
from arr_coc.relevance.balancing import SCORES
from arr_coc.texture import FULL40

UPLOADED = ("my image", "")
BOARD = "arrcoc.board(element, trigger)"
DEFAULT = PageState()


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
    """The components that set the page's state. Every request carries the values of all of them."""

    @property
    def inputs(self) -> list[Any]:
        return list(self.values())

    def to_state(self, tab: str, values: Sequence[Any]) -> PageState:
        """The state that the values of all controls make; raises where a value is not possible."""
        found: dict[str, Any] = dict(zip(self, values, strict=True))
        for name in ("budget", "glance"):
            stop, text = found.pop(f"{name}_stop"), str(found.pop(f"{name}_words", "") or "").strip()
            if stop not in range(len(SLIDER_STOPS)):
                raise ArrCocError(f"expected {name} from 0 to {len(SLIDER_STOPS) - 1}, got {str(stop)[:40]!r}")
            found[name] = text or SLIDER_STOPS[int(stop)]
        return PageState(tab=tab, **{name: parse_setting(name, value) for name, value in found.items()})

    def from_state(self, state: PageState) -> dict[str, Any]:
        """The value of each control, by name."""
        found = {name: getattr(state, name, "") for name in self}
        for name in ("budget", "glance"):
            value = getattr(state, name)
            found[f"{name}_stop"] = SLIDER_STOPS.index(value if value in SLIDER_STOPS else "auto")
        found["budget_words"] = "" if state.budget in SLIDER_STOPS else state.budget
        found["selectors"] = list(state.selectors)
        found["exploit"] = "" if state.exploit is None else f"{state.exploit:g}"
        return found


def add_shared_controls(app: AppState, controls: Controls, parts: Parts) -> None:
    """Image, question, budget, glance and model: the same for all tabs."""
    parts.add(
        gr.Image,
        "picture",
        label="Image: drop, paste or upload one",
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard"],
        height=300,
        buttons=[],
    )
    parts.add_html("picture_message")
    names, models = list(app.examples), list(app.models.names)
    choices = [*((name, name) for name in names), UPLOADED]
    controls.add(gr.Dropdown, "image", choices, value=names[0], label="Example image", elem_id="example")
    controls.add(gr.Textbox, "question", DEFAULT.question, label="Question", max_lines=4)
    parts.add(gr.Dropdown, "questions", [], value=None, label="Example questions")
    last, auto = len(SLIDER_STOPS) - 1, SLIDER_STOPS.index("auto")
    for name, about in (("budget", "tokens that the language model reads"), ("glance", "tokens that are encoded")):
        with gr.Group(elem_classes="stops"):
            label = f"{name.capitalize()}: {about}"
            controls.add(gr.Slider, f"{name}_stop", 0, last, value=auto, step=1, label=label, elem_classes="stop")
            gr.HTML(macros.ticks(name, SLIDER_STOPS))
    with gr.Accordion("Model, layer, exact budget", open=False):
        controls.add(gr.Dropdown, "model", models, value=models[0], label="Model")
        controls.add(gr.Textbox, "layer", "auto", label="Layer: auto, none, or a folder below --files")
        controls.add(gr.Textbox, "budget_words", "", label="Exact budget, such as 128, 12.5% or mass 90%")


def add_ask_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        names = [name for name in selector_names(app.models.embeddings) if name != "oracle"]
        controls.add(gr.Dropdown, "selector", names, value="arr-coc", label="Selector")
        controls.add(gr.Checkbox, "dense", True, label="Also answer from all tokens")
        parts.add(gr.Button, "ask_go", "Ask", variant="primary")
    parts.add_html("ask_message", "ask_answer", "ask_dense")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            controls.add(gr.Slider, "heat", 0, 100, value=DEFAULT.heat, step=5, label="Overlay opacity, percent")
            parts.add_html("ask_pictures")
        with gr.Column(scale=2, min_width=280):
            parts.add_html("ask_facts")


def add_compare_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        controls.add(
            gr.Dropdown,
            "selectors",
            selector_names(app.models.embeddings),
            value=list(DEFAULT.selectors),
            multiselect=True,
            max_choices=MAX_SELECTORS,
            label="Two to four selectors",
            scale=3,
        )
        parts.add(gr.Button, "compare_go", "Compare", variant="primary", scale=1)
    parts.add_html("compare_message", "compare_note", "compare_columns")
    with gr.Accordion("Mark the answer: draw a box around it", open=True):
        controls.add(gr.Textbox, "box", "", label="Box: x0, y0, x1, y1 in pixels (empty: the example's own)")
        parts.add_html("compare_board", js_on_load=BOARD)


def add_channels_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    parts.add_html("channels_message")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            with gr.Row(equal_height=True):
                controls.add(gr.Dropdown, "channel", list(FULL40), value="edges", label="Channel")
                levels = controls.add(gr.Slider, "level", 0, 10, value=0, step=1, label="Pyramid level")
                parts["channels_levels"] = levels
                controls.add(gr.Textbox, "point", "", label="Point: x, y from 0 to 1")
            parts.add_html("channels_large", js_on_load=BOARD)
            parts.add_html("channels_about")
        with gr.Column(scale=2, min_width=280):
            parts.add_html("channels_values")
    parts.add_html("channels_gallery", js_on_load=BOARD)
    parts.add(gr.Button, "channels_go", "Show the channels")


def add_knowing_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        controls.add(gr.Checkbox, "learned", True, label="Use the trained layer")
        parts.add(gr.Button, "knowing_go", "Show the scores", variant="primary")
        parts.add(gr.Button, "knowing_reset", "Reset the weights")
    parts.add_html("knowing_message", "knowing_pictures")
    with gr.Row():
        with gr.Column(min_width=280):
            parts.add_html("knowing_bars")
        with gr.Column(min_width=280):
            gr.HTML("<h4>Set by hand</h4>")
            for name in ("exploit", *SCORES):
                label = name if name == "exploit" else f"weight of {name}"
                parts.add(gr.Slider, f"knowing_{name}", 0, 1, value=0, step=0.01, label=label)
    for name in ("exploit", "weights"):
        controls.add(gr.Textbox, name, "", visible=False)


def add_report_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        labels = {"report": "A folder that arr-coc eval --report wrote", "against": "A second one to compare with"}
        for name, label in labels.items():
            options = {"label": label, "allow_custom_value": True, "elem_id": f"{name}-folder"}
            controls.add(gr.Dropdown, name, [""], value="", **options)
        parts.add(gr.Button, "report_go", "Open", variant="primary")
    parts.add_html("report_message", "report_changes", "report_page")


def add_actions(tab: str, parts: Parts) -> None:
    """The link, the Python code and the JSON of a tab's result."""
    labels = {"copy_link": "Copy link", "copy_python": "Copy as Python", "save_json": "Save JSON"}
    with gr.Row(elem_classes="acts"):
        for action, label in labels.items():
            parts.add(gr.Button, f"{tab}_{action}", label, size="sm")
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
}
