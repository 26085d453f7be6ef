"""The five tabs: what stands in each of them."""

from __future__ import annotations

from typing import Any

import gradio as gr

from arr_coc.demo.comparing import choices
from arr_coc.demo.page.controls import Controls
from arr_coc.demo.views import MOST_SELECTORS, View
from arr_coc.demo.visit import House
from arr_coc.relevance.balancing import WAYS
from arr_coc.texture import FULL40

BOARD = "arrcoc.board(element, trigger)"

Parts = dict[str, Any]


def ask(house: House, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        names = [name for name in choices(house.shelf.embeddings) if name != "oracle"]
        controls.add("selector", gr.Dropdown(names, value="arr-coc", label="Selector", elem_id="selector"))
        controls.add("dense", gr.Checkbox(True, label="Also read all tokens, to compare", elem_id="dense"))
        parts["ask_go"] = gr.Button("Ask", variant="primary", elem_id="ask-go")
    parts["ask_told"] = gr.HTML("", elem_id="ask-told")
    parts["ask_answer"] = gr.HTML("", elem_id="ask-answer")
    parts["ask_dense"] = gr.HTML("", elem_id="ask-dense")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            controls.add("heat", gr.Slider(0, 100, value=View().heat, step=5, label="Heat, percent", elem_id="heat"))
            parts["ask_pictures"] = gr.HTML("", elem_id="ask-pictures")
        with gr.Column(scale=2, min_width=280):
            parts["ask_facts"] = gr.HTML("", elem_id="ask-facts")
    actions("ask", parts)


def compare(house: House, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        several = gr.Dropdown(
            choices(house.shelf.embeddings), value=list(View().selectors), multiselect=True, max_choices=MOST_SELECTORS,
            label="Two to four selectors", elem_id="selectors", scale=3,
        )  # fmt: skip
        controls.add("selectors", several)
        parts["compare_go"] = gr.Button("Compare", variant="primary", elem_id="compare-go", scale=1)
    parts["compare_told"] = gr.HTML("", elem_id="compare-told")
    parts["compare_note"] = gr.HTML("", elem_id="compare-note")
    parts["compare_columns"] = gr.HTML("", elem_id="compare-columns")
    with gr.Accordion("Where the answer stands: draw a box", open=True):
        controls.add(
            "box",
            gr.Textbox(value="", label="Box: x0, y0, x1, y1 in pixels; empty: as the example knows", elem_id="box"),
        )
        parts["compare_board"] = gr.HTML("", elem_id="compare-board", js_on_load=BOARD)
    actions("compare", parts)


def channels(house: House, controls: Controls, parts: Parts) -> None:
    parts["channels_told"] = gr.HTML("", elem_id="channels-told")
    with gr.Row():
        with gr.Column(scale=3, min_width=300):
            with gr.Row(equal_height=True):
                controls.add("channel", gr.Dropdown(list(FULL40), value="edges", label="Channel", elem_id="channel"))
                parts["channels_levels"] = controls.add(
                    "level", gr.Slider(0, 10, value=0, step=1, label="Pyramid level", elem_id="level")
                )
                controls.add("point", gr.Textbox(value="", label="Point: x, y from 0 to 1", elem_id="point"))
            parts["channels_large"] = gr.HTML("", elem_id="channels-large", js_on_load=BOARD)
            parts["channels_about"] = gr.HTML("", elem_id="channels-about")
        with gr.Column(scale=2, min_width=280):
            parts["channels_values"] = gr.HTML("", elem_id="channels-values")
    parts["channels_gallery"] = gr.HTML("", elem_id="channels-gallery", js_on_load=BOARD)
    parts["channels_go"] = gr.Button("Show the channels", elem_id="channels-go")
    actions("channels", parts)


def knowing(house: House, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        controls.add("learned", gr.Checkbox(True, label="Use the learned layer", elem_id="learned"))
        parts["knowing_go"] = gr.Button("Show what is known", variant="primary", elem_id="knowing-go")
        parts["knowing_reset"] = gr.Button("As found", elem_id="knowing-reset")
    parts["knowing_told"] = gr.HTML("", elem_id="knowing-told")
    parts["knowing_pictures"] = gr.HTML("", elem_id="knowing-pictures")
    with gr.Row():
        with gr.Column(min_width=280):
            parts["knowing_bars"] = gr.HTML("", elem_id="knowing-bars")
        with gr.Column(min_width=280):
            gr.HTML("<h4>By hand</h4>")
            parts["knowing_exploit"] = gr.Slider(0, 1, value=0, step=0.01, label="exploit", elem_id="knowing-exploit")
            for way in WAYS:
                parts[f"knowing_{way}"] = gr.Slider(
                    0, 1, value=0, step=0.01, label=f"weight of {way}", elem_id=f"knowing-{way}"
                )
    controls.add("exploit", gr.Textbox("", visible=False))
    controls.add("weights", gr.Textbox("", visible=False))
    actions("knowing", parts)


def report(house: House, controls: Controls, parts: Parts) -> None:
    with gr.Row(equal_height=True):
        for name, label in (
            ("report", "A folder that arr-coc eval --report wrote"),
            ("against", "Another run, to compare"),
        ):
            field = gr.Dropdown([""], value="", label=label, allow_custom_value=True, elem_id=f"{name}-folder")
            controls.add(name, field)
        parts["report_go"] = gr.Button("Open", variant="primary", elem_id="report-go")
    parts["report_told"] = gr.HTML("", elem_id="report-told")
    parts["report_changes"] = gr.HTML("", elem_id="report-changes")
    parts["report_page"] = gr.HTML("", elem_id="report-page")
    actions("report", parts)


def actions(tab: str, parts: Parts) -> None:
    """The link, the Python and the JSON of what a tab shows."""
    with gr.Row(elem_classes="acts"):
        parts[f"{tab}_copy_link"] = gr.Button("Copy link", size="sm", elem_id=f"{tab}-copy-link")
        parts[f"{tab}_copy_python"] = gr.Button("Copy as Python", size="sm", elem_id=f"{tab}-copy-python")
        parts[f"{tab}_save_json"] = gr.Button("Download JSON", size="sm", elem_id=f"{tab}-save-json")
    with gr.Accordion("As Python", open=False):
        parts[f"{tab}_python"] = gr.Code("", language="python", show_label=False, elem_id=f"{tab}-python", buttons=[])
    parts[f"{tab}_json"] = gr.Textbox("", visible=False)
    parts[f"{tab}_link"] = gr.Textbox("", visible=False)


TABS = {"ask": ask, "compare": compare, "channels": channels, "knowing": knowing, "report": report}
