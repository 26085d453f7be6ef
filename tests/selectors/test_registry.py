"""Selectors by name, and from the user's own code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors import Selector, names, selector
from arr_coc.types.grid import Grid
from tests.selectors.selections import choice, selection

MINE = """
import torch
from arr_coc.selectors import Selector

class First(Selector):
    def select(self, selection):
        return selection.candidates[: selection.count]

class Needy(Selector):
    def __init__(self, what):
        self.what = what

class Other:
    pass

def last(selection):
    return selection.candidates[len(selection.candidates) - selection.count :]

ready = First()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    (tmp_path / "my_selectors.py").write_text(MINE)
    (tmp_path / "my_broken_selectors.py").write_text("raise RuntimeError('out of cheese')")
    monkeypatch.chdir(tmp_path)
    for name in ("my_selectors", "my_broken_selectors"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in names() if name != "oracle"])
def test_every_name_makes_a_selector_of_that_name(name: str) -> None:
    made = selector(name)
    assert made.name == name
    assert type(made).__doc__ or sys.modules[type(made).__module__].__doc__


@pytest.mark.parametrize(
    ("typed", "meant"), [("divprun", "divprune"), ("center", "centre"), ("CDPruner", "cdpruner"), ("fast-v", "fastv")]
)
def test_an_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(SelectorError, match=f"got '{typed}'; did you mean '{meant}'") as caught:
        selector(typed)
    assert "\n" not in str(caught.value)


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    with pytest.raises(SelectorError, match=r"got 'xyzzy'$"):
        selector("xyzzy")


@pytest.mark.parametrize(("name", "kept"), [("First", [0, 1, 2]), ("ready", [0, 1, 2]), ("last", [6, 7, 8])])
def test_a_class_an_object_or_a_function_of_one_s_own(folder: Path, name: str, kept: list[int]) -> None:
    path = list(sys.path)
    made = selector(f"my_selectors:{name}")
    assert isinstance(made, Selector)
    assert made.name == name
    assert choice(made.select(selection(Grid(1, 3, 3), 3))).keep.tolist() == kept
    assert sys.path == path


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("my_selectors:Missing", "has no 'Missing'"),
        ("my_selectors:Needy", "cannot be made without arguments"),
        ("my_selectors:Other", "got the class Other"),
        ("my_selectors:number", "got int"),
        ("my_selectors:", 'as "module:Name"'),
        (":First", 'as "module:Name"'),
        ("no_such_module:First", "cannot be imported .*no_such_module"),
        ("my_broken_selectors:First", "RuntimeError: out of cheese"),
    ],
)
def test_what_goes_wrong_is_one_sentence(folder: Path, path: str, complaint: str) -> None:
    with pytest.raises(SelectorError, match=complaint) as caught:
        selector(path)
    assert "\n" not in str(caught.value)


def test_installed_modules_count_too() -> None:
    assert selector("arr_coc.selectors.divprune:DivPrune").name == "divprune"
    assert torch.equal(
        choice(selector("arr_coc.selectors.controls:Centre").select(selection(Grid(1, 3, 3), 1))).keep,
        torch.tensor([4]),
    )
