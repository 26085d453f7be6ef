"""The whole page: controls on the left, tabs on the right, and every event between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from arr_coc.demo import channels, drawing, knowing
from arr_coc.demo.folders import reports
from arr_coc.demo.page import tabs
from arr_coc.demo.page.controls import Controls, shared, updates
from arr_coc.demo.page.wiring import LOGIC, Wiring, another, board, questions
from arr_coc.demo.uploads import read_upload
from arr_coc.demo.views import View, from_query, written
from arr_coc.demo.visit import House, Visit
from arr_coc.errors import ArrCocError, ImageError
from arr_coc.relevance.balancing import WAYS

HEAD = "<header class='top'><h1>ARR-COC</h1><p>a model reads only the visual tokens that matter: which, and why</p></header>"
# One question at a time, in turn. Values come as they were sent, because what is wrong with them is said here, not by gradio.
MODEL: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model", "preprocess": False}
VISIT = "(query) => { arrcoc.visit(query); }"
ABOUT = (
    "<p class='told'>A link leads back to an example with all settings. A picture of your own stays with you: "
    "it is in no link, and it is forgotten when you leave.</p>"
)


def build(house: House, uploads: Path) -> gr.Blocks:
    """The page; `uploads` is the folder that gradio puts uploaded files into."""
    controls = Controls()
    parts: dict[str, Any] = {}
    with gr.Blocks(title="ARR-COC", analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)) as page:
        with gr.Row():
            gr.HTML(HEAD)
            theme = gr.Button("Dark / light", size="sm", scale=0, min_width=110, elem_id="theme")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                parts |= shared(house, controls)
            with gr.Column(scale=3, min_width=320), gr.Tabs(selected="ask", elem_id="tabs") as bar:
                places = {}
                for name, make in tabs.TABS.items():
                    with gr.Tab(name.capitalize(), id=name, elem_id=f"tab-{name}") as places[name]:
                        make(house, controls, parts)
        gr.HTML(ABOUT)
        tab = gr.Textbox("ask", visible=False)
        opened = gr.Textbox("", visible=False)  # the tab that a link wants run
        wiring = Wiring(house, controls, parts)
        theme.click(None, js="() => { arrcoc.theme(); }")
        _pictures(wiring, uploads)
        _tabs(wiring, tab, places)
        _channels(wiring)
        _knowing(wiring)
        _actions(wiring)
        _opening(page, wiring, bar, tab, opened)
        page.unload(_leaving(house))
    wiring.belongs_to(page)
    page.queue(max_size=house.limits.queue, default_concurrency_limit=4)
    return page


def _leaving(house: House) -> Any:
    def leave(request: gr.Request) -> None:
        house.desks.leave(request.session_hash)

    return leave


def _pictures(wiring: Wiring, uploads: Path) -> None:
    """A picture comes, goes, or is chosen; the board of Compare shows it."""
    controls, parts, house = wiring.controls, wiring.parts, wiring.house
    image, outputs = controls.parts["image"], [parts["picture_told"], parts["compare_board"]]

    def sent(request: gr.Request, raw: Any) -> tuple[Any, ...]:
        def put(visit: Visit) -> dict[str, Any]:
            if not isinstance(raw, dict) or not raw.get("path"):
                raise ImageError("no picture arrived: send a PNG, JPEG or WebP file")
            found = read_upload(Path(raw["path"]), str(raw.get("orig_name") or ""), uploads, house.limits)
            visit.desk.put(found)
            return {"board": board(house.visit(request.session_hash, View(image="")))}

        made = wiring.quietly(put, View(image=""), request)
        if "board" not in made:  # the last picture is not what the visitor sees now
            house.desks.of(request.session_hash).put(None)
        return "", made["picture_told"], made.get("board", "")

    parts["picture"].upload(
        sent, [parts["picture"]], [image, *outputs], preprocess=False, show_progress="minimal", api_name="send"
    )

    def gone(request: gr.Request) -> tuple[Any, ...]:
        house.desks.of(request.session_hash).put(None)
        return "", "", ""

    parts["picture"].clear(gone, None, [image, *outputs], queue=False, api_visibility="private")

    def chosen(request: gr.Request, name: str) -> tuple[Any, ...]:
        def show(visit: Visit) -> dict[str, Any]:
            known = questions(visit)
            return {"picture": visit.subject.image, "board": board(visit), "known": known}

        view = View(image=name or "", question="")
        known = questions(house.visit(request.session_hash, view))
        made = wiring.quietly(show, another(view, question=known[0] if known else ""), request)
        picked = known[0] if known else gr.skip()
        return (
            made.get("picture"), gr.update(choices=known, value=None), picked, "", made["picture_told"],
            made.get("board", ""),
        )  # fmt: skip

    image.input(
        chosen, [image], [parts["picture"], parts["questions"], controls.parts["question"], controls.parts["box"], *outputs],
        show_progress="hidden", api_name="choose",
    )  # fmt: skip
    parts["questions"].input(
        lambda asked: asked or gr.skip(), [parts["questions"]], [controls.parts["question"]], queue=False,
        api_visibility="private",
    )  # fmt: skip

    def boxed(request: gr.Request, name: str, question: str, box: str) -> tuple[Any, ...]:
        made = wiring.quietly(
            lambda visit: {"board": board(visit)},
            View(image=name or "", question=question or "", box=box or ""),
            request,
        )
        return made["picture_told"], made.get("board", gr.skip())

    def drawn(request: gr.Request, event: gr.EventData, name: str, question: str) -> tuple[Any, ...]:
        sides = [float(side) for side in event._data.get("box", ())][:4]
        text = ", ".join(f"{side:.0f}" for side in sides)
        return text, *boxed(request, name, question, text)

    asked = [image, controls.parts["question"]]
    parts["compare_board"].select(
        drawn, asked, [controls.parts["box"], *outputs], show_progress="hidden", api_visibility="private"
    )
    for event in (controls.parts["box"].submit, controls.parts["box"].blur, controls.parts["question"].blur):
        event(boxed, [*asked, controls.parts["box"]], outputs, show_progress="hidden", api_visibility="private")


def _tabs(wiring: Wiring, tab: Any, places: dict[str, Any]) -> None:
    """Every tab's own button; return in the question; and what opens by itself."""
    controls, parts = wiring.controls, wiring.parts
    for name in LOGIC:
        done = parts[f"{name}_go"].click(
            wiring.handler(name), controls.inputs, wiring.outputs(name), show_progress="minimal", api_name=name, **MODEL
        )
        done.then(None, [parts[f"{name}_link"]], None, js=VISIT)
        places[name].select(None, None, [tab], js=f"() => '{name}'")
    for name in ("channels", "knowing"):
        opened = places[name].select(
            wiring.handler(name), controls.inputs, wiring.outputs(name), show_progress="minimal", api_visibility="private",
            **MODEL,
        )  # fmt: skip
        opened.then(None, [parts[f"{name}_link"]], None, js=VISIT)

    def folders() -> list[Any]:
        return [gr.update(choices=["", *reports(wiring.house.root)])] * 2

    fields = [controls.parts["report"], controls.parts["against"]]
    places["report"].select(folders, None, fields, show_progress="hidden", api_visibility="private")
    entered = controls.parts["question"].submit(
        wiring.current(), [tab, *controls.inputs], wiring.outputs(*LOGIC), show_progress="minimal",
        api_visibility="private", **MODEL,
    )  # fmt: skip
    links = [parts[f"{name}_link"] for name in LOGIC]
    entered.then(
        None, [tab, *links], None, js=f"(tab, ...links) => {{ arrcoc.visit(links[{list(LOGIC)}.indexOf(tab)]); }}"
    )
    for name in ("budget", "glance"):
        slider = controls.parts[f"{name}_stop"]
        slider.change(None, [slider], None, js=f"(number) => {{ arrcoc.stop('{name}', number); }}")
    controls.parts["channel"].change(None, [controls.parts["channel"]], None, js="(name) => { arrcoc.press(name); }")
    controls.parts["heat"].change(None, [controls.parts["heat"]], None, js="(percent) => { arrcoc.heat(percent); }")


def _channels(wiring: Wiring) -> None:
    """Another channel, level or point: the small ones stay as they are."""
    controls, parts = wiring.controls, wiring.parts
    again = wiring.handler("channels", lambda visit: channels.channels(visit, gallery=False))
    outputs = wiring.outputs("channels")

    def show(event: Any) -> None:
        done = event(
            again, controls.inputs, outputs, show_progress="hidden", trigger_mode="always_last", api_visibility="private",
            **MODEL,
        )  # fmt: skip
        done.then(None, [parts["channels_link"]], None, js=VISIT)

    for event in (controls.parts["channel"].input, controls.parts["level"].release, controls.parts["point"].submit):
        show(event)

    def tile(event: gr.EventData) -> Any:
        return event._data.get("channel") or gr.skip()

    def point(event: gr.EventData) -> Any:
        return ", ".join(f"{float(side):.4f}" for side in event._data.get("point", ())[:2]) or gr.skip()

    for part, read, target in (
        (parts["channels_gallery"], tile, controls.parts["channel"]), (parts["channels_large"], point, controls.parts["point"])
    ):  # fmt: skip
        show(part.select(read, None, [target], show_progress="hidden", queue=False, api_visibility="private").then)


def _knowing(wiring: Wiring) -> None:
    """Sliders that were moved are the visitor's; all of them go back with one button."""
    controls, parts = wiring.controls, wiring.parts
    exploit, weights = controls.parts["exploit"], controls.parts["weights"]
    outputs = wiring.outputs("knowing")

    def run(event: Any) -> None:
        done = event(
            wiring.handler("knowing", knowing.know), controls.inputs, outputs, show_progress="hidden",
            trigger_mode="always_last", api_visibility="private", **MODEL,
        )  # fmt: skip
        done.then(None, [parts["knowing_link"]], None, js=VISIT)

    def tension(value: float) -> tuple[str, str]:
        return f"{float(value):g}", ""  # the weights follow the tension

    def weigh(*values: float) -> str:
        return written({way: round(float(value), 2) for way, value in zip(WAYS, values, strict=True)})

    sliders = [parts[f"knowing_{way}"] for way in WAYS]
    run(parts["knowing_exploit"].release(
        tension, [parts["knowing_exploit"]], [exploit, weights], queue=False, api_visibility="private"
    ).then)  # fmt: skip
    for slider in sliders:
        run(slider.release(weigh, sliders, [weights], queue=False, api_visibility="private").then)
    run(
        parts["knowing_reset"]
        .click(lambda: ("", ""), None, [exploit, weights], queue=False, api_visibility="private")
        .then
    )
    run(controls.parts["learned"].input)


def _actions(wiring: Wiring) -> None:
    parts = wiring.parts
    for name in LOGIC:
        parts[f"{name}_copy_link"].click(
            None, [parts[f"{name}_link"]], None, js=f"(q) => {{ arrcoc.copy(arrcoc.link(q), '{name}-copy-link'); }}"
        )
        parts[f"{name}_copy_python"].click(
            None, [parts[f"{name}_python"]], None, js=f"(code) => {{ arrcoc.copy(code, '{name}-copy-python'); }}"
        )
        parts[f"{name}_save_json"].click(
            None, [parts[f"{name}_json"]], None, js=f"(text) => {{ arrcoc.save(text, 'arr-coc-{name}.json'); }}"
        )


def _opening(page: gr.Blocks, wiring: Wiring, bar: Any, tab: Any, opened: Any) -> None:
    """A link's view: its controls, its picture, its tab, and then its answer."""
    controls, parts, house = wiring.controls, wiring.parts, wiring.house

    def load(request: gr.Request) -> dict[Any, Any]:
        told = ""
        query = dict(request.query_params) if request.query_params is not None else {}
        try:
            view = from_query(query)
        except ArrCocError as error:
            view, told = View(), f"This link is not quite right: {error}."
        if view.image == "" or view.image not in house.examples:
            if "image" in query:
                told = told or f"The link's picture {view.image[:60]!r} is not here: choose another, or send yours."
            view = another(view, image=next(iter(house.examples)))
        if "image" not in query and view.image != View().image:
            view = another(view, question=View().question)
        visit = house.visit(request.session_hash, view)
        made = wiring.quietly(lambda visit: {"picture": visit.subject.image, "board": board(visit)}, view, request)
        shown: dict[Any, Any] = updates(controls, another(view, model=view.model or house.shelf.names[0]))
        shown |= {
            parts["picture"]: made.get("picture"), parts["compare_board"]: made.get("board", ""),
            parts["picture_told"]: drawing.told(told, "alert") if told else made["picture_told"],
            parts["questions"]: gr.update(choices=questions(visit), value=None),
            bar: gr.update(selected=view.tab), tab: view.tab, opened: view.tab if "tab" in query else "",
        }  # fmt: skip
        return shown

    outputs = [
        *controls.inputs,
        parts["picture"],
        parts["compare_board"],
        parts["picture_told"],
        parts["questions"],
        bar,
        tab,
        opened,
    ]
    ready = page.load(load, None, outputs, show_progress="hidden", api_visibility="private")

    def run(request: gr.Request, wanted: str, *values: Any) -> Iterator[Any]:
        yield from wiring.current()(request, wanted, *values)

    ready.then(
        run,
        [opened, *controls.inputs],
        wiring.outputs(*LOGIC),
        show_progress="minimal",
        api_visibility="private",
        **MODEL,
    )
