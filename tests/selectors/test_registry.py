"""Selectors by name and from the user's own code; every registered selector answers through a wrapped model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import SelectorError
from arr_coc.selectors import Selector, names, selector
from arr_coc.types.grid import Grid
from tests.adapters import tiny_vlm
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped
from tests.selectors.selections import choice, selection

MODULE = """
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


INSIDE_OR_EARLY = ("resize", "pixelprune", "fastv", "sparsevlm", "dart")  # they do not choose among encoded cells
IMAGE_NAMES = [name for name in names() if name not in ("evs", "oracle", "coupling")]  # coupling needs embeddings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    (tmp_path / "my_selectors.py").write_text(MODULE)
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


def test_a_name_far_from_all_others_gets_no_suggestion() -> None:
    with pytest.raises(SelectorError, match=r"got 'xyzzy'$"):
        selector("xyzzy")


@pytest.mark.parametrize(("name", "kept"), [("First", [0, 1, 2]), ("ready", [0, 1, 2]), ("last", [6, 7, 8])])
def test_a_class_an_object_or_a_function_of_the_user(folder: Path, name: str, kept: list[int]) -> None:
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
def test_a_path_that_fails_raises_one_sentence(folder: Path, path: str, complaint: str) -> None:
    with pytest.raises(SelectorError, match=complaint) as caught:
        selector(path)
    assert "\n" not in str(caught.value)


def test_installed_modules_can_be_named() -> None:
    assert selector("arr_coc.selectors.divprune:DivPrune").name == "divprune"
    assert torch.equal(
        choice(selector("arr_coc.selectors.controls:Centre").select(selection(Grid(1, 3, 3), 1))).keep,
        torch.tensor([4]),
    )


@pytest.fixture(autouse=True)
def _no_fallback(recwarn: Any) -> Any:
    yield
    assert not [w for w in recwarn if issubclass(w.category, arr_coc.errors.FallbackWarning)]


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_selector_answers_by_name(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What is it?", budget=12, selector=name, **GREEDY)
    assert not answer.fallback
    assert answer.allocation.selector == name
    assert answer.allocation.strategy
    if name == "resize":
        assert 0 < answer.tokens["kept"] <= 12
    else:
        assert answer.tokens["kept"] == 12


@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name not in INSIDE_OR_EARLY])
def test_every_selector_chooses_among_the_encoded_cells(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(
        picture(), "What is it?", budget=12, glance=30, glance_selector="random", selector=name, **GREEDY
    )
    assert answer.tokens == {"all": 63, "encoded": 30, "kept": 12}
    assert not answer.fallback


@pytest.mark.parametrize("name", ["centre", "saliency", "ink"])
def test_selectors_that_need_only_pixels_glance(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What?", budget=12, glance=30, selector=name, **GREEDY)
    assert answer.tokens == {"all": 63, "encoded": 30, "kept": 12}


@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name not in INSIDE_OR_EARLY])
def test_a_shared_budget_of_two_images(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(
        [picture(), picture(40, 64, 1)], "Which?", budget=20, shared=True, selector=name, **GREEDY
    )
    assert sum(allocation.k for allocation in answer.allocations) == 20
    assert not answer.fallback


@pytest.mark.parametrize(
    "name", ["evs", "ink", "saliency", "centre", "hiprune", "tome", "idpruner", "pixelprune", "dart"]
)
def test_videos(name: str) -> None:
    frames = [picture(40, 32, seed) for seed in range(4)]
    answer = wrapped("qwen2_vl").generate(videos=[frames], text="What happens?", budget=7, selector=name, **GREEDY)[0]
    assert answer.tokens["kept"] == 7
    assert not answer.fallback


@pytest.mark.parametrize("family", tiny_vlm.FLAT)
@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name != "resize"])
def test_tiles_and_overviews(name: str, family: str) -> None:
    if name == "pixelprune" and not wrapped(family).adapter.glances:
        with pytest.raises(
            SelectorError, match="encodes whole pictures only, and selector 'pixelprune' chooses before"
        ):
            wrapped(family).ask(picture(90, 40), "What is this?", budget=6, selector=name, max_new_tokens=2)
        return
    answer = wrapped(family).ask(picture(90, 40), "What is this?", budget=6, selector=name, max_new_tokens=2)
    assert answer.tokens["kept"] == 6
    assert not answer.fallback
