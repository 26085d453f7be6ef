"""The Python code that the page shows runs, and prints what the page shows."""

from __future__ import annotations

from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import arr_coc
from arr_coc.demo.app import AppState
from arr_coc.demo.inputs import Upload
from tests.demo.conftest import USER, MakeRequest, last_outputs

LOAD = cache(arr_coc.load)  # each model is loaded once for all of these tests
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "ask": ({"budget": "12.5%"}, "37.40 {'all': 860"),
    "ask about an upload": ({"image": "", "dense": False, "layer": "none", "budget": "25%"}, "37.40 {'all': 860"),
    "compare": ({"selectors": ("oracle", "uniform"), "budget": "50%"}, "uniform 37.40"),
    "compare on data": (
        {"selectors": ("random", "all"), "image": "data/a.png", "question": "What is the date?"},
        "all 12/03/2026",
    ),
    "channels": ({"point": "0.5, 0.5", "level": 1}, "'eccentricity': 0"),
    "knowing": ({"weights": "coupling 0.5", "exploit": 0.7, "learned": False}, "'exploit': 0.7"),
    "report": ({"report": "runs/first"}, "arr-coc 12.5% 1.0"),
    "report compared": ({"report": "runs/first", "against": "runs/second"}, "arr-coc 12.5% 1.0 1.0 0.0"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of event loops that gradio makes when it is imported
@pytest.mark.parametrize("case", CASES)
def test_the_code_runs(
    case: str, make_request: MakeRequest, app: AppState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arr_coc.demo.page.events import RUN_TAB

    settings, expected = CASES[case]
    tab = case.split()[0]
    monkeypatch.chdir(tmp_path)
    if settings.get("image") == "":
        arr_coc.pictures.receipt().save("mine.png")
        app.sessions.get(USER).set_upload(Upload("mine.png", arr_coc.pictures.receipt()))
    code = last_outputs(RUN_TAB[tab](make_request(tab=tab, **settings)))[f"{tab}_python"]
    monkeypatch.setattr(arr_coc, "load", LOAD)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "copied.py", "exec"), {})
    assert expected in printed.getvalue()
