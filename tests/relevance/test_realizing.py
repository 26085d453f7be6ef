"""The whole decision: `realized` on a page, and `arr_coc.realize` as users call it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc import Grid, TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.relevance.realizing import RelevanceSettings, realized
from tests.adapters import families
from tests.adapters.tiny_vlm import picture, wrapped
from tests.relevance.page import page, page_selection
from tests.selectors.selections import TILES, selection


@pytest.mark.parametrize(
    "settings", [{"balance": "oppose"}, {"coupling": "tokens"}, {"coupling": "none"}, {"diverse": False}]
)
@pytest.mark.parametrize("k", [0, 1, 7, 100, None])
def test_every_setting_keeps_the_budget(settings: dict[str, Any], k: int | None) -> None:
    found = realized(page_selection(k), RelevanceSettings(**settings))
    assert 64 <= len(found.keep) <= 100 if k is None else len(found.keep) == k
    assert found.keep.tolist() == sorted(set(found.keep.tolist()))


def test_tiles_with_some_cells_encoded() -> None:
    found = realized(
        selection(TILES, 5, torch.arange(0, 26, 2), probe=lambda cells, depths: torch.ones(len(cells)) / 26)
    )
    assert len(found.keep) == 5
    assert (found.keep % 2 == 0).all()


@pytest.mark.parametrize("family", list(families.QWEN))
def test_realize_and_ask_keep_the_same_cells(family: str) -> None:
    vlm = wrapped(family)
    image = picture(168, 140)
    asked = vlm.prepare([image], "What is the total?", budget="25%", selector="arr-coc").allocations[0]
    for texture in (image, TextureArray.from_image(image)):
        found = arr_coc.realize(texture, "What is the total?", budget="25%", using=vlm)
        assert found.keep.tolist() == asked.keep.tolist()
        assert found.strategy == asked.strategy
    again = arr_coc.realize(image, "What is the total?", budget="25%", using=vlm, look=vlm.look(image))
    assert again.keep.tolist() == asked.keep.tolist()


def test_without_a_model() -> None:
    found = arr_coc.realize(page(), "What is the total?", grid=(12, 9), budget=10)
    assert found.k == 10
    assert found.boxes.shape == (10, 4)
    assert found.strategy.endswith("(coupling by universal layer)")
    blind = arr_coc.realize(page(), "What is the total?", grid=(12, 9), budget=10, learned=False)
    assert "the question was not used" in blind.notes[-1]
    with pytest.raises(ArrCocError, match="expected a question, got an empty one"):
        arr_coc.realize(page(), " ")
    assert arr_coc.realize(page(), "x").grid == Grid(1, 10, 10)
    assert '"strategy": "no question' in blind.to_json()


def test_a_previous_allocation_raises_relevance() -> None:
    first = arr_coc.realize(page(), "x", grid=(10, 10), budget=10)
    elsewhere = arr_coc.Allocation(Grid(1, 10, 10), torch.arange(90, 100), torch.arange(100), "mine")
    second = arr_coc.realize(page(), "x", grid=(10, 10), budget=10, previous=elsewhere)
    assert second.relevance is not None
    assert first.relevance is not None
    assert second.relevance[90:].mean() > first.relevance[90:].mean()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"grid": (0, 3)}, "at least one cell"),
        ({"grid": "many"}, "rows, columns"),
        ({"using": 3}, "got int"),
        ({"question": None}, "question as text, got NoneType"),
        ({"budget": "some"}, "budget as a count"),
        ({"balance": "nothing"}, "balance"),
        ({"coupling": "nothing"}, "coupling"),
    ],
)
def test_invalid_arguments_raise(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArrCocError, match=complaint):
        arr_coc.realize(page(), **({"question": "What?"} | given))


def test_mismatched_images_and_grids_raise() -> None:
    vlm = wrapped("qwen2_vl")
    other = TextureArray.from_image(picture(40, 64))
    with pytest.raises(ArrCocError, match="40 x 64 px, and the look at one of 72 x 56 px"):
        arr_coc.realize(other, "What?", using=vlm, look=vlm.look(picture()))
    with pytest.raises(ArrCocError, match="own grid of 1 x"):
        arr_coc.realize(picture(), "What?", grid=(3, 3), using=vlm)
    with pytest.raises(ArrCocError, match="one picture, got 2"):
        arr_coc.realize(picture(), "What?", using=vlm, look=vlm.look([picture(), picture()]))


def test_a_mass_budget() -> None:
    texture = TextureArray.from_image(page())
    counts = [arr_coc.realize(texture, "?", (10, 10), f"mass {share}%").k for share in (20, 60, 100)]
    assert 0 < counts[0] < counts[1] < counts[2] <= 50
    with pytest.raises(ArrCocError, match='"mass 90%"'):
        arr_coc.realize(texture, "?", (10, 10), "mass of 9")


def test_a_mass_budget_for_glance_and_answer() -> None:
    vlm = wrapped("qwen2_vl")
    made = vlm.prepare(images=[picture()], text="What is it?", budget="mass 50%", glance="mass 90%").allocations[0]
    assert 0 < made.k <= len(made.encoded) < made.n
    with pytest.raises(ArrCocError, match="shared budget, got 'mass 50%'"):
        vlm.prepare(images=[[picture(), picture()]], text="What is it?", budget="mass 50%", shared=True)


@pytest.mark.parametrize("place", [(1, 1), (99, 99), (50, 99)])
def test_a_gaze_keeps_the_cells_around_it_with_or_without_a_question(place: tuple[int, int]) -> None:
    image = picture(100, 100)
    for question in ("", "Where is the dog?"):
        found = arr_coc.realize(image, question, grid=(20, 20), budget=40, gaze=place)
        assert found.k == 40
        centres = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2
        away = (centres - torch.tensor(place)).norm(dim=1)
        assert int((away < 8).sum()) >= 3
        assert "where a person looks decides" in found.strategy
    several = arr_coc.realize(image, grid=(20, 20), budget=40, gaze=[(1, 1), (99, 99)])
    assert {0, 399} <= set(several.keep.tolist())
    with pytest.raises(ArrCocError, match="inside the picture of 100 x 100 pixels, got"):
        arr_coc.realize(image, gaze=(101, 5))
    with pytest.raises(ArrCocError, match="expected a question"):
        arr_coc.realize(image, using=wrapped("qwen2_vl"), gaze=(1, 1))


def test_a_gaze_moves_what_a_model_reads() -> None:
    vlm, image = wrapped("qwen2_vl"), picture(168, 140)
    for glance in ("all", "50%"):
        found = [
            vlm.ask(image, "What is it?", budget="20%", glance=glance, gaze=gaze, max_new_tokens=2).allocation
            for gaze in ((1, 1), (167, 139))
        ]
        assert 0 in found[0].keep.tolist()
        assert found[1].n - 1 in found[1].keep.tolist()
    everything = vlm.ask(image, "What is it?", gaze=(1, 1), max_new_tokens=2)
    assert everything.tokens["kept"] <= everything.tokens["all"]
    with pytest.raises(ArrCocError, match="inside the picture of 168 x 140 pixels"):
        vlm.ask(image, "What is it?", gaze=(500, 1))
    with pytest.raises(ArrCocError, match="expected one picture for a gaze, got image, image"):
        vlm.ask([image, image], "What is it?", gaze=(5, 1))
    with pytest.raises(ArrCocError, match="expected one picture for a gaze, got video"):
        vlm.ask(None, "What is it?", videos=[[image, image]], gaze=(5, 1))
    with pytest.raises(ArrCocError, match="uses the gaze, got 'random'"):
        vlm.ask(image, "What is it?", selector="random", budget=5, gaze=(5, 1))


def test_weights_and_the_exploit_tension_can_be_set() -> None:
    found = realized(page_selection())
    explore = realized(page_selection(), RelevanceSettings(exploit=0.0))
    assert found.tensions["exploit"] == 1
    assert explore.tensions["exploit"] == explore.tensions["focus"] == explore.tensions["weight of coupling"] == 0
    assert explore.tensions["weight of information"] == 1
    uncoupled = realized(page_selection(), RelevanceSettings(weights={"coupling": 0.0}))
    assert uncoupled.tensions["weight of coupling"] == 0
    assert uncoupled.tensions["weight of information"] == found.tensions["weight of information"]
    assert uncoupled.keep.tolist() != found.keep.tolist()
    same = {name.removeprefix("weight of "): w for name, w in found.tensions.items() if name.startswith("weight of ")}
    assert realized(page_selection(), RelevanceSettings(weights=same)).keep.tolist() == found.keep.tolist()


@pytest.mark.parametrize("wrong", [{"exploit": 1.5}, {"weights": {"luck": 1.0}}, {"weights": {"coupling": -1.0}}])
def test_weights_out_of_range_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArrCocError, match="expected"):
        RelevanceSettings(**wrong)


def test_weights_apply_to_a_layers_scores_too() -> None:
    vlm, receipt = arr_coc.load("reader"), arr_coc.pictures.receipt()
    seen = vlm.look(receipt)
    question = "What is the date?"
    found = arr_coc.realize(receipt, question, budget=60, using=vlm, look=seen, glance="all")
    uncoupled = arr_coc.realize(
        receipt, question, budget=60, using=vlm, look=seen, glance="all", weights={"coupling": 0.0}
    )
    assert found.strategy.endswith("(coupling by layer)")
    assert uncoupled.tensions["weight of coupling"] == 0
    assert torch.equal(uncoupled.scores["coupling"], found.scores["coupling"])
    assert uncoupled.keep.tolist() != found.keep.tolist()
