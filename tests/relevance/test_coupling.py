"""Coupling: which source is used, when it is trusted, and how attention becomes a score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, FallbackWarning, SelectorError
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.novelty import pad_questions
from arr_coc.relevance import coupling
from arr_coc.relevance.coupling import ATTENTION_FLOOR, PROBE_NO_PEAK, blur_along_rows, log_scaled, peak_over_chance
from arr_coc.relevance.realizing import realized
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors import selector
from arr_coc.selectors.registry import call_gaze
from arr_coc.training.examples import selection_input
from arr_coc.vlm.model import VLM
from tests.adapters.tiny_vlm import picture
from tests.relevance.page import GRID, page_selection
from tests.training import squares

ASKED: dict[str, Any] = {"budget": 9, "max_new_tokens": 1}


def test_a_probe_with_a_clear_peak_is_followed() -> None:
    found = realized(page_selection())
    assert len(found.keep) == 20
    assert {61, 62, 63} <= set(found.keep.tolist())
    assert found.relevance is not None
    assert found.relevance.argmax() == 62
    assert set(found.scores) == {"information", "salience", "coupling"}
    assert all(0 <= float(score.min()) <= float(score.max()) <= 1 for score in found.scores.values())
    assert found.strategy.startswith("relevance: ")
    assert all(0 <= value <= 1 for value in found.tensions.values())


def test_a_probe_without_a_peak_is_not_followed() -> None:
    blank = next(i for i in range(100) if realized(page_selection()).scores["information"][i] == 0)
    peaked, flat = realized(page_selection(at=blank)), realized(page_selection(at=blank, peak=0.01, rest=0.008))
    assert blank in peaked.keep.tolist()
    assert blank not in flat.keep.tolist()
    assert flat.strategy.startswith("unsure: ")
    assert float(flat.scores["information"][flat.keep].min()) >= float(peaked.scores["information"][peaked.keep].min())


@pytest.mark.parametrize("scale", [0.1, 1e-4, 3.0])
@pytest.mark.parametrize("rest", [1e-6, 0.002, 0.005, 0.01, 0.02, 0.04, 0.1, 0.2])
def test_the_same_attention_at_another_scale_leads_to_the_same_decision(rest: float, scale: float) -> None:
    found = realized(page_selection(rest=rest))
    scaled = realized(page_selection(peak=0.2 * scale, rest=rest * scale))
    assert scaled.strategy == found.strategy
    assert scaled.tensions["trust"] == pytest.approx(found.tensions["trust"], abs=1e-5)
    assert scaled.keep.tolist() == found.keep.tolist()


def test_trust_falls_from_one_to_zero_as_the_peak_disappears() -> None:
    trusts = [realized(page_selection(rest=rest)).tensions["trust"] for rest in (1e-6, 0.002, 0.008, 0.02, 0.2)]
    assert trusts[0] == 1
    assert trusts[-1] == 0
    assert trusts == sorted(trusts, reverse=True)
    assert any(0 < trust < 1 for trust in trusts)


@pytest.mark.parametrize("count", [2, 30, 500, 4000])
def test_the_peak_is_measured_against_chance_whatever_the_number_of_cells(count: int) -> None:
    assert peak_over_chance(torch.full((count,), 0.3 / count)) == pytest.approx(0, abs=1e-6)
    assert peak_over_chance(torch.cat([torch.full((count,), 1e-9), torch.tensor([0.3])])) == pytest.approx(1, abs=1e-4)
    random = torch.rand(count, generator=torch.Generator().manual_seed(count))  # noise has no peak
    assert peak_over_chance(random) < PROBE_NO_PEAK
    assert peak_over_chance(0.1 * random) == pytest.approx(peak_over_chance(random), abs=1e-6)
    assert peak_over_chance(torch.zeros(count)) == 0
    assert peak_over_chance(random[:1]) == 0


def test_cells_that_the_probe_did_not_read_do_not_count_as_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        return torch.full((len(cells),), 0.01)

    monkeypatch.setattr(coupling, "PROBED_MIN", 10)  # half of the cells are read, all alike
    assert realized(page_selection(probe=probe)).tensions["trust"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_raise(value: float) -> None:
    def probe(cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        return torch.full((len(cells),), value)

    with pytest.raises(ArrCocError, match="finite coupling from the probe"):
        realized(page_selection(probe=probe))
    with pytest.warns(FallbackWarning, match="evenly spaced cells are kept instead"):
        found, why = call_gaze(selector("arr-coc"), page_selection(probe=probe))
    assert "finite coupling" in why
    assert len(found.keep) == 20


def test_without_a_source_of_coupling_the_question_is_not_used() -> None:
    found = realized(page_selection(probe=None))
    assert found.strategy.startswith("no question: ")
    assert set(found.scores) == {"information", "salience"}


def test_attention_is_blurred_along_rows_and_log_scaled() -> None:
    values = torch.zeros(100)
    values[55] = 1
    wide = blur_along_rows(values, GRID)
    assert wide[55] == 1
    assert wide[54] == wide[56] == 0.5
    assert wide[45] == wide[65] == pytest.approx(0.1)
    edge = blur_along_rows(torch.eye(100)[59], GRID)
    assert edge[60] == 0  # rows do not continue in the next one
    assert log_scaled(torch.tensor([1.0, ATTENTION_FLOOR, ATTENTION_FLOOR / 10, 0])).tolist() == pytest.approx(
        [1, 0, 0, 0], abs=1e-6
    )
    assert log_scaled(torch.zeros(3)).tolist() == [0, 0, 0]


def test_coupling_by_a_missing_layer_raises() -> None:
    vlm = squares.model()
    selection = selection_input(vlm, vlm.look(picture(64, 64)), "Which?")
    with pytest.raises(SelectorError, match="coupling='layer' needs a trained layer, and this model has none"):
        ArrCoc(coupling="layer").select(selection)


def test_a_layer_is_not_used_on_an_unfamiliar_image() -> None:
    vlm = squares.model()
    layer = squares.confident(squares.layer(vlm))
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    image = picture(64, 64)
    assert "layer" in trained.ask(image, "Which one?", **ASKED).allocation.strategy
    layer.unusual.copy_(1e6 * torch.eye(len(layer.usual)))
    assert "layer" not in trained.ask(image, "Which one?", **ASKED).allocation.strategy


def test_an_unfamiliar_question_also_runs_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    layer = squares.confident(squares.layer(vlm))
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    image = picture(64, 64)

    def strategy(question: str) -> str:
        return trained.ask(image, question, **ASKED).allocation.strategy

    assert "(coupling by layer)" in strategy("Which one?")  # no questions are stored: none is unfamiliar
    layer.store_questions(question_vectors(trained, layer, ["Which one?", "Where is the square?"]))
    assert "(coupling by layer)" in strategy("Which one?")
    monkeypatch.setattr(coupling, "PROBE_NO_PEAK", -2.0)  # a random model's attention has no peak: trust it here
    monkeypatch.setattr(coupling, "PROBE_PEAK", -1.0)
    monkeypatch.setattr(coupling, "CONFIRMED_ATTENTION", 0.0)  # wherever the probe's attention is
    assert "(coupling by layer, confirmed by probe)" in strategy("9173, 4, 4, 4?")
    monkeypatch.setattr(coupling, "CONFIRMED_ATTENTION", 1.1)
    assert "(coupling by probe)" in strategy("9173, 4, 4, 4?")


def test_before_encoding_an_unfamiliar_question_weighs_the_layer_with_other_scores() -> None:
    vlm = squares.model()
    layer = squares.confident(squares.layer(vlm))
    layer.store_questions(question_vectors(vlm, layer, ["Which one?", "Where is the square?"]))
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    for question, by, weighed in (
        ("Which one?", "layer", False),
        ("9173, 4, 4, 4?", "layer, unfamiliar question", True),
    ):
        selection = selection_input(trained, trained.look(picture(64, 64)), question)
        found = realized(replace(selection, tokens=None, probe=None, k=9))
        assert found.strategy.endswith(f"(coupling by {by})")
        assert ("weight of text" in found.tensions) is weighed  # the layer's own policy has no weight for text
    everything = trained.prepare(picture(64, 64), "9173, 4, 4, 4?", glance="auto", budget=2)
    assert (
        len(everything.allocations[0].encoded) == everything.allocations[0].n
    )  # nothing relates cells to the question


def question_vectors(vlm: VLM, layer: ArrCocLayer, questions: list[str]) -> torch.Tensor:
    with torch.no_grad():
        return layer.question_vectors(
            *pad_questions([vlm.adapter.embed(vlm.prompter.ids(one)).detach() for one in questions])
        )
