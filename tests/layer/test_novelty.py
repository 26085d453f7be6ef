"""Distance of images and questions from a layer's training data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc import reader
from arr_coc.layer import ArrCocLayer, novelty
from arr_coc.layer.model import CHANNELS
from arr_coc.layer.novelty import SLOW_CHANNELS, fit_images, image_novelty, image_statistics, marginal_novelty
from arr_coc.relevance.coupling import Coupled
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.selectors.base import LayerPrediction
from arr_coc.training.documents.questions import PLAIN
from arr_coc.training.examples import selection_input
from tests.training import squares


def test_images_of_another_kind_are_novel() -> None:
    channels = [torch.rand(1, 10, 6, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(64)]
    mean, inverse = fit_images([image_statistics(one, CHANNELS) for one in channels])
    like = [float(image_novelty(image_statistics(one, CHANNELS), mean, inverse)) for one in channels]
    assert sum(like) / len(like) == pytest.approx(1, abs=0.2)
    assert image_novelty(image_statistics(0.1 * channels[0], CHANNELS), mean, inverse) > 10 * max(like)
    moved = channels[0].clone()
    moved[:, [CHANNELS.index(name) for name in ("x", "y", "eccentricity")]] = 0.9  # positions do not count
    assert float(image_novelty(image_statistics(moved, CHANNELS), mean, inverse)) == pytest.approx(like[0])


def test_some_channels_bound_the_novelty_from_below() -> None:
    channels = [
        torch.rand(1, 10, 6, 5, generator=torch.Generator().manual_seed(seed)).cumsum(1) / 10 for seed in range(64)
    ]
    mean, inverse = fit_images([image_statistics(one, CHANNELS) for one in channels])
    for fast in (CHANNELS[:3], tuple(name for name in CHANNELS if name not in SLOW_CHANNELS), CHANNELS):
        places = [CHANNELS.index(name) for name in fast]
        for image in (channels[0], 0.5 * channels[1], torch.ones(1, 10, 2, 2)):
            whole = float(image_novelty(image_statistics(image, CHANNELS), mean, inverse))
            bound = marginal_novelty(image_statistics(image[:, places], fast), fast, CHANNELS, mean, inverse)
            assert bound <= whole * (1 + 1e-3)
            assert fast != CHANNELS or bound == pytest.approx(whole, rel=1e-3)
    some = torch.tensor([0, 1, 2, 7, 8, 9])  # means and standard deviations of the first three channels
    covariance = torch.linalg.inv(inverse.double())[some][:, some]
    away = torch.rand(6, dtype=torch.float64)
    found = marginal_novelty(mean[some] + away, CHANNELS[:3], CHANNELS, mean, inverse)
    assert found == pytest.approx(float(away @ torch.linalg.solve(covariance, away)) / 14, rel=1e-2)


def test_padding_does_not_change_a_question() -> None:
    words = torch.randn(1, 3, 4)
    longer = torch.cat([words, torch.full((1, 2, 4), 9.0)], dim=1)
    mask = torch.tensor([[True, True, True, False, False]])
    assert torch.equal(novelty.pool_words(longer, mask), novelty.pool_words(words, mask[:, :3]))


def test_only_other_questions_are_novel() -> None:
    torch.manual_seed(0)
    kinds = torch.randn(5, 32)
    questions = kinds.repeat(40, 1) + 0.3 * torch.randn(200, 32)
    kept, middle, near = novelty.fit_questions(questions)
    old, new = (float(novelty.question_novelty(one, kept, middle, near)) for one in (questions[7], torch.randn(32)))
    assert old is not None
    assert new is not None
    assert old < 0.1 < 1 < new


def test_near_duplicates_are_stored_once_up_to_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    questions = torch.randn(300, 16)
    kept, middle, _ = novelty.fit_questions(questions.repeat(3, 1) + 1e-3 * torch.randn(900, 16))
    assert 250 < len(kept) <= 300
    away = novelty.nearest_distances(F.normalize(questions - middle, dim=-1), kept.float())
    assert float(away.max()) < 2 * novelty.DUPLICATE  # every question is near a stored one
    monkeypatch.setattr(novelty, "MAX_QUESTIONS", 50)
    assert len(novelty.fit_questions(questions)[0]) == 50


def test_one_stored_question_suffices() -> None:
    kept, _, near = novelty.fit_questions(torch.randn(1, 8))
    assert len(kept) == 1
    assert float(near) == pytest.approx(novelty.DUPLICATE)


def test_without_stored_questions_none_is_familiar_or_unfamiliar() -> None:
    nothing = torch.zeros(4)
    predictions = [LayerPrediction(nothing, {}, {}, question_novelty=value) for value in (None, 0.5, 1.5)]
    found = [Coupled(nothing, "layer", prediction=prediction) for prediction in predictions]
    assert [one.question_unfamiliar for one in found] == [False, False, True]
    assert [one.question_familiar for one in found] == [False, True, False]
    assert not Coupled(nothing, "probe").question_familiar


def test_stored_questions_are_saved(tmp_path: Path) -> None:
    layer = squares.layer(squares.model())
    layer.store_questions(torch.randn(20, layer.config.width))
    layer.save_pretrained(tmp_path)
    again = ArrCocLayer.from_pretrained(tmp_path)
    for name in ("asked", "middle", "near"):
        assert torch.equal(getattr(again, name), getattr(layer, name))


def test_the_shipped_layer_knows_the_questions_about_receipts() -> None:
    layer, vlm = ArrCocLayer.from_pretrained(reader.WEIGHTS), arr_coc.load("reader", layer=None)

    def distance(question: str) -> float:
        words = vlm.adapter.embed(vlm.prompter.ids(question)).detach()
        with torch.no_grad():
            words = layer.question_vectors(*novelty.pad_questions([words]))[0]
        return float(novelty.question_novelty(words, layer.asked, layer.middle, layer.near))

    assert all(distance(PLAIN[kind]) < 0.2 for kind in ("total", "date", "company", "address"))
    assert distance("How many dogs are asleep under the piano?") > 1


@pytest.mark.parametrize(
    ("question", "vague"),
    [("How much is it?", False), ("When was this?", False), ("What is this?", True), ("Describe the image.", True)],
)
def test_a_training_question_is_not_vague(question: str, vague: bool) -> None:
    vlm = arr_coc.load("reader")
    selection = selection_input(vlm, vlm.look(arr_coc.pictures.receipt().crop((0, 0, 560, 560))), question)
    for one in (selection, replace(selection, tokens=None, probe=None)):  # after and before encoding
        assert realized(replace(one, k=40)).strategy.startswith("vague: ") is vague
    untrained = realized(replace(selection, k=40), RelevanceSettings(learned=False))
    assert untrained.strategy.startswith("vague: ")  # no word names a thing
