"""A house with the reader in it, visitors, and a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import arr_coc
from arr_coc.demo.examples import of_folder
from arr_coc.demo.limits import Limits
from arr_coc.demo.serving import house_of
from arr_coc.demo.views import View
from arr_coc.demo.visit import House, Visit


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with annotated pictures, and two reports about them."""
    place = tmp_path_factory.mktemp("files")
    data = place / "data"
    data.mkdir()
    arr_coc.pictures.receipt().save(data / "a.png")
    lines = [
        {
            "image": "a.png",
            "question": "What is the total amount?",
            "answer": "37.40",
            "evidence": [[[422, 732, 522, 772]]],
        },
        {
            "image": "a.png",
            "question": "What is the date?",
            "answer": "12/03/2026",
            "evidence": [[[112, 330, 250, 360]]],
        },
    ]
    (data / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reader = arr_coc.load("reader")
    for name, selectors in (("first", ["uniform", "arr-coc"]), ("second", ["arr-coc"])):
        arr_coc.evaluate(reader, str(data), selectors, ["12.5%"], tokens=12).page(place / "runs" / name)
    return place


@pytest.fixture(scope="session")
def house(files: Path) -> House:
    return house_of(["reader"], Limits(letters=300), files, of_folder(files / "data")[0])


@pytest.fixture
def visit(house: House) -> Iterator[Callable[..., Visit]]:
    """Somebody with a view; the desk is cleared when they leave."""
    yield lambda **view: house.visit("somebody", View(**view))
    house.desks.leave("somebody")


def outcome(steps: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """All outputs of a tab, the last of each name."""
    found: dict[str, Any] = {}
    for made in steps:
        found |= made
    return found
