"""What is copied as Python runs, and says what the page said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import arr_coc
from arr_coc.demo import asking, channels, comparing, knowing, reporting
from arr_coc.demo.uploads import Upload
from arr_coc.demo.visit import House, Visit
from tests.demo.conftest import outcome

LOAD = cache(arr_coc.load)  # each model is read from its folder once for all of these tests
TABS: dict[str, Callable[[Visit], Iterator[dict[str, Any]]]] = {
    "ask": asking.ask, "compare": comparing.compare, "channels": channels.channels, "knowing": knowing.know,
    "report": reporting.report,
}  # fmt: skip
CASES = {
    "ask": ({"budget": "12.5%"}, "37.40 {'all': 860"),
    "ask your own": ({"image": "", "dense": False, "layer": "none", "budget": "25%"}, "37.40 {'all': 860"),
    "compare": ({"selectors": ("oracle", "uniform"), "budget": "50%"}, "uniform 37.40"),
    "compare a folder's": (
        {"selectors": ("random", "all"), "image": "data/a.png", "question": "What is the date?"},
        "all 12/03/2026",
    ),
    "channels": ({"point": "0.5, 0.5", "level": 1}, "'eccentricity': 0"),
    "knowing": ({"weights": "coupling 0.5", "exploit": 0.7, "learned": False}, "'exploit': 0.7"),
    "report": ({"report": "runs/first"}, "arr-coc 12.5% 1.0"),
    "report beside": ({"report": "runs/first", "against": "runs/second"}, "arr-coc 12.5% 1.0 1.0 0.0"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_copied_python_runs(
    case: str, visit: Callable[..., Visit], house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, said = CASES[case]
    tab = case.split()[0]
    monkeypatch.chdir(tmp_path)
    if view.get("image") == "":
        arr_coc.pictures.receipt().save("mine.png")
        house.desks.of("somebody").put(Upload("mine.png", arr_coc.pictures.receipt()))
    code = outcome(TABS[tab](visit(tab=tab, **view)))[f"{tab}_python"]
    monkeypatch.setattr(arr_coc, "load", LOAD)
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "copied.py", "exec"), {})
    assert said in printed.getvalue()
