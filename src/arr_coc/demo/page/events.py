"""The page with its events: what each click, key and link starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from arr_coc.demo import markup, tab_ask, tab_channels
from arr_coc.demo.app import AppState, Output, PageRequest
from arr_coc.demo.inputs import check_file_size, find_reports, read_upload
from arr_coc.demo.markup import macros
from arr_coc.demo.page.layout import ADD_TAB, STALE, Controls, Parts, add_actions, add_question_bar, add_side
from arr_coc.demo.page.running import HIDDEN, MODEL, RUN_TAB, PageEvents, describe, read_link
from arr_coc.demo.state import SLIDER_STOPS, PageState, format_weights
from arr_coc.errors import ArrCocError, ImageError
from arr_coc.relevance.realizing import SCORES

GONE = "your own image was dropped when the page was reloaded: send it again, or choose an example"


def build_page(app: AppState, uploads: Path) -> tuple[gr.Blocks, PageEvents]:
    """The page and its events; `uploads` is the folder into which gradio puts uploaded files."""
    controls, parts = Controls(), Parts()
    with gr.Blocks(title="ARR-COC", analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)) as page:
        with gr.Row(elem_id="head"):
            gr.HTML(macros.header())
            theme = gr.Button("◐", size="sm", scale=0, min_width=44, elem_id="theme")
        with gr.Column(elem_id="desk"):
            add_question_bar(controls, parts)
            with gr.Tabs(selected="ask", elem_id="tabs") as bar:
                tabs = {}
                for name, add_tab in ADD_TAB.items():
                    shown = name != "find" or app.index is not None
                    with gr.Tab(name.capitalize(), id=name, elem_id=f"tab-{name}", visible=shown) as tabs[name]:
                        parts.add_html(f"{name}_message")
                        gr.HTML(macros.stale(STALE[name]), elem_classes="stale-block")
                        add_tab(app, controls, parts)
                        add_actions(name, parts)
            add_side(app, controls, parts)
        gr.HTML(macros.footer())
        parts.add_html(
            "bridge", js_on_load=f"arrcoc.bridge(trigger, {app.limits.megabytes * 1e6:.0f})", visible="hidden"
        )
        theme.click(None, js="() => { arrcoc.theme(); }")
        events = PageEvents(app, controls, parts, page)
        connect_image(events, uploads)
        connect_tabs(events, tabs)
        connect_budgets(events)
        connect_channels(events)
        connect_knowing(events)
        connect_actions(events)
        connect_links(events, bar)
        connect_stale_marks(events)

        def leave(request: gr.Request) -> None:
            app.sessions.remove(request.session_hash)

        page.unload(leave)
    events.components = frozenset(page.blocks)
    page.queue(max_size=app.limits.queue, default_concurrency_limit=4)
    return page, events


def connect_image(events: PageEvents, uploads: Path) -> None:
    """Upload, remove and choose an image, and draw a box on it."""
    inputs, parts, app = events.controls, events.parts, events.app
    image, question, box = inputs["image"], inputs["question"], inputs["box"]
    message, board, picture = parts["picture_message"], parts["compare_board"], parts["picture"]

    def refuse(request: gr.Request, reason: str) -> tuple[Any, ...]:
        """No image: neither the refused one nor the last one is what the user sees."""
        app.sessions.get(request.session_hash).set_upload(None)
        return "", None, reason, "", macros.questions([])

    def upload(request: gr.Request, file: Any) -> tuple[Any, ...]:
        def store(page_request: PageRequest) -> Output:
            if not isinstance(file, dict) or not file.get("path"):
                raise ImageError("no image arrived: send a PNG, JPEG or WebP file")
            found = read_upload(Path(file["path"]), str(file.get("orig_name") or ""), uploads, app.limits)
            page_request.session.set_upload(found)
            return {"board": markup.box_editor(found.image, ())}

        found = events.change_image(store, PageState(image=""), request)
        if "board" not in found:
            return refuse(request, found["message"])
        return "", gr.skip(), "", found["board"], macros.questions([])

    sent = [image, picture, message, board, parts["questions"]]
    picture.upload(upload, [picture], sent, preprocess=False, show_progress="minimal", api_name="send")

    def refuse_large(request: gr.Request, event: gr.EventData) -> tuple[Any, ...]:
        name, size = str(event._data.get("name", ""))[:80], float(event._data.get("size", 0))
        try:
            check_file_size(name, size, app.limits)
        except ImageError as error:
            return refuse(request, markup.alert(str(error)))
        return (gr.skip(),) * len(sent)

    parts["bridge"].input(refuse_large, None, sent, **HIDDEN)

    def remove(request: gr.Request) -> tuple[Any, ...]:
        app.sessions.get(request.session_hash).set_upload(None)
        return "", "", macros.questions([])

    picture.clear(remove, None, [image, board, parts["questions"]], queue=False, api_visibility="private")
    for event in (picture.upload, picture.clear):
        event(None, None, None, js="() => { arrcoc.touch(); }")

    def look_at(event: gr.SelectData) -> str:
        return ", ".join(f"{float(side):.0f}" for side in event.index[:2])

    picture.select(look_at, None, [inputs["gaze"]], queue=False, **HIDDEN)

    def choose(request: gr.Request, image: str) -> tuple[Any, ...]:
        state = PageState(image=image or "", question="")
        known = app.request(request.session_hash, state).known_questions
        first = known[0] if known else ""
        found = events.change_image(_shown_image, replace(state, question=first), request)
        shown = found.get("picture"), macros.questions(known), first or gr.skip(), ""
        return *shown, found["message"], found.get("board", "")

    chosen = [picture, parts["questions"], question, box, message, board]
    image.input(choose, [image], chosen, show_progress="hidden", api_name="choose")

    def show_box(request: gr.Request, name: str, asked: str, text: str) -> tuple[Any, ...]:
        state = PageState(image=name or "", question=asked or "", box=text or "")
        found = events.change_image(_shown_image, state, request)
        return found["message"] if text else "", found.get("board", gr.skip())

    def draw_box(request: gr.Request, event: gr.EventData, name: str, asked: str) -> tuple[Any, ...]:
        text = ", ".join(f"{float(side):.0f}" for side in event._data.get("box", ())[:4])
        return text, *show_box(request, name, asked, text)

    marked = [parts["compare_message"], board]
    board.select(draw_box, [image, question], [box, *marked], **HIDDEN)
    for event in (box.submit, box.blur, question.blur):
        event(show_box, [image, question, box], marked, **HIDDEN)


def connect_tabs(events: PageEvents, tabs: dict[str, Any]) -> None:
    """Each tab's button, Enter in the question, example questions, and the tabs that run when they are opened."""
    inputs, parts = events.controls, events.parts
    for name in RUN_TAB:
        public: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "public", "api_name": name}
        events.run_on(parts[f"{name}_go"].click, name, **public)
        tabs[name].select(None, None, [events.tab], js=f"() => arrcoc.open('{name}')")
    for name in ("channels", "knowing"):
        events.run_on(tabs[name].select, name, opened=True, show_progress="minimal")

    def list_reports() -> list[Any]:
        return [gr.update(choices=["", *find_reports(events.app.root)])] * 2

    tabs["report"].select(list_reports, None, [inputs["report"], inputs["against"]], **HIDDEN)
    events.run_named_on(inputs["question"].submit, events.tab)
    events.run_on(inputs["find"].submit, "find", show_progress="minimal")

    def read_question(event: gr.EventData) -> Any:
        return str(event._data.get("question") or "") or gr.skip()

    options = {"queue": False, **HIDDEN}
    events.run_named_on(
        parts["questions"].select(read_question, None, [inputs["question"]], **options).then, events.tab
    )
    inputs["channel"].change(None, [inputs["channel"]], None, js="(name) => { arrcoc.press(name); }")
    inputs["heat"].change(None, [inputs["heat"]], None, js="(percent) => { viewer.heat(percent / 100); }")


def connect_budgets(events: PageEvents) -> None:
    """The switches and sliders write the exact budget and glance. The budget's show at once which cells are kept."""
    parts, controls = events.parts, events.controls
    stops = json.dumps(SLIDER_STOPS)
    for name in ("budget", "glance"):
        exact, slider, auto = controls[name], parts[f"{name}_stop"], parts[f"{name}_auto"]
        slider.input(None, [slider], [exact, auto], js=f"(stop) => [{stops}[stop], false]")
        auto.input(None, [auto, slider], [exact], js=f"(on, stop) => on ? 'auto' : {stops}[stop]")
        sync = f"(text, on, stop) => arrcoc.budget('{name}', text, stop, {stops})"
        exact.change(None, [exact, auto, slider], [auto, slider], js=sync)

    def preview(request: gr.Request, tab: str, stop: Any, auto: Any, *values: Any) -> Iterator[Any]:
        def make_state() -> PageState:
            return controls.to_state(tab, values)

        if tab == "ask":
            try:
                page_request = events.app.request(request.session_hash, make_state())
                for output in tab_ask.run_preview(page_request):
                    yield events.by_component(tab, output)
            except Exception as error:
                yield {parts["ask_live"]: "", parts["ask_message"]: describe(error)}
            finally:
                events.free_outputs(request.session_hash)
        elif tab == "knowing":
            yield from events.run_tab(tab, RUN_TAB[tab], request, make_state)
        else:
            yield {parts["ask_live"]: gr.skip()}

    place = controls.names().index("budget")
    inputs = [events.tab, parts["budget_stop"], parts["budget_auto"], *controls.inputs()]
    outputs = [parts["ask_live"], parts["ask_message"], *events.outputs("knowing")]
    signed = {tab: events.places(tab) for tab in ("ask", "knowing")}
    for event, on in ((parts["budget_stop"].input, "false"), (parts["budget_auto"].input, "auto")):
        script = (
            "(tab, stop, auto, ...values) => { "
            f"values[{place}] = {on} ? 'auto' : {stops}[stop]; "
            f"arrcoc.preview(tab, values, {signed['ask']}, {signed['knowing']}); return [tab, stop, auto, ...values]; }}"
        )
        event(preview, inputs, outputs, js=script, trigger_mode="always_last", **MODEL, **HIDDEN)

    def read_budget(event: gr.EventData) -> Any:
        return str(event._data.get("budget") or "") or gr.skip()

    options = {"queue": False, **HIDDEN}
    chosen = parts["ask_strip"].select(read_budget, None, [controls["budget"]], **options)
    events.run_on(chosen.then, "ask", show_progress="minimal")


def connect_channels(events: PageEvents) -> None:
    """Another channel, level or point. The gallery stays as it is."""
    inputs, parts = events.controls, events.parts

    def run_without_gallery(request: PageRequest) -> Iterator[Output]:
        return tab_channels.run(request, gallery=False)

    def show_on(event: Any) -> None:
        events.run_on(event, "channels", run_without_gallery, trigger_mode="always_last")

    for event in (inputs["channel"].input, inputs["level"].release, inputs["point"].submit):
        show_on(event)

    def read_tile(event: gr.EventData) -> Any:
        return event._data.get("channel") or gr.skip()

    def read_point(event: gr.EventData) -> Any:
        return ", ".join(f"{float(side):.4f}" for side in event._data.get("point", ())[:2]) or gr.skip()

    show_on(parts["channels_gallery"].select(read_tile, None, [inputs["channel"]], queue=False, **HIDDEN).then)
    show_on(parts["channels_large"].select(read_point, None, [inputs["point"]], queue=False, **HIDDEN).then)


def connect_knowing(events: PageEvents) -> None:
    """Sliders that set the weights by hand, and the button that resets them."""
    parts = events.parts
    exploit, weights = events.controls["exploit"], events.controls["weights"]

    def show_on(event: Any) -> None:
        events.run_on(event, "knowing", trigger_mode="always_last")

    def set_exploit(value: float) -> tuple[str, str]:
        return f"{float(value):g}", ""  # the weights depend on it: they are computed again

    def set_weights(*values: float) -> str:
        return format_weights({way: round(float(value), 2) for way, value in zip(SCORES, values, strict=True)})

    options = {"queue": False, **HIDDEN}
    slider, reset = parts["knowing_exploit"], parts["knowing_reset"]
    show_on(slider.release(set_exploit, [slider], [exploit, weights], **options).then)
    sliders = [parts[f"knowing_{way}"] for way in SCORES]
    for slider in sliders:
        show_on(slider.release(set_weights, sliders, [weights], **options).then)
    show_on(reset.click(lambda: ("", ""), None, [exploit, weights], **options).then)
    show_on(events.controls["learned"].input)


def connect_actions(events: PageEvents) -> None:
    """The buttons below each tab."""
    for name in RUN_TAB:
        for action, source, call in (
            ("copy_link", "link", f"arrcoc.copy(arrcoc.link(text), '{name}-copy-link')"),
            ("copy_python", "python", f"arrcoc.copy(text, '{name}-copy-python')"),
            ("save_json", "json", f"arrcoc.saveText(text, 'arr-coc-{name}.json')"),
        ):
            button, text = events.parts[f"{name}_{action}"], events.parts[f"{name}_{source}"]
            button.click(None, [text], None, js=f"(text) => {{ {call}; }}")


def connect_links(events: PageEvents, bar: Any) -> None:
    """Restore the state of a link when the page is opened or left by Back: controls, image, tab; then run the tab."""
    controls, parts = events.controls, events.parts
    wanted, restored = gr.Textbox("", visible=False), gr.Textbox("", visible=False)  # the tab to run; the step
    names = ("picture", "compare_board", "picture_message", "questions")
    outputs = [*controls.inputs(), *(parts[name] for name in names), bar, events.tab, wanted, restored]

    def load(request: gr.Request) -> dict[Any, Any]:
        query = dict(request.query_params) if request.query_params is not None else {}
        found, state = _restore(events, query, request)
        found[bar] = gr.update(selected=state.tab)
        return found | {
            events.tab: state.tab,
            restored: "",
            wanted: "" if found[parts["picture_message"]] else state.tab,
        }

    def go_back(request: gr.Request, event: gr.EventData) -> dict[Any, Any]:
        link = str(event._data.get("query") or "")
        found, state = _restore(events, dict(parse_qsl(link[1:], keep_blank_values=True)), request)
        known = event._data.get("shown") or {}
        shown = isinstance(known, dict) and known.get(state.tab) == link
        found[bar] = gr.update(selected=state.tab)
        found |= {events.tab: state.tab, restored: str(event._data.get("step") or "0")}
        return found | {wanted: "" if shown or found[parts["picture_message"]] else state.tab}

    def start(request: gr.Request, tab: str, *values: Any) -> Iterator[Any]:
        """Run the tab that the page opens with. The start without a link is the same for all users."""
        if tab not in RUN_TAB:
            yield {parts["ask_message"]: gr.skip()}
            return
        usual = events.controls.from_state(replace(PageState(), model=events.app.models.names[0]))
        first = "ask" if tab == "ask" and list(values) == list(usual.values()) else ""
        yield from events.run_tab(tab, RUN_TAB[tab], request, lambda: controls.to_state(tab, values), first)

    def start_timing(request: gr.Request, tab: str, link: str) -> Iterator[Any]:
        if tab != "ask" or not link:
            yield {parts["ask_message"]: gr.skip()}
            return
        first = "timing" if read_link(link) == PageState() else ""
        yield from events.run_tab("ask", tab_ask.run_timing, request, lambda: read_link(link), first)

    note = f"(tab, ...links) => {{ arrcoc.note(links[{list(RUN_TAB)}.indexOf(tab)]); }}"
    loaded = events.page.load(load, None, outputs, **HIDDEN)
    loaded.then(None, [events.tab], None, js="(tab) => { arrcoc.start(tab); }")
    ran = loaded.then(
        start, [wanted, *controls.inputs()], events.outputs(*RUN_TAB), js=events.begin_named, **MODEL, **HIDDEN
    )
    noted = ran.then(None, [wanted, *events.links], None, js=note)
    noted.then(start_timing, [wanted, parts["ask_link"]], events.outputs("ask"), **MODEL, **HIDDEN)
    # Back twice while the first one waits for the model: gradio would drop the second. One at a time keeps their order, and
    # the page knows which press was the last one.
    in_order: dict[str, Any] = {"trigger_mode": "multiple", "concurrency_limit": 1, "concurrency_id": "back"}
    back = parts["bridge"].select(go_back, None, outputs, **in_order, **HIDDEN)
    seen = back.then(None, [restored], None, js="(step) => { arrcoc.receive(step); }")
    events.run_named_on(seen.then, wanted, trigger_mode="multiple", js=events.begin_restored)

    def interrupt(request: gr.Request) -> None:
        events.app.sessions.get(request.session_hash).interrupts += 1

    triggers = (parts["ask_go"].click, controls["question"].submit, parts["questions"].select)
    others = (parts["ask_strip"].select, parts["bridge"].select, parts["budget_stop"].input, parts["budget_auto"].input)
    for event in (*triggers, *others):  # what a user waits for comes before timings
        event(interrupt, None, None, queue=False, **HIDDEN)


def _restore(events: PageEvents, query: Mapping[str, str], request: gr.Request) -> tuple[dict[Any, Any], PageState]:
    """The values of the controls and the image that a link stands for."""
    parts, app, problem = events.parts, events.app, ""
    try:
        state = PageState.from_query(query)
    except ArrCocError as error:
        state, problem = PageState(), f"this link cannot be read: {error}"
    own = not state.image
    if own and app.sessions.get(request.session_hash).upload is None:
        problem = problem or GONE
    elif not own and state.image not in app.examples:
        problem = problem or f"the link's image {state.image[:60]!r} is not available: choose another one"
        state, own = replace(state, image=""), True
    shown = {} if own and problem else events.change_image(_shown_image, state, request)
    known = app.request(request.session_hash, state).known_questions
    values = events.controls.from_state(replace(state, model=state.model or app.models.names[0]))
    return {events.controls[name]: value for name, value in values.items()} | {
        parts["picture"]: shown.get("picture"),
        parts["compare_board"]: shown.get("board", ""),
        parts["picture_message"]: markup.alert(problem) if problem else shown.get("message", ""),
        parts["questions"]: macros.questions(known),
    }, state


def connect_stale_marks(events: PageEvents) -> None:
    """Any change of a setting marks the results that it makes stale, in the browser."""
    changes = [control.change for control in events.controls.values()]
    gr.on(
        changes,
        None,
        events.controls.inputs(),
        None,
        js=f"(...values) => {{ arrcoc.check(values, {events.all_places}); }}",
    )


def _shown_image(request: PageRequest) -> Output:
    image = request.image.image
    boxes = [box for group in request.evidence for box in group]
    return {"picture": image, "board": markup.box_editor(image, boxes)}
