"""The components of the page: the shared controls on the left, and five tabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from arr_coc.demo.app import AppState
from arr_coc.demo.state import MAX_SELECTORS, SLIDER_STOPS, PageState
from arr_coc.demo.tab_compare import selector_names
from arr_coc.errors import ArrCocError
from arr_coc.relevance.balancing import SCORES
from arr_coc.texture import FULL40

UPLOADED = ("my image", "")
BOARD = "arrcoc.board(element, trigger)"
DEFAULT = PageState()

Parts = dict[str, Any]  # components by name


@dataclass(eq=False)
class Controls:
    """The components that set the page's state. Every request carries the values of all of them."""

    parts: Parts = field(default_factory=dict)

    def add(self, name: str, part: Any) -> Any:
        self.parts[name] = part
        return part

    @property
    def inputs(self) -> list[Any]:
        return list(self.parts.values())

    def to_state(self, tab: str, values: Sequence[Any]) -> PageState:
        """The state that the values of all controls make; raises where a value is not possible."""
        found: dict[str, Any] = dict(zip(self.parts, values, strict=True))
        for name in ("budget", "glance"):
            stop = found.pop(f"{name}_stop")
            text = str(found.pop(f"{name}_words", "") or "").strip()
            found[name] = text or SLIDER_STOPS[_parse_int(stop, name, len(SLIDER_STOPS) - 1)]
        for name, value in found.items():
            default = getattr(DEFAULT, name)
            if name == "exploit":
                found[name] = _parse_exploit(value)
            elif isinstance(default, tuple):
                found[name] = tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()
            elif isinstance(default, bool):
                found[name] = bool(value)
            elif isinstance(default, int):
                found[name] = _parse_int(value, name, 100)
            else:
                found[name] = "" if value is None else str(value)
        return PageState(tab=tab, **found)

    def from_state(self, state: PageState) -> dict[str, Any]:
        """The value of each control, by name."""
        found: dict[str, Any] = {}
        for name in self.parts:
            what, _, form = name.rpartition("_")
            if form in ("stop", "words"):
                value = getattr(state, what)
                stop = SLIDER_STOPS.index(value if value in SLIDER_STOPS else "auto")
                found[name] = stop if form == "stop" else "" if value in SLIDER_STOPS else value
            else:
                value = getattr(state, name)
                found[name] = list(value) if isinstance(value, tuple) else value
        found["exploit"] = "" if state.exploit is None else f"{state.exploit:g}"
        return found


def _parse_exploit(value: Any) -> float | None:
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError):
        raise ArrCocError(f"expected exploit from 0 to 1, got {str(value)[:40]!r}") from None


def _parse_int(value: Any, name: str, maximum: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ArrCocError(f"expected a whole number for {name}, got {str(value)[:40]!r}") from None
    if not 0 <= number <= maximum:
        raise ArrCocError(f"expected {name} from 0 to {maximum}, got {number}")
    return number


def add_shared_controls(app: AppState, controls: Controls, parts: Parts) -> None:
    """Image, question, budget, glance and model: the same for all tabs."""
    parts["picture"] = gr.Image(
        label="Image: drop, paste or upload one",
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard"],
        height=300,
        elem_id="picture",
        buttons=[],
    )
    parts["picture_message"] = gr.HTML("", elem_id="picture-message")
    names = list(app.examples)
    choices = [*((name, name) for name in names), UPLOADED]
    controls.add("image", gr.Dropdown(choices, value=names[0], label="Example image", elem_id="example"))
    controls.add("question", gr.Textbox(value=DEFAULT.question, label="Question", max_lines=4, elem_id="question"))
    parts["questions"] = gr.Dropdown([], value=None, label="Example questions", elem_id="questions")
    for name, about in (("budget", "tokens that the language model reads"), ("glance", "tokens that are encoded")):
        with gr.Group(elem_classes="stops"):
            slider = gr.Slider(
                0,
                len(SLIDER_STOPS) - 1,
                value=SLIDER_STOPS.index("auto"),
                step=1,
                label=f"{name.capitalize()}: {about}",
                elem_id=f"{name}-stop",
                elem_classes="stop",
            )
            controls.add(f"{name}_stop", slider)
            bold = " style=font-weight:bold"
            ticks = "".join(f"<span{bold * (stop == 'auto')}>{stop}</span>" for stop in SLIDER_STOPS)
            gr.HTML(f"<div class='ticks' id='{name}-ticks'>{ticks}</div>")
    with gr.Accordion("Model, layer, exact budget", open=False):
        models = app.models.names
        controls.add("model", gr.Dropdown(list(models), value=models[0], label="Model", elem_id="model"))
        controls.add(
            "layer", gr.Textbox(value="auto", label="Layer: auto, none, or a folder below --files", elem_id="layer")
        )
        exact = gr.Textbox(value="", label="Exact budget, such as 128, 12.5% or mass 90%", elem_id="budget-words")
        controls.add("budget_words", exact)


def add_ask_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        names = [name for name in selector_names(app.models.embeddings) if name != "oracle"]
        controls.add("selector", gr.Dropdown(names, value="arr-coc", label="Selector", elem_id="selector"))
        controls.add("dense", gr.Checkbox(True, label="Also answer from all tokens", elem_id="dense"))
        parts["ask_go"] = gr.Button("Ask", variant="primary", elem_id="ask-go")
    _add_html(parts, "ask_message", "ask_answer", "ask_dense")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            controls.add(
                "heat", gr.Slider(0, 100, value=DEFAULT.heat, step=5, label="Overlay opacity, percent", elem_id="heat")
            )
            _add_html(parts, "ask_pictures")
        with gr.Column(scale=2, min_width=280):
            _add_html(parts, "ask_facts")


def add_compare_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        several = gr.Dropdown(
            selector_names(app.models.embeddings),
            value=list(DEFAULT.selectors),
            multiselect=True,
            max_choices=MAX_SELECTORS,
            label="Two to four selectors",
            elem_id="selectors",
            scale=3,
        )
        controls.add("selectors", several)
        parts["compare_go"] = gr.Button("Compare", variant="primary", elem_id="compare-go", scale=1)
    _add_html(parts, "compare_message", "compare_note", "compare_columns")
    with gr.Accordion("Mark the answer: draw a box around it", open=True):
        label = "Box: x0, y0, x1, y1 in pixels (empty: the example's own)"
        controls.add("box", gr.Textbox(value="", label=label, elem_id="box"))
        _add_html(parts, "compare_board", js_on_load=BOARD)


def add_channels_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    _add_html(parts, "channels_message")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            with gr.Row(equal_height=True):
                controls.add("channel", gr.Dropdown(list(FULL40), value="edges", label="Channel", elem_id="channel"))
                levels = gr.Slider(0, 10, value=0, step=1, label="Pyramid level", elem_id="level")
                parts["channels_levels"] = controls.add("level", levels)
                controls.add("point", gr.Textbox(value="", label="Point: x, y from 0 to 1", elem_id="point"))
            _add_html(parts, "channels_large", js_on_load=BOARD)
            _add_html(parts, "channels_about")
        with gr.Column(scale=2, min_width=280):
            _add_html(parts, "channels_values")
    _add_html(parts, "channels_gallery", js_on_load=BOARD)
    parts["channels_go"] = gr.Button("Show the channels", elem_id="channels-go")


def add_knowing_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        controls.add("learned", gr.Checkbox(True, label="Use the trained layer", elem_id="learned"))
        parts["knowing_go"] = gr.Button("Show the scores", variant="primary", elem_id="knowing-go")
        parts["knowing_reset"] = gr.Button("Reset the weights", elem_id="knowing-reset")
    _add_html(parts, "knowing_message", "knowing_pictures")
    with gr.Row():
        with gr.Column(min_width=280):
            _add_html(parts, "knowing_bars")
        with gr.Column(min_width=280):
            gr.HTML("<h4>Set by hand</h4>")
            for name in ("exploit", *SCORES):
                label = name if name == "exploit" else f"weight of {name}"
                parts[f"knowing_{name}"] = gr.Slider(0, 1, value=0, step=0.01, label=label, elem_id=f"knowing-{name}")
    controls.add("exploit", gr.Textbox("", visible=False))
    controls.add("weights", gr.Textbox("", visible=False))


def add_report_tab(app: AppState, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        labels = {"report": "A folder that arr-coc eval --report wrote", "against": "A second one to compare with"}
        for name, label in labels.items():
            folder = gr.Dropdown([""], value="", label=label, allow_custom_value=True, elem_id=f"{name}-folder")
            controls.add(name, folder)
        parts["report_go"] = gr.Button("Open", variant="primary", elem_id="report-go")
    _add_html(parts, "report_message", "report_changes", "report_page")


def add_actions(tab: str, parts: Parts) -> None:
    """The link, the Python code and the JSON of a tab's result."""
    with gr.Row(elem_classes="acts"):
        for action, label in (
            ("copy_link", "Copy link"),
            ("copy_python", "Copy as Python"),
            ("save_json", "Save JSON"),
        ):
            name = f"{tab}_{action}"
            parts[name] = gr.Button(label, size="sm", elem_id=name.replace("_", "-"))
    with gr.Accordion("Python code", open=False):
        parts[f"{tab}_python"] = gr.Code("", language="python", show_label=False, elem_id=f"{tab}-python", buttons=[])
    parts[f"{tab}_json"] = gr.Textbox("", visible=False)
    parts[f"{tab}_link"] = gr.Textbox("", visible=False)


def _add_html(parts: Parts, *names: str, **options: Any) -> None:
    for name in names:
        parts[name] = gr.HTML("", elem_id=name.replace("_", "-"), **options)


ADD_TAB = {
    "ask": add_ask_tab,
    "compare": add_compare_tab,
    "channels": add_channels_tab,
    "knowing": add_knowing_tab,
    "report": add_report_tab,
}
