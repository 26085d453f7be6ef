"""The page with its events. Every error is shown as one sentence in the page."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from arr_coc.demo import markup, tab_ask, tab_channels, tab_compare, tab_knowing, tab_report
from arr_coc.demo.app import AppState, Output, PageRequest
from arr_coc.demo.inputs import check_file_size, find_reports, read_upload
from arr_coc.demo.markup import macros
from arr_coc.demo.page.layout import ADD_TAB, STALE, Controls, Parts, add_actions, add_question_bar, add_side
from arr_coc.demo.security import hide_paths
from arr_coc.demo.session import trim_memory
from arr_coc.demo.state import SLIDER_STOPS, PageState, format_weights
from arr_coc.errors import ArrCocError, ImageError, first_line
from arr_coc.relevance.balancing import SCORES

SHOW_LINK = "(query) => { arrcoc.visit(query); }"
# Requests that use a model run one at a time. gradio does not check their values: the errors would not reach the page.
MODEL: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model", "preprocess": False}
HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
RunTab = Callable[[PageRequest], Iterator[Output]]
RUN_TAB: dict[str, RunTab] = {
    "ask": tab_ask.run,
    "compare": tab_compare.run,
    "channels": tab_channels.run,
    "knowing": tab_knowing.run,
    "report": tab_report.run,
}
CLEARED_BY_ERROR = {  # outputs that would contradict an error
    "ask": ("ask_answer", "ask_dense", "ask_strip", "ask_pictures", "ask_facts"),
    "compare": ("compare_columns", "compare_note"),
    "channels": ("channels_values",),
    "knowing": (),
    "report": ("report_changes", "report_page"),
}
ACTIONS = ("copy_link", "copy_python", "save_json")
GONE = "your own image was dropped when the page was reloaded: send it again, or choose an example"
log = logging.getLogger("arr_coc.demo")


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
                    with gr.Tab(name.capitalize(), id=name, elem_id=f"tab-{name}") as tabs[name]:
                        parts.add_html(f"{name}_message")
                        gr.HTML(macros.stale(STALE[name]), elem_classes="stale-block")
                        add_tab(app, controls, parts)
                        add_actions(name, parts)
            add_side(app, controls, parts)
        gr.HTML(macros.footer())
        parts.add_html("bridge", js_on_load=f"arrcoc.bridge(trigger, {app.limits.megabytes * 1e6:.0f})", visible="hidden")
        theme.click(None, js="() => { arrcoc.theme(); }")
        events = PageEvents(app, controls, parts, page)
        events.connect_image(uploads)
        events.connect_tabs(tabs)
        events.connect_budgets()
        events.connect_channels()
        events.connect_knowing()
        events.connect_actions()
        events.connect_links(bar)
        events.connect_stale_marks()

        def leave(request: gr.Request) -> None:
            app.sessions.remove(request.session_hash)

        page.unload(leave)
    events.components = frozenset(page.blocks)
    page.queue(max_size=app.limits.queue, default_concurrency_limit=4)
    return page, events


class PageEvents:
    """Connects the components: `controls` are the inputs of every request, `parts` the outputs by name."""

    def __init__(self, app: AppState, controls: Controls, parts: Parts, page: gr.Blocks) -> None:
        self.app, self.controls, self.parts, self.page = app, controls, parts, page
        self.components: frozenset[int] = frozenset()  # numbers of the finished page's components
        self.tab = gr.Textbox("ask", visible=False)  # the open tab
        self.links = [parts[f"{name}_link"] for name in RUN_TAB]
        self.timings: list[Any] = []  # events that time an answer; the next question cancels them
        self.start: dict[str, list[Output]] = {}  # what the page shows first, computed once for all users

    # Running a tab

    def run_tab(
        self, tab: str, function: RunTab, request: gr.Request, make_state: Callable[[], PageState], first: str = ""
    ) -> Iterator[dict[Any, Any]]:
        """A tab's outputs by component, as they are computed; an error replaces the outputs that it contradicts.

        `first` names an output that is the same for all users: it is computed once.
        """
        try:
            state = make_state()
            if state.model == self.app.models.names[0]:
                state = replace(state, model="")  # keeps the default model out of links
            yield {self.parts[f"{tab}_message"]: ""}
            if first in self.start:
                yield self._components(tab, _merged(self.start[first]))
                return
            shown = []
            for output in function(self.app.request(request.session_hash, state)):
                shown.append(output)
                yield self._components(tab, output)
            if first:
                self.start[first] = shown
        except Exception as error:  # a bug must not end the server for the other users
            cleared = dict.fromkeys((*CLEARED_BY_ERROR[tab], f"{tab}_python", f"{tab}_json", f"{tab}_link"), "")
            yield self._components(tab, cleared) | {self.parts[f"{tab}_message"]: _describe(error)}
        finally:
            self._free_outputs(request.session_hash)
            trim_memory()

    def _components(self, tab: str, output: Output) -> dict[Any, Any]:
        """Outputs by component. The buttons below a tab work while there is something to copy."""
        found = {
            self.parts[name]: gr.update(maximum=value) if name == "channels_levels" else value
            for name, value in output.items()
        }
        code = output.get(f"{tab}_python")
        if code is not None:
            found |= {self.parts[f"{tab}_{action}"]: gr.update(interactive=bool(code)) for action in ACTIONS}
        return found

    def handler(self, tab: str | None = None, function: RunTab | None = None) -> Any:
        """A gradio function that runs a tab with the values of its controls.

        Without `tab`, its first input names it, and the values of all controls follow. gradio takes the names of an
        endpoint's parameters from the signature, so it has one.
        """

        def run(request: gr.Request, *values: Any) -> Iterator[Any]:
            if tab is None:
                name, names, *values = (values[0], self.controls.names(), *values[1:])  # type: ignore[assignment]
            else:
                name, names = tab, self.controls.names(tab)
            if name in RUN_TAB:
                run_tab = function or RUN_TAB[name]
                yield from self.run_tab(name, run_tab, request, lambda: self.controls.to_state(name, values, names))
            else:
                yield {self.parts["ask_message"]: gr.skip()}  # gradio would clear every output of an empty generator

        return _with_parameters(run, self.controls.names(tab) if tab else ["tab", *self.controls.names()])

    def _free_outputs(self, session_id: str | None) -> None:
        """Delete gradio's copies of this session's outputs: it keeps one of every update, each with a new number."""
        holder = getattr(getattr(self.page, "app", None), "state_holder", None)
        if holder is None or session_id not in holder.session_data:
            return  # the page is not served
        state = holder[session_id]
        for kept in (state.blocks_config.blocks, state.config_values):
            for number in set(kept) - self.components:
                kept.pop(number, None)

    def change_image(self, change: Callable[[PageRequest], Output], state: PageState, request: gr.Request) -> Output:
        """Run a change outside the tabs, such as another image; an error is shown above the image."""
        try:
            return {"message": "", **change(self.app.request(request.session_hash, state))}
        except Exception as error:
            return {"message": _describe(error)}

    def _outputs(self, *tabs: str) -> list[Any]:
        return [part for name, part in self.parts.items() if name.partition("_")[0] in tabs]

    def _signed(self, tab: str) -> str:
        """The places of the settings that a result of the tab depends on, among the values of all controls, for scripts."""
        names = self.controls.names()
        return json.dumps([number for number, name in enumerate(names) if name in _decisive(self.controls, tab)])

    def _on(self, event: Any, tab: str, function: RunTab | None = None, **options: Any) -> Any:
        """Run a tab at an event, and put its link into the address bar."""
        names = self.controls.names(tab)
        places = [number for number, name in enumerate(names) if name in _decisive(self.controls, tab)]
        begin = f"(...values) => arrcoc.begin('{tab}', values, {json.dumps(places)})"
        handler, outputs = self.handler(tab, function), self._outputs(tab)
        done = event(handler, self.controls.inputs(tab), outputs, js=begin, **MODEL, **(HIDDEN | options))
        shown = done.then(None, [self.parts[f"{tab}_link"]], None, js=SHOW_LINK)
        if tab == "ask":
            self._time(shown)
        return done

    def _on_named(self, event: Any, name: Any) -> Any:
        """Run the tab that the component `name` names, at an event."""
        places = "{" + ", ".join(f"{tab}: {self._signed(tab)}" for tab in RUN_TAB) + "}"
        begin = f"(tab, ...values) => [tab, ...arrcoc.begin(tab, values, ({places})[tab])]"
        options = {**MODEL, **HIDDEN, "show_progress": "minimal", "js": begin}
        done = event(self.handler(), [name, *self.controls.inputs()], self._outputs(*RUN_TAB), **options)
        show = f"(tab, ...links) => {{ arrcoc.visit(links[{list(RUN_TAB)}.indexOf(tab)]); }}"
        shown = done.then(None, [name, *self.links], None, js=show)
        self._time(shown)
        return done

    def _time(self, done: Any) -> None:
        """After an answer: the answer from all tokens, and both timed. The link says what was answered."""

        def time(request: gr.Request, tab: str, link: str) -> Iterator[Any]:
            if tab == "ask" and link:
                yield from self.run_tab("ask", tab_ask.run_timing, request, lambda: _read_link(link))
            else:
                yield {self.parts["ask_message"]: gr.skip()}

        inputs = [self.tab, self.parts["ask_link"]]
        self.timings.append(done.then(time, inputs, self._outputs("ask"), **MODEL, **HIDDEN))

    # Connecting the components

    def connect_image(self, uploads: Path) -> None:
        """Upload, remove and choose an image, and draw a box on it."""
        inputs, parts, app = self.controls, self.parts, self.app
        image, question, box = inputs["image"], inputs["question"], inputs["box"]
        message, board, picture = parts["picture_message"], parts["compare_board"], parts["picture"]

        def refuse(request: gr.Request, reason: str) -> tuple[Any, ...]:
            """No image: neither the refused one nor the last one is what the user sees."""
            app.sessions.get(request.session_hash).set_upload(None)
            return "", None, reason, "", ""

        def upload(request: gr.Request, file: Any) -> tuple[Any, ...]:
            def store(page_request: PageRequest) -> Output:
                if not isinstance(file, dict) or not file.get("path"):
                    raise ImageError("no image arrived: send a PNG, JPEG or WebP file")
                found = read_upload(Path(file["path"]), str(file.get("orig_name") or ""), uploads, app.limits)
                page_request.session.set_upload(found)
                return {"board": markup.box_editor(found.image, ())}

            found = self.change_image(store, PageState(image=""), request)
            if "board" not in found:
                return refuse(request, found["message"])
            return "", gr.skip(), "", found["board"], ""

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
            return "", "", ""

        picture.clear(remove, None, [image, board, parts["questions"]], queue=False, api_visibility="private")
        for event in (picture.upload, picture.clear):
            event(None, None, None, js="() => { arrcoc.touch(); }")

        def choose(request: gr.Request, image: str) -> tuple[Any, ...]:
            state = PageState(image=image or "", question="")
            known = app.request(request.session_hash, state).known_questions
            first = known[0] if known else ""
            found = self.change_image(_shown_image, replace(state, question=first), request)
            shown = found.get("picture"), macros.questions(known), first or gr.skip(), ""
            return *shown, found["message"], found.get("board", "")

        chosen = [picture, parts["questions"], question, box, message, board]
        image.input(choose, [image], chosen, show_progress="hidden", api_name="choose")

        def show_box(request: gr.Request, name: str, asked: str, text: str) -> tuple[Any, ...]:
            state = PageState(image=name or "", question=asked or "", box=text or "")
            found = self.change_image(_shown_image, state, request)
            return found["message"] if text else "", found.get("board", gr.skip())

        def draw_box(request: gr.Request, event: gr.EventData, name: str, asked: str) -> tuple[Any, ...]:
            text = ", ".join(f"{float(side):.0f}" for side in event._data.get("box", ())[:4])
            return text, *show_box(request, name, asked, text)

        marked = [parts["compare_message"], board]
        board.select(draw_box, [image, question], [box, *marked], **HIDDEN)
        for event in (box.submit, box.blur, question.blur):
            event(show_box, [image, question, box], marked, **HIDDEN)

    def connect_tabs(self, tabs: dict[str, Any]) -> None:
        """Each tab's button, Enter in the question, example questions, and the tabs that run when they are opened."""
        inputs, parts = self.controls, self.parts
        for name in RUN_TAB:
            public: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "public", "api_name": name}
            self._on(parts[f"{name}_go"].click, name, **public)
            tabs[name].select(None, None, [self.tab], js=f"() => arrcoc.open('{name}')")
        for name in ("channels", "knowing"):
            self._on(tabs[name].select, name, show_progress="minimal")

        def list_reports() -> list[Any]:
            return [gr.update(choices=["", *find_reports(self.app.root)])] * 2

        tabs["report"].select(list_reports, None, [inputs["report"], inputs["against"]], **HIDDEN)
        self._on_named(inputs["question"].submit, self.tab)

        def read_question(event: gr.EventData) -> Any:
            return str(event._data.get("question") or "") or gr.skip()

        options = {"queue": False, **HIDDEN}
        self._on_named(parts["questions"].select(read_question, None, [inputs["question"]], **options).then, self.tab)
        inputs["channel"].change(None, [inputs["channel"]], None, js="(name) => { arrcoc.press(name); }")
        inputs["heat"].change(None, [inputs["heat"]], None, js="(percent) => { viewer.heat(percent / 100); }")

    def connect_budgets(self) -> None:
        """The switches and sliders write the exact budget and glance. The budget's show at once which cells are kept."""
        parts, controls = self.parts, self.controls
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
                    page_request = self.app.request(request.session_hash, make_state())
                    for output in tab_ask.run_preview(page_request):
                        yield self._components(tab, output)
                except Exception as error:
                    yield {parts["ask_live"]: "", parts["ask_message"]: _describe(error)}
                finally:
                    self._free_outputs(request.session_hash)
            elif tab == "knowing":
                yield from self.run_tab(tab, RUN_TAB[tab], request, make_state)
            else:
                yield {parts["ask_live"]: gr.skip()}

        place = controls.names().index("budget")
        inputs = [self.tab, parts["budget_stop"], parts["budget_auto"], *controls.inputs()]
        outputs = [parts["ask_live"], parts["ask_message"], *self._outputs("knowing")]
        signed = {tab: self._signed(tab) for tab in ("ask", "knowing")}
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
        self._on(chosen.then, "ask", show_progress="minimal")

    def connect_channels(self) -> None:
        """Another channel, level or point. The gallery stays as it is."""
        inputs, parts = self.controls, self.parts

        def run_without_gallery(request: PageRequest) -> Iterator[Output]:
            return tab_channels.run(request, gallery=False)

        def show_on(event: Any) -> None:
            self._on(event, "channels", run_without_gallery, trigger_mode="always_last")

        for event in (inputs["channel"].input, inputs["level"].release, inputs["point"].submit):
            show_on(event)

        def read_tile(event: gr.EventData) -> Any:
            return event._data.get("channel") or gr.skip()

        def read_point(event: gr.EventData) -> Any:
            return ", ".join(f"{float(side):.4f}" for side in event._data.get("point", ())[:2]) or gr.skip()

        show_on(parts["channels_gallery"].select(read_tile, None, [inputs["channel"]], queue=False, **HIDDEN).then)
        show_on(parts["channels_large"].select(read_point, None, [inputs["point"]], queue=False, **HIDDEN).then)

    def connect_knowing(self) -> None:
        """Sliders that set the weights by hand, and the button that resets them."""
        parts = self.parts
        exploit, weights = self.controls["exploit"], self.controls["weights"]

        def show_on(event: Any) -> None:
            self._on(event, "knowing", trigger_mode="always_last")

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
        show_on(self.controls["learned"].input)

    def connect_actions(self) -> None:
        """The buttons below each tab."""
        for name in RUN_TAB:
            for action, source, call in (
                ("copy_link", "link", f"arrcoc.copy(arrcoc.link(text), '{name}-copy-link')"),
                ("copy_python", "python", f"arrcoc.copy(text, '{name}-copy-python')"),
                ("save_json", "json", f"arrcoc.saveText(text, 'arr-coc-{name}.json')"),
            ):
                button, text = self.parts[f"{name}_{action}"], self.parts[f"{name}_{source}"]
                button.click(None, [text], None, js=f"(text) => {{ {call}; }}")

    def connect_links(self, bar: Any) -> None:
        """Restore the state of a link when the page is opened or left by Back: controls, image, tab; then run the tab."""
        controls, parts = self.controls, self.parts
        wanted = gr.Textbox("", visible=False)  # the tab to run
        names = ("picture", "compare_board", "picture_message", "questions")
        outputs = [*controls.inputs(), *(parts[name] for name in names), bar, self.tab, wanted]

        def load(request: gr.Request) -> dict[Any, Any]:
            query = dict(request.query_params) if request.query_params is not None else {}
            found, state = self._restore(query, request)
            found[bar] = gr.update(selected=state.tab)
            return found | {self.tab: state.tab, wanted: "" if found[parts["picture_message"]] else state.tab}

        def go_back(request: gr.Request, event: gr.EventData) -> dict[Any, Any]:
            link = str(event._data.get("query") or "")
            found, state = self._restore(dict(parse_qsl(link[1:], keep_blank_values=True)), request)
            known = event._data.get("shown") or {}
            shown = isinstance(known, dict) and known.get(state.tab) == link
            found[bar] = gr.update(selected=state.tab)
            return found | {self.tab: state.tab, wanted: "" if shown or found[parts["picture_message"]] else state.tab}

        def start(request: gr.Request, tab: str, *values: Any) -> Iterator[Any]:
            """Run the tab that the page opens with. The start without a link is the same for all users."""
            if tab not in RUN_TAB:
                yield {parts["ask_message"]: gr.skip()}
                return
            usual = self.controls.from_state(replace(PageState(), model=self.app.models.names[0]))
            first = "ask" if tab == "ask" and list(values) == list(usual.values()) else ""
            yield from self.run_tab(tab, RUN_TAB[tab], request, lambda: controls.to_state(tab, values), first)

        def start_timing(request: gr.Request, tab: str, link: str) -> Iterator[Any]:
            if tab != "ask" or not link:
                yield {parts["ask_message"]: gr.skip()}
                return
            first = "timing" if _read_link(link) == PageState() else ""
            yield from self.run_tab("ask", tab_ask.run_timing, request, lambda: _read_link(link), first)

        places = "{" + ", ".join(f"{tab}: {self._signed(tab)}" for tab in RUN_TAB) + "}"
        begin = f"(tab, ...values) => [tab, ...arrcoc.begin(tab, values, ({places})[tab])]"
        note = f"(tab, ...links) => {{ arrcoc.note(links[{list(RUN_TAB)}.indexOf(tab)]); }}"
        loaded = self.page.load(load, None, outputs, **HIDDEN)
        loaded.then(None, [self.tab], None, js="(tab) => { arrcoc.open(tab); }")
        ran = loaded.then(
            start, [wanted, *controls.inputs()], self._outputs(*RUN_TAB), js=begin, **MODEL, **HIDDEN
        )
        noted = ran.then(None, [wanted, *self.links], None, js=note)
        self.timings.append(
            noted.then(start_timing, [wanted, parts["ask_link"]], self._outputs("ask"), **MODEL, **HIDDEN)
        )
        self._on_named(parts["bridge"].select(go_back, None, outputs, **HIDDEN).then, wanted)
        triggers = (parts["ask_go"].click, controls["question"].submit, parts["questions"].select)
        for event in (*triggers, parts["ask_strip"].select, parts["bridge"].select):
            event(None, None, None, cancels=self.timings, queue=False)

    def _restore(self, query: Mapping[str, str], request: gr.Request) -> tuple[dict[Any, Any], PageState]:
        """The values of the controls and the image that a link stands for."""
        parts, app, problem = self.parts, self.app, ""
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
        shown = {} if own and problem else self.change_image(_shown_image, state, request)
        known = app.request(request.session_hash, state).known_questions
        values = self.controls.from_state(replace(state, model=state.model or app.models.names[0]))
        return {self.controls[name]: value for name, value in values.items()} | {
            parts["picture"]: shown.get("picture"),
            parts["compare_board"]: shown.get("board", ""),
            parts["picture_message"]: markup.alert(problem) if problem else shown.get("message", ""),
            parts["questions"]: macros.questions(known),
        }, state

    def connect_stale_marks(self) -> None:
        """Any change of a setting marks the results that it makes stale, in the browser."""
        places = "{" + ", ".join(f"{tab}: {self._signed(tab)}" for tab in RUN_TAB) + "}"
        changes = [control.change for control in self.controls.values()]
        gr.on(changes, None, self.controls.inputs(), None, js=f"(...values) => {{ arrcoc.check(values, {places}); }}")


def _decisive(controls: Controls, tab: str) -> set[str]:
    """The settings that decide the result of a tab; the strength of colours is only shown."""
    return set(controls.names(tab)) - {"heat"}


def _with_parameters(function: Any, names: Sequence[str]) -> Any:
    """The function with named parameters after its request, for gradio's API."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in ("request", *names)])
    function.__annotations__ = {"request": gr.Request}
    return function


def _merged(outputs: Sequence[Output]) -> Output:
    return {name: value for output in outputs for name, value in output.items()}


def _read_link(link: str) -> PageState:
    return PageState.from_query(dict(parse_qsl(link.removeprefix("?"), keep_blank_values=True)))


def _shown_image(request: PageRequest) -> Output:
    image = request.image.image
    boxes = [box for group in request.evidence for box in group]
    return {"picture": image, "board": markup.box_editor(image, boxes)}


def _describe(error: Exception) -> str:
    """An error as a sentence for the user, without the host's folders; a bug is also written to the log."""
    if isinstance(error, ArrCocError):
        return markup.alert(hide_paths(str(error)))
    log.error("a request failed", exc_info=error)
    return markup.alert(hide_paths(f"the server failed ({type(error).__name__}: {first_line(error)[:200]}): try again"))
