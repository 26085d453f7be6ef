"""An app with the bundled reader, requests to it, and two reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import arr_coc
from arr_coc.demo.app import AppState, PageRequest, load_app
from arr_coc.demo.inputs import read_examples
from arr_coc.demo.limits import Limits
from arr_coc.demo.state import PageState

USER = "user"  # the session id of the tests
MakeRequest = Callable[..., PageRequest]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an annotated image, and two reports about it."""
    place = tmp_path_factory.mktemp("files")
    data = place / "data"
    data.mkdir()
    arr_coc.pictures.receipt().save(data / "a.png")
    lines = [
        {"image": "a.png", "question": question, "answer": answer, "evidence": [[box]]}
        for question, answer, box in (
            ("What is the total amount?", "37.40", [422, 732, 522, 772]),
            ("What is the date?", "12/03/2026", [112, 330, 250, 360]),
        )
    ]
    (data / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reader = arr_coc.load("reader")
    for name, selectors in (("first", ["uniform", "arr-coc"]), ("second", ["arr-coc"])):
        arr_coc.evaluate(reader, str(data), selectors, ["12.5%"], tokens=12).page(place / "runs" / name)
    return place


@pytest.fixture(scope="session")
def app(files: Path) -> AppState:
    return load_app(["reader"], Limits(letters=300), files, read_examples(files / "data")[0])


@pytest.fixture
def make_request(app: AppState) -> Iterator[MakeRequest]:
    """A request with the given settings; the session is removed after the test."""
    yield lambda **settings: app.request(USER, PageState(**settings))
    app.sessions.remove(USER)


def last_outputs(steps: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """All outputs of a tab, the last of each name."""
    found: dict[str, Any] = {}
    for output in steps:
        found |= output
    return found
