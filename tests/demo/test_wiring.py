"""From values to a view and back; and what a visitor sees when something breaks."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arr_coc.demo.serving import Place, free_port, gradio_module, served
from arr_coc.demo.views import FIELDS, View
from arr_coc.demo.visit import House, Visit
from arr_coc.errors import ArrCocError
from tests.demo.test_views import UNUSUAL

# gradio makes event loops when it is imported and never closes them; they are collected before other tests begin.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def made(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page that nobody serves, and its wiring."""
    from arr_coc.demo.page import building, wiring

    found: dict[str, Any] = {}

    class Kept(wiring.Wiring):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found["wiring"] = self

    building.Wiring = Kept  # type: ignore[misc]
    found["page"] = building.build(house, tmp_path_factory.mktemp("uploads"))
    building.Wiring = wiring.Wiring  # type: ignore[misc]
    yield SimpleNamespace(**found)
    found.clear()
    gc.collect()


REQUEST: Any = SimpleNamespace(session_hash="somebody")


@pytest.mark.parametrize("tab", FIELDS)
def test_controls_show_a_view_and_give_it_back(made: Any, tab: str) -> None:
    controls = made.wiring.controls
    view = replace(UNUSUAL, tab=tab)
    assert controls.view(tab, list(controls.values(view).values())) == view
    usual = replace(View(), tab=tab)
    assert controls.view(tab, list(controls.values(usual).values())) == usual


def test_a_crash_is_a_sentence_and_the_next_request_is_answered(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    wiring = made.wiring
    values = list(wiring.controls.values(View(dense=False, budget="12.5%")).values())
    told = wiring.parts["ask_told"]

    def broken(visit: Visit) -> Iterator[dict[str, Any]]:
        yield {"ask_answer": "half an ans"}
        raise RuntimeError("the disk is on fire\nTraceback: secret")

    with caplog.at_level(logging.ERROR, "arr_coc.demo"):
        last = list(wiring.shown("ask", broken, REQUEST, values))[-1]
    assert "not by your doing (RuntimeError: the disk is on fire): try again" in last[told]
    assert "secret" not in last[told]
    assert last[wiring.parts["ask_answer"]] == ""
    assert "the disk is on fire" in caplog.text
    answers = [step.get(wiring.parts["ask_answer"], "") for step in wiring.handler("ask")(REQUEST, *values)]
    assert "37.40" in answers[-1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("level", None), ("budget_stop", 77), ("budget_stop", "x"), ("exploit", "much"), ("selectors", 3), ("question", None), ("heat", 1e99)],
)  # fmt: skip
def test_values_that_no_control_sends(made: Any, name: str, value: Any) -> None:
    wiring = made.wiring
    values = wiring.controls.values(View()) | {name: value}
    tab = "compare" if name == "selectors" else "ask"
    last = list(wiring.handler(tab)(REQUEST, *values.values()))[-1]
    assert "role='alert'" in last[wiring.parts[f"{tab}_told"]]


def test_the_queue_is_bounded_and_models_take_turns(made: Any, house: House) -> None:
    page = made.page
    assert page._queue.max_size == house.limits.queue
    limits = {fn.concurrency_id: fn.concurrency_limit for fn in page.fns.values() if fn.api_name in FIELDS}
    assert limits == {"model": 1}


def test_copies_that_gradio_keeps_of_a_visitor_s_outputs_go(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio.state_holder import StateHolder

    holder = StateHolder()
    holder.set_blocks(made.page)
    monkeypatch.setattr(made.page, "app", SimpleNamespace(state_holder=holder), raising=False)
    state, answer = holder["somebody"], made.wiring.parts["ask_answer"]
    state[10**6] = answer
    state._update_value_in_config(10**6, "a picture of several megabytes")
    values = list(made.wiring.controls.values(View(question="")).values())
    list(made.wiring.handler("ask")(REQUEST, *values))
    assert 10**6 not in state.blocks_config.blocks
    assert 10**6 not in state.config_values
    assert answer._id in state.blocks_config.blocks


def test_what_stands_in_the_way_of_a_page(monkeypatch: pytest.MonkeyPatch, house: House, tmp_path: Path) -> None:
    import socket
    import sys

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ArrCocError, match="cannot listen on 127"):
            free_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ArrCocError, match="from 1 to 65535"):
        free_port("127.0.0.1", 70_000)
    with pytest.raises(ArrCocError, match="cannot listen on nowhere"), served(house, Place("nowhere.invalid", 7999)):
        pass
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ArrCocError, match="pip install 'arr-coc"):
        gradio_module()
