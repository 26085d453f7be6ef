"""Controls and the page's state; what a user sees when a request fails."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from arr_coc.demo.app import AppState, PageRequest
from arr_coc.demo.state import LINK_FIELDS, PageState
from tests.demo.conftest import USER
from tests.demo.test_state import CHANGED

# gradio makes event loops when it is imported and never closes them; they are collected before other tests begin.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
REQUEST: Any = SimpleNamespace(session_hash=USER)


@pytest.fixture(scope="module")
def events(app: AppState, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The events of a page that is not served."""
    from arr_coc.demo.page.events import build_page

    page, events = build_page(app, tmp_path_factory.mktemp("uploads"))
    yield events
    del page, events
    gc.collect()


def tab_values(events: Any, tab: str, state: PageState) -> list[Any]:
    values = events.controls.from_state(state)
    return [values[name] for name in events.controls.names(tab)]


@pytest.mark.parametrize("tab", LINK_FIELDS)
@pytest.mark.parametrize("state", [PageState(), CHANGED], ids=["default", "changed"])
def test_controls_show_a_state_and_return_it(events: Any, tab: str, state: PageState) -> None:
    state = replace(state, tab=tab)
    assert events.controls.to_state(tab, list(events.controls.from_state(state).values())) == state


def test_a_crash_is_one_sentence_and_the_next_request_works(events: Any, caplog: pytest.LogCaptureFixture) -> None:
    state = PageState(dense=False, budget="12.5%")
    values = tab_values(events, "ask", state)
    message, answer = events.parts["ask_message"], events.parts["ask_answer"]

    def crash(request: PageRequest) -> Iterator[dict[str, Any]]:
        yield {"ask_answer": "half an ans"}
        raise RuntimeError("the disk /srv/host/disk0 is on fire\nTraceback: secret")

    with caplog.at_level(logging.ERROR, "arr_coc.demo"):
        last = list(events.run_tab("ask", crash, REQUEST, lambda: state))[-1]
    assert "The server failed (RuntimeError: the disk disk0 is on fire): try again." in last[message]
    assert "secret" not in last[message]
    assert last[answer] == last[events.parts["ask_link"]] == ""
    assert last[events.parts["ask_copy_python"]]["interactive"] is False
    assert "the disk /srv/host/disk0 is on fire" in caplog.text
    steps = list(events.handler("ask")(REQUEST, *values))
    assert any("37.40" in step.get(answer, "") for step in steps)
    assert any(step.get(events.parts["ask_copy_python"], {}).get("interactive") for step in steps)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level", None),
        ("budget", "much"),
        ("glance", "200%"),
        ("exploit", "much"),
        ("selectors", 3),
        ("question", None),
        ("heat", 1e99),
    ],
)
def test_a_value_that_no_control_sends_is_an_error_message(events: Any, name: str, value: Any) -> None:
    values = events.controls.from_state(PageState()) | {name: value}
    tab = {"selectors": "compare", "level": "channels", "exploit": "knowing"}.get(name, "ask")
    inputs = [values[one] for one in events.controls.names(tab)]
    last = list(events.handler(tab)(REQUEST, *inputs))[-1]
    assert "role='alert'" in last[events.parts[f"{tab}_message"]]


def test_the_end_waits_for_what_a_tab_computes(events: Any) -> None:
    working, ended = threading.Event(), threading.Event()

    def compute(request: PageRequest) -> Iterator[dict[str, Any]]:
        working.set()
        while request.session.interrupts == 0:
            time.sleep(0.01)
        ended.set()
        yield {"ask_answer": "done"}

    work = threading.Thread(target=lambda: list(events.run_tab("ask", compute, REQUEST, PageState)))
    work.start()
    assert working.wait(10)
    assert events.wait(10)
    assert ended.is_set()
    work.join()


def test_the_queue_is_bounded_and_models_run_one_request_at_a_time(events: Any, app: AppState) -> None:
    assert events.page._queue.max_size == app.limits.queue
    limits = {fn.concurrency_id: fn.concurrency_limit for fn in events.page.fns.values() if fn.api_name in LINK_FIELDS}
    assert limits == {"model": 1}


def test_the_parameters_of_the_api_have_the_names_of_the_settings(events: Any) -> None:
    endpoints = events.page.get_api_info()["named_endpoints"]
    assert set(endpoints) == {"/ask", "/compare", "/channels", "/knowing", "/report", "/find", "/send", "/choose"}
    for tab, settings in LINK_FIELDS.items():
        assert {one["parameter_name"] for one in endpoints[f"/{tab}"]["parameters"]} == set(settings)
    assert [one["parameter_name"] for one in endpoints["/send"]["parameters"]] == ["file"]


def test_gradios_copies_of_a_sessions_outputs_are_deleted(events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio.state_holder import StateHolder

    holder = StateHolder()
    holder.set_blocks(events.page)
    monkeypatch.setattr(events.page, "app", SimpleNamespace(state_holder=holder), raising=False)
    state, answer = holder[USER], events.parts["ask_answer"]
    state[10**6] = answer
    state._update_value_in_config(10**6, "an image of several megabytes")
    list(events.handler("ask")(REQUEST, *tab_values(events, "ask", PageState(question=""))))
    assert 10**6 not in state.blocks_config.blocks
    assert 10**6 not in state.config_values
    assert answer._id in state.blocks_config.blocks
