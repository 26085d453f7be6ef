"""The whole path: what is kept, what is said about it, and when it does not trust itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import arr_coc
from arr_coc import Grid, TextureArray
from arr_coc.errors import ArrCocError, FallbackWarning
from arr_coc.relevance import attending
from arr_coc.relevance.coupling import ATTENTION_FLOOR, blur_along_rows, log_scaled
from arr_coc.relevance.realizing import RelevanceSettings, names_something, realized
from arr_coc.selectors import Selector, selector
from arr_coc.selectors.base import ImageSource, LayerPrediction
from arr_coc.vlm.fallback import call_gaze
from tests.adapters import tiny
from tests.adapters.tiny_vlm import picture, wrapped
from tests.selectors.selections import TILES, choice, selection, words

GRID = Grid(1, 10, 10)


def page() -> Image.Image:
    made = Image.new("RGB", (280, 280), (245, 244, 240))
    pen = ImageDraw.Draw(made)
    for number, line in enumerate(("TEA 1.20", "COFFEE 2.40", "TOTAL 3.60")):
        pen.text((30, 40 + 80 * number), line, fill=(20, 20, 24), font_size=30)
    return made


def look(k: int | None = 20, peak: float = 0.2, at: int = 62, **changes: Any) -> Any:
    """A selection of the page with a scout that finds one cell."""

    def send(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        return torch.where(cells == at, peak, 1e-6)

    texture = TextureArray.from_image(page())
    asked = replace(words(), text="What is the total?")
    return selection(GRID, k, **({"source": ImageSource(texture=texture), "probe": send, "question": asked} | changes))


def test_the_scout_decides_where_it_is_sure() -> None:
    found = realized(look())
    assert len(found.keep) == 20
    assert {61, 62, 63} <= set(found.keep.tolist())
    assert found.relevance is not None
    assert found.relevance.argmax() == 62
    assert set(found.scores) == {"information", "salience", "coupling"}
    assert all(0 <= float(score.min()) <= float(score.max()) <= 1 for score in found.scores.values())
    assert found.strategy.startswith("relevance: ")
    assert all(0 <= value <= 1 for value in found.tensions.values())


def test_a_scout_that_finds_nothing_is_not_followed() -> None:
    blank = next(i for i in range(100) if realized(look()).scores["information"][i] == 0)
    sure, lost = realized(look(at=blank)), realized(look(at=blank, peak=0.01))
    assert blank in sure.keep.tolist()
    assert blank not in lost.keep.tolist()
    assert lost.strategy.startswith("unsure: ")
    assert float(lost.scores["information"][lost.keep].min()) >= float(sure.scores["information"][sure.keep].min())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(wrong: float) -> None:
    def send(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        return torch.full((len(cells),), wrong)

    with pytest.raises(ArrCocError, match="finite coupling from the probe"):
        realized(look(probe=send))
    with pytest.warns(FallbackWarning, match="evenly spaced cells are kept instead"):
        found, why = call_gaze(selector("arr-coc"), look(probe=send))
    assert "finite coupling" in why
    assert len(found.keep) == 20


def test_a_question_that_names_nothing() -> None:
    vague = look(question=replace(words(), text="What is this about?"))
    assert realized(vague).strategy.startswith("vague: ")
    assert not names_something("What is this?")
    assert names_something("What is the total?")


@pytest.mark.parametrize("kind", ["flat", "noise"])
def test_a_void_is_spread_evenly(kind: str) -> None:
    pixels = torch.full((3, 280, 280), 0.7)
    if kind == "noise":
        pixels = pixels + 0.02 * torch.randn(1, 280, 280, generator=torch.Generator().manual_seed(0))
    found = realized(look(source=ImageSource(texture=TextureArray.from_image(pixels.clamp(0, 1)))))
    assert found.strategy.startswith("void: ")
    assert found.keep.tolist() == choice(selector("uniform").select(selection(GRID, 20))).keep.tolist()


def test_without_anything_that_understands_it_the_question_is_not_used() -> None:
    found = realized(look(probe=None))
    assert found.strategy.startswith("no question: ")
    assert set(found.scores) == {"information", "salience"}


@pytest.mark.parametrize(
    "settings", [{"balance": "oppose"}, {"coupling": "tokens"}, {"coupling": "none"}, {"diverse": False}]
)
@pytest.mark.parametrize("k", [0, 1, 7, 100, None])
def test_every_setting_keeps_its_budget(settings: dict[str, Any], k: int | None) -> None:
    found = realized(look(k), RelevanceSettings(**settings))
    assert 64 <= len(found.keep) <= 100 if k is None else len(found.keep) == k
    assert found.keep.tolist() == sorted(set(found.keep.tolist()))


def test_tiles_and_some_of_the_cells() -> None:
    found = realized(
        selection(TILES, 5, torch.arange(0, 26, 2), probe=lambda cells, depths: torch.ones(len(cells)) / 26)
    )
    assert len(found.keep) == 5
    assert (found.keep % 2 == 0).all()


def test_glow_is_shared_along_the_line() -> None:
    values = torch.zeros(100)
    values[55] = 1
    wide = blur_along_rows(values, GRID)
    assert wide[55] == 1
    assert wide[54] == wide[56] == 0.5
    assert wide[45] == wide[65] == pytest.approx(0.1)
    edge = blur_along_rows(torch.eye(100)[59], GRID)
    assert edge[60] == 0  # the next row does not go on
    assert log_scaled(torch.tensor([1.0, ATTENTION_FLOOR, ATTENTION_FLOOR / 10, 0])).tolist() == pytest.approx(
        [1, 0, 0, 0], abs=1e-6
    )
    assert log_scaled(torch.zeros(3)).tolist() == [0, 0, 0]


# As users call it


@pytest.mark.parametrize("family", list(tiny.CONFIGS))
def test_realize_and_ask_say_the_same(family: str) -> None:
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
    assert "the question was not used" in found.notes[-1]
    assert arr_coc.realize(page(), "", grid=(12, 9), budget=10).notes == ()
    assert arr_coc.realize(page(), "x").grid == Grid(1, 10, 10)
    assert '"strategy": "no question' in found.to_json()


def test_a_previous_allocation_is_remembered() -> None:
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
def test_bad_input(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArrCocError, match=complaint):
        arr_coc.realize(page(), **({"question": "What?"} | given))


def test_pictures_and_grids_that_do_not_belong_together() -> None:
    vlm = wrapped("qwen2_vl")
    other = TextureArray.from_image(picture(40, 64))
    with pytest.raises(ArrCocError, match="40 x 64 px, and the look at one of 72 x 56 px"):
        arr_coc.realize(other, "What?", using=vlm, look=vlm.look(picture()))
    with pytest.raises(ArrCocError, match="own grid of 1 x"):
        arr_coc.realize(picture(), "What?", grid=(3, 3), using=vlm)
    with pytest.raises(ArrCocError, match="one picture, got 2"):
        arr_coc.realize(picture(), "What?", using=vlm, look=vlm.look([picture(), picture()]))


def test_it_is_a_selector_like_any_other() -> None:
    made = selector("arr-coc")
    assert isinstance(made, Selector)
    values = made.relevance(look())
    assert values is not None
    assert values.shape == (100,)


def test_a_budget_by_mass_keeps_what_holds_it() -> None:
    texture = TextureArray.from_image(page())
    counts = [arr_coc.realize(texture, "", (10, 10), f"mass {share}%").k for share in (20, 60, 100)]
    assert 0 < counts[0] < counts[1] < counts[2] <= 50
    with pytest.raises(ArrCocError, match='"mass 90%"'):
        arr_coc.realize(texture, "", (10, 10), "mass of 9")


def test_a_budget_by_mass_is_for_selectors_that_score() -> None:
    assert 0 < len(choice(selector("ink").select(look(None, mass=0.5))).keep) < 50
    with pytest.raises(ArrCocError, match="no scores to derive a mass from"):
        selector("uniform").select(look(None, mass=0.5))


def test_a_model_is_asked_by_mass_at_both_stages() -> None:
    vlm = wrapped("qwen2_vl")
    made = vlm.prepare(images=[picture()], text="What is it?", budget="mass 50%", glance="mass 90%").allocations[0]
    assert 0 < made.k <= len(made.encoded) < made.n
    with pytest.raises(ArrCocError, match="shared budget, got 'mass 50%'"):
        vlm.prepare(images=[[picture(), picture()]], text="What is it?", budget="mass 50%", shared=True)


def test_weights_and_the_tension_can_be_set_by_hand() -> None:
    found = realized(look())
    explored = realized(look(), RelevanceSettings(exploit=0.0))
    assert found.tensions["exploit"] == 1
    assert explored.tensions["exploit"] == explored.tensions["focus"] == explored.tensions["weight of coupling"] == 0
    assert explored.tensions["weight of information"] == 1
    blind = realized(look(), RelevanceSettings(weights={"coupling": 0.0}))
    assert blind.tensions["weight of coupling"] == 0
    assert blind.tensions["weight of information"] == found.tensions["weight of information"]
    assert blind.keep.tolist() != found.keep.tolist()
    same = {name.removeprefix("weight of "): w for name, w in found.tensions.items() if name.startswith("weight of ")}
    assert realized(look(), RelevanceSettings(weights=same)).keep.tolist() == found.keep.tolist()


@pytest.mark.parametrize("wrong", [{"exploit": 1.5}, {"weights": {"luck": 1.0}}, {"weights": {"coupling": -1.0}}])
def test_weights_that_make_no_sense_are_one_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArrCocError, match="expected"):
        RelevanceSettings(**wrong)


def test_a_layer_s_scores_are_weighed_by_hand_too() -> None:
    vlm, receipt = arr_coc.load("reader"), arr_coc.pictures.receipt()
    seen = vlm.look(receipt)
    question = "What is the date?"
    found = arr_coc.realize(receipt, question, budget=60, using=vlm, look=seen)
    blind = arr_coc.realize(receipt, question, budget=60, using=vlm, look=seen, weights={"coupling": 0.0})
    assert found.strategy.endswith("(coupling by layer)")
    assert blind.tensions["weight of coupling"] == 0
    assert torch.equal(blind.scores["coupling"], found.scores["coupling"])
    assert blind.keep.tolist() != found.keep.tolist()


def judges(chances: torch.Tensor) -> Any:
    """What a layer is to a selection, for one that says this `[N]` of every picture and question."""

    def learned(seen: Any) -> LayerPrediction:
        mine = chances[seen.candidates]
        return LayerPrediction(mine, dict.fromkeys(("information", "salience", "coupling"), mine), {}, confidence=4.0)

    return learned


def beginning_of_a_line() -> torch.Tensor:
    """Chances of a layer that is sure of where "TOTAL" begins, and looks at the other lines for the rest."""
    chances = torch.full((10, 10), 0.01)
    chances[7, 1:3] = 0.95
    chances[[1, 4], 1:6] = 0.2
    return chances.flatten()


def test_a_layer_keeps_the_line_that_it_is_surest_of_whole() -> None:
    chances = beginning_of_a_line()
    sure = look(8, layer=judges(chances))
    text = TextureArray.from_image(page()).grid(10, 10, ["text"])[0].flatten()
    written = [cell for cell in range(70, 80) if text[cell] > 0.5 * text.max()]
    assert len(written) > 4
    found = realized(sure)
    assert found.strategy.endswith("(coupling by layer)")
    assert set(written) <= set(found.keep.tolist())
    assert found.relevance is not None
    assert torch.equal(found.relevance[chances == 0.2], found.relevance[14].expand(10))  # relevance is the layer's own
    assert found.relevance[75] == 0 < found.relevance[14]
    some = torch.arange(0, 100, 2)  # encoded
    among = realized(replace(sure, candidates=some, tokens=sure.tokens[some], k=4))
    assert set(among.keep.tolist()) <= set(some.tolist())
    assert len([cell for cell in among.keep.tolist() if cell in written]) > 1


def test_before_the_encoder_cells_are_kept_by_relevance_alone() -> None:
    chances = beginning_of_a_line()
    found = realized(replace(look(8, layer=judges(chances)), tokens=None, probe=None))
    assert found.strategy.endswith("(coupling by layer)")
    assert found.keep.tolist() == attending.most_relevant(chances, 8).tolist()


def test_how_many_are_kept_is_read_from_relevance_and_not_from_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ({"k": None}, {"k": None, "mass": 0.9}):
        sure = replace(look(layer=judges(beginning_of_a_line())), **budget)
        with_lines = len(realized(sure).keep)
        with monkeypatch.context() as patch:
            patch.setattr(attending, "LINE_WEIGHT", 0.0)
            assert len(realized(sure).keep) == with_lines


def test_weights_that_somebody_sets_are_followed_without_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = RelevanceSettings(weights={"information": 1.0})
    sure = look(8, layer=judges(beginning_of_a_line()))
    kept = realized(sure, mine).keep
    monkeypatch.setattr(attending, "LINE_WEIGHT", 0.0)
    assert torch.equal(realized(sure, mine).keep, kept)
