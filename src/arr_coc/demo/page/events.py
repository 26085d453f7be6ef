"""The page with its events. Every error is shown as one sentence in the page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from arr_coc.demo import markup, tab_ask, tab_channels, tab_compare, tab_knowing, tab_report
from arr_coc.demo.app import AppState, Output, PageRequest
from arr_coc.demo.inputs import find_reports, read_upload
from arr_coc.demo.markup import macros
from arr_coc.demo.page.layout import ADD_TAB, Controls, Parts, add_actions, add_shared_controls
from arr_coc.demo.session import trim_memory
from arr_coc.demo.state import PageState, format_weights
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
    "ask": ("ask_answer", "ask_dense", "ask_pictures", "ask_facts"),
    "compare": ("compare_columns", "compare_note"),
    "channels": ("channels_values",),
    "knowing": (),
    "report": ("report_changes", "report_page"),
}
log = logging.getLogger("arr_coc.demo")


def build_page(app: AppState, uploads: Path) -> tuple[gr.Blocks, PageEvents]:
    """The page and its events; `uploads` is the folder into which gradio puts uploaded files."""
    controls, parts = Controls(), Parts()
    with gr.Blocks(title="ARR-COC", analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)) as page:
        with gr.Row():
            gr.HTML(macros.header())
            theme = gr.Button("Dark / light", size="sm", scale=0, min_width=110, elem_id="theme")
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                add_shared_controls(app, controls, parts)
            with gr.Column(scale=3, min_width=320), gr.Tabs(selected="ask", elem_id="tabs") as bar:
                tabs = {}
                for name, add_tab in ADD_TAB.items():
                    with gr.Tab(name.capitalize(), id=name, elem_id=f"tab-{name}") as tabs[name]:
                        add_tab(app, controls, parts)
                        add_actions(name, parts)
        gr.HTML(macros.footer())
        theme.click(None, js="() => { arrcoc.theme(); }")
        events = PageEvents(app, controls, parts, page)
        events.connect_image(uploads)
        events.connect_tabs(tabs)
        events.connect_channels()
        events.connect_knowing()
        events.connect_actions()
        events.connect_link(bar)

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

    # Running a tab

    def run_tab(
        self, tab: str, function: RunTab, request: gr.Request, values: Sequence[Any]
    ) -> Iterator[dict[Any, Any]]:
        """A tab's outputs by component, as they are computed; an error replaces the outputs that it contradicts."""
        try:
            state = self.controls.to_state(tab, values)
            if state.model == self.app.models.names[0]:
                state = replace(state, model="")  # keeps the default model out of links
            yield {self.parts[f"{tab}_message"]: ""}
            for output in function(self.app.request(request.session_hash, state)):
                yield {
                    self.parts[name]: gr.update(maximum=value) if name == "channels_levels" else value
                    for name, value in output.items()
                }
        except Exception as error:  # a bug must not end the server for the other users
            cleared = dict.fromkeys((self.parts[name] for name in CLEARED_BY_ERROR[tab]), "")
            yield cleared | {self.parts[f"{tab}_message"]: _describe(error)}
        finally:
            self._free_outputs(request.session_hash)
            trim_memory()

    def handler(self, tab: str | None = None, function: RunTab | None = None) -> Any:
        """A gradio function that runs a tab with the values of all controls. Without `tab`, its first input names it."""

        def run(request: gr.Request, *values: Any) -> Iterator[Any]:
            name, *inputs = values if tab is None else (tab, *values)
            if name in RUN_TAB:
                yield from self.run_tab(name, function or RUN_TAB[name], request, inputs)
            else:
                yield {self.parts["ask_message"]: gr.skip()}  # gradio would clear every output of an empty generator

        return run

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
        """Run a change outside the tabs, such as another image; an error is shown below the image."""
        try:
            return {"message": "", **change(self.app.request(request.session_hash, state))}
        except Exception as error:
            return {"message": _describe(error)}

    def _outputs(self, *tabs: str) -> list[Any]:
        return [part for name, part in self.parts.items() if name.partition("_")[0] in tabs]

    def _on(self, event: Any, tab: str, function: RunTab | None = None, **options: Any) -> None:
        """Run a tab at an event, and put its link into the address bar."""
        outputs = self._outputs(tab)
        done = event(self.handler(tab, function), self.controls.inputs, outputs, **MODEL, **(HIDDEN | options))
        done.then(None, [self.parts[f"{tab}_link"]], None, js=SHOW_LINK)

    def _on_named(self, event: Any, name: Any) -> Any:
        """Run the tab that the component `name` names, at an event."""
        options = {**MODEL, **HIDDEN, "show_progress": "minimal"}
        return event(self.handler(), [name, *self.controls.inputs], self._outputs(*RUN_TAB), **options)

    # Connecting the components

    def connect_image(self, uploads: Path) -> None:
        """Upload, remove and choose an image, and draw a box on it."""
        inputs, parts, app = self.controls, self.parts, self.app
        image, question, box = inputs["image"], inputs["question"], inputs["box"]
        outputs = [parts["picture_message"], parts["compare_board"]]

        def upload(request: gr.Request, raw: Any) -> tuple[Any, ...]:
            def store(page_request: PageRequest) -> Output:
                if not isinstance(raw, dict) or not raw.get("path"):
                    raise ImageError("no image arrived: send a PNG, JPEG or WebP file")
                found = read_upload(Path(raw["path"]), str(raw.get("orig_name") or ""), uploads, app.limits)
                page_request.session.set_upload(found)
                return {"board": markup.box_editor(found.image, ())}

            found = self.change_image(store, PageState(image=""), request)
            if "board" not in found:  # the last image is no longer what the user sees
                app.sessions.get(request.session_hash).set_upload(None)
            return "", found["message"], found.get("board", "")

        parts["picture"].upload(
            upload, [parts["picture"]], [image, *outputs], preprocess=False, show_progress="minimal", api_name="send"
        )

        def remove(request: gr.Request) -> tuple[Any, ...]:
            app.sessions.get(request.session_hash).set_upload(None)
            return "", "", ""

        parts["picture"].clear(remove, None, [image, *outputs], queue=False, api_visibility="private")

        def choose(request: gr.Request, name: str) -> tuple[Any, ...]:
            state = PageState(image=name or "", question="")
            known = app.request(request.session_hash, state).known_questions
            first = known[0] if known else ""
            found = self.change_image(_shown_image, replace(state, question=first), request)
            questions = gr.update(choices=known, value=None)
            return found.get("picture"), questions, first or gr.skip(), "", found["message"], found.get("board", "")

        chosen = [parts["picture"], parts["questions"], question, box, *outputs]
        image.input(choose, [image], chosen, show_progress="hidden", api_name="choose")
        parts["questions"].input(
            lambda text: text or gr.skip(), [parts["questions"]], [question], queue=False, **HIDDEN
        )

        def show_box(request: gr.Request, name: str, asked: str, text: str) -> tuple[Any, ...]:
            state = PageState(image=name or "", question=asked or "", box=text or "")
            found = self.change_image(_shown_image, state, request)
            return found["message"], found.get("board", gr.skip())

        def draw_box(request: gr.Request, event: gr.EventData, name: str, asked: str) -> tuple[Any, ...]:
            text = ", ".join(f"{float(side):.0f}" for side in event._data.get("box", ())[:4])
            return text, *show_box(request, name, asked, text)

        parts["compare_board"].select(draw_box, [image, question], [box, *outputs], **HIDDEN)
        for event in (box.submit, box.blur, question.blur):
            event(show_box, [image, question, box], outputs, **HIDDEN)

    def connect_tabs(self, tabs: dict[str, Any]) -> None:
        """Each tab's button, Enter in the question, and the tabs that run when they are opened."""
        inputs, parts = self.controls, self.parts
        for name in RUN_TAB:
            public: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "public", "api_name": name}
            self._on(parts[f"{name}_go"].click, name, **public)
            tabs[name].select(None, None, [self.tab], js=f"() => '{name}'")
        for name in ("channels", "knowing"):
            self._on(tabs[name].select, name, show_progress="minimal")

        def list_reports() -> list[Any]:
            return [gr.update(choices=["", *find_reports(self.app.root)])] * 2

        tabs["report"].select(list_reports, None, [inputs["report"], inputs["against"]], **HIDDEN)
        entered = self._on_named(inputs["question"].submit, self.tab)
        show = f"(tab, ...links) => {{ arrcoc.visit(links[{list(RUN_TAB)}.indexOf(tab)]); }}"
        entered.then(None, [self.tab, *self.links], None, js=show)
        for name in ("budget", "glance"):
            slider = inputs[f"{name}_stop"]
            slider.change(None, [slider], None, js=f"(number) => {{ arrcoc.stop('{name}', number); }}")
        inputs["channel"].change(None, [inputs["channel"]], None, js="(name) => { arrcoc.press(name); }")
        inputs["heat"].change(None, [inputs["heat"]], None, js="(percent) => { arrcoc.heat(percent); }")

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
                ("save_json", "json", f"arrcoc.save(text, 'arr-coc-{name}.json')"),
            ):
                button, text = self.parts[f"{name}_{action}"], self.parts[f"{name}_{source}"]
                button.click(None, [text], None, js=f"(text) => {{ {call}; }}")

    def connect_link(self, bar: Any) -> None:
        """Restore the state of a link when the page is opened: controls, image and tab; then run that tab."""
        controls, parts, app = self.controls, self.parts, self.app
        wanted = gr.Textbox("", visible=False)  # the tab that the link names
        outputs = [parts[name] for name in ("picture", "compare_board", "picture_message", "questions")]

        def load(request: gr.Request) -> dict[Any, Any]:
            problem = ""
            query = dict(request.query_params) if request.query_params is not None else {}
            try:
                state = PageState.from_query(query)
            except ArrCocError as error:
                state, problem = PageState(), f"this link cannot be read: {error}"
            if state.image not in app.examples:
                if "image" in query:
                    problem = problem or f"the link's image {state.image[:60]!r} is not available: choose another one"
                state = replace(state, image=next(iter(app.examples)))
            shown = self.change_image(_shown_image, state, request)
            page_request = app.request(request.session_hash, state)
            values = controls.from_state(replace(state, model=state.model or app.models.names[0]))
            return {controls[name]: value for name, value in values.items()} | {
                parts["picture"]: shown.get("picture"),
                parts["compare_board"]: shown.get("board", ""),
                parts["picture_message"]: markup.alert(problem) if problem else shown["message"],
                parts["questions"]: gr.update(choices=page_request.known_questions, value=None),
                bar: gr.update(selected=state.tab),
                self.tab: state.tab,
                wanted: state.tab if "tab" in query else "",
            }

        loaded = self.page.load(load, None, [*controls.inputs, *outputs, bar, self.tab, wanted], **HIDDEN)
        self._on_named(loaded.then, wanted)


def _shown_image(request: PageRequest) -> Output:
    image = request.image.image
    boxes = [box for group in request.evidence for box in group]
    return {"picture": image, "board": markup.box_editor(image, boxes)}


def _describe(error: Exception) -> str:
    """An error as a sentence for the user; a bug is also written to the log."""
    if isinstance(error, ArrCocError):
        return markup.alert(str(error))
    log.error("a request failed", exc_info=error)
    return markup.alert(f"the server failed ({type(error).__name__}: {first_line(error)[:200]}): try again")
