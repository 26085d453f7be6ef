"""Running tabs: from the values of the controls to the outputs of a tab, errors included, and the events that start it."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

from arr_coc.demo import markup, tab_ask, tab_channels, tab_compare, tab_find, tab_knowing, tab_report
from arr_coc.demo.app import AppState, Output, PageRequest, RunTab
from arr_coc.demo.page.layout import Controls, Parts
from arr_coc.demo.security import hide_paths
from arr_coc.demo.state import PageState
from arr_coc.errors import ArrCocError, first_line
from arr_coc.hosting import trim_memory

SHOW_LINK = "(query) => { arrcoc.visit(query); }"
# Requests that use a model run one at a time. gradio does not check their values: the errors would not reach the page.
MODEL: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model", "preprocess": False}
HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
RUN_TAB: dict[str, RunTab] = {
    "ask": tab_ask.run,
    "compare": tab_compare.run,
    "channels": tab_channels.run,
    "knowing": tab_knowing.run,
    "report": tab_report.run,
    "find": tab_find.run,
}
CLEARED_BY_ERROR = {  # outputs that would contradict an error
    "ask": ("ask_answer", "ask_dense", "ask_strip", "ask_pictures", "ask_facts"),
    "compare": ("compare_columns", "compare_note"),
    "channels": ("channels_values",),
    "knowing": (),
    "report": ("report_changes", "report_page"),
    "find": ("find_images",),
}
ACTIONS = ("copy_link", "copy_python", "save_json")
log = logging.getLogger("arr_coc.demo")


class PageEvents:
    """Connects the components: `controls` are the inputs of every request, `parts` the outputs by name."""

    def __init__(self, app: AppState, controls: Controls, parts: Parts, page: gr.Blocks) -> None:
        self.app, self.controls, self.parts, self.page = app, controls, parts, page
        self.components: frozenset[int] = frozenset()  # numbers of the finished page's components
        self.tab = gr.Textbox("ask", visible=False)  # the open tab
        self.links = [parts[f"{name}_link"] for name in RUN_TAB]
        self.start: dict[str, list[Output]] = {}  # what the page shows first, computed once for all users
        self.running = 0  # tabs that compute something at this moment
        self.idle = threading.Condition()

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
                yield self.by_component(tab, _merged(self.start[first]))
                return
            shown = []
            for output in self._counted(self.app.run(function, self.app.request(request.session_hash, state))):
                shown.append(output)
                yield self.by_component(tab, output)
            if first and f"{tab}_json" in _merged(shown):  # complete: an interrupted timing has none
                self.start[first] = shown
        except Exception as error:  # a bug must not end the server for the other users
            cleared = dict.fromkeys((*CLEARED_BY_ERROR[tab], f"{tab}_python", f"{tab}_json", f"{tab}_link"), "")
            yield self.by_component(tab, cleared) | {self.parts[f"{tab}_message"]: describe(error)}
        finally:
            self.free_outputs(request.session_hash)
            trim_memory()

    def _counted(self, outputs: Iterator[Output]) -> Iterator[Output]:
        """The same outputs; `running` counts this tab while it computes one, not while gradio sends it."""
        while True:
            with self.idle:
                self.running += 1
            try:
                output = next(outputs, None)
            finally:
                with self.idle:
                    self.running -= 1
                    self.idle.notify_all()
            if output is None:
                return
            yield output

    def wait(self, seconds: float) -> bool:
        """Interrupt timings, and wait until no tab computes anything: Python must not end while a model runs."""
        self.app.sessions.interrupt()
        with self.idle:
            return self.idle.wait_for(lambda: self.running == 0, seconds)

    def by_component(self, tab: str, output: Output) -> dict[Any, Any]:
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
            name, given = (values[0], values[1:]) if tab is None else (tab, values)
            if name in RUN_TAB:
                yield from self.run_tab(
                    name, function or RUN_TAB[name], request, lambda: self.controls.to_state(name, given, names)
                )
            else:
                yield {self.parts["ask_message"]: gr.skip()}  # gradio would clear every output of an empty generator

        names = self.controls.names(tab)
        return _with_parameters(run, names if tab else ["tab", *names])

    def free_outputs(self, session_id: str | None) -> None:
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
            return {"message": describe(error)}

    def outputs(self, *tabs: str) -> list[Any]:
        return [part for name, part in self.parts.items() if name.partition("_")[0] in tabs]

    def places(self, tab: str) -> str:
        """The places of the settings that a result of the tab depends on, among the values of all controls, for scripts."""
        names = self.controls.names()
        return json.dumps([number for number, name in enumerate(names) if name in _decisive(self.controls, tab)])

    @property
    def all_places(self) -> str:
        """The places of all tabs, by tab, as a script."""
        return "{" + ", ".join(f"{tab}: {self.places(tab)}" for tab in RUN_TAB) + "}"

    @property
    def begin_named(self) -> str:
        """A script that marks the result of the named tab as new; the values of all controls follow the name."""
        return f"(tab, ...values) => [tab, ...arrcoc.begin(tab, values, ({self.all_places})[tab])]"

    @property
    def begin_restored(self) -> str:
        """The same after Back: it runs nothing where another press has come meanwhile."""
        return f"(tab, ...values) => arrcoc.beginRestored(tab, values, ({self.all_places})[tab])"

    def run_on(
        self, event: Any, tab: str, function: RunTab | None = None, *, opened: bool = False, **options: Any
    ) -> Any:
        """Run a tab at an event (`opened`: because it was opened), and put its link into the address bar."""
        names = self.controls.names(tab)
        places = [number for number, name in enumerate(names) if name in _decisive(self.controls, tab)]
        begin = f"(...values) => arrcoc.begin('{tab}', values, {json.dumps(places)}, {json.dumps(opened)})"
        handler, outputs = self.handler(tab, function), self.outputs(tab)
        done = event(handler, self.controls.inputs(tab), outputs, js=begin, **MODEL, **(HIDDEN | options))
        shown = done.then(None, [self.parts[f"{tab}_link"]], None, js=SHOW_LINK)
        if tab == "ask":
            self._time(shown)
        return done

    def run_named_on(self, event: Any, name: Any, **options: Any) -> Any:
        """Run the tab that the component `name` names, at an event."""
        options = {**MODEL, **HIDDEN, "show_progress": "minimal", "js": self.begin_named, **options}
        done = event(self.handler(), [name, *self.controls.inputs()], self.outputs(*RUN_TAB), **options)
        shows = "settle" if options["js"] == self.begin_restored else "visit"
        show = f"(tab, ...links) => {{ arrcoc.{shows}(links[{list(RUN_TAB)}.indexOf(tab)]); }}"
        shown = done.then(None, [name, *self.links], None, js=show)
        self._time(shown)
        return done

    def _time(self, done: Any) -> None:
        """After an answer: the answer from all tokens, and both timed. The link says what was answered."""

        def time(request: gr.Request, tab: str, link: str) -> Iterator[Any]:
            if tab == "ask" and link:
                yield from self.run_tab("ask", tab_ask.run_timing, request, lambda: read_link(link))
            else:
                yield {self.parts["ask_message"]: gr.skip()}

        inputs = [self.tab, self.parts["ask_link"]]
        done.then(time, inputs, self.outputs("ask"), **MODEL, **HIDDEN)


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


def read_link(link: str) -> PageState:
    return PageState.from_query(dict(parse_qsl(link.removeprefix("?"), keep_blank_values=True)))


def describe(error: Exception) -> str:
    """An error as a sentence for the user, without the host's folders; a bug is also written to the log."""
    if isinstance(error, ArrCocError):
        return markup.alert(hide_paths(str(error)))
    log.error("a request failed", exc_info=error)
    return markup.alert(hide_paths(f"the server failed ({type(error).__name__}: {first_line(error)[:200]}): try again"))
