"""What a layer remembers of the questions that it was trained with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc import reader
from arr_coc.layer import ArrCocLayer
from arr_coc.layer import question_novelty as wording
from arr_coc.relevance.coupling import Coupled
from arr_coc.relevance.realizing import RelevanceSettings, realized
from arr_coc.selectors.base import LayerPrediction
from arr_coc.training.documents.questions import PLAIN
from arr_coc.training.examples import selection_input
from tests.training import squares


def test_padding_does_not_change_what_is_told() -> None:
    heard = torch.randn(1, 3, 4)
    longer = torch.cat([heard, torch.full((1, 2, 4), 9.0)], dim=1)
    there = torch.tensor([[True, True, True, False, False]])
    assert torch.equal(wording.told(longer, there), wording.told(heard, there[:, :3]))


def test_a_question_of_training_is_not_new_and_another_one_is() -> None:
    torch.manual_seed(0)
    kinds = torch.randn(5, 32)
    questions = kinds.repeat(40, 1) + 0.3 * torch.randn(200, 32)
    kept, middle, near = wording.memory(questions)
    old, new = (wording.novelty(one, kept, middle, near) for one in (questions[7], torch.randn(32)))
    assert old is not None
    assert new is not None
    assert old < 0.1 < 1 < new


def test_near_copies_are_remembered_once_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    questions = torch.randn(300, 16)
    kept, middle, _ = wording.memory(questions.repeat(3, 1) + 1e-3 * torch.randn(900, 16))
    assert 250 < len(kept) <= 300
    away = wording.distances(F.normalize(questions - middle, dim=-1), kept.float())
    assert float(away.max()) < 2 * wording.SAME  # every question is near one that is remembered
    monkeypatch.setattr(wording, "MOST", 50)
    assert len(wording.memory(questions)[0]) == 50


def test_one_question_is_enough_to_remember() -> None:
    kept, _, near = wording.memory(torch.randn(1, 8))
    assert len(kept) == 1
    assert float(near) == pytest.approx(wording.SAME)


def test_nothing_is_new_or_known_where_nothing_is_remembered() -> None:
    layer = squares.layer(squares.model())
    assert wording.novelty(torch.randn(layer.config.width), layer.asked, layer.middle, layer.near) is None
    nothing = torch.zeros(4)
    judgements = [LayerPrediction(nothing, {}, {}, question_novelty=novelty) for novelty in (None, 0.5, 1.5)]
    found = [Coupled(nothing, "layer", prediction=judgement) for judgement in judgements]
    assert [one.question_unfamiliar for one in found] == [False, False, True]
    assert [one.question_familiar for one in found] == [False, True, False]
    assert not Coupled(nothing, "probe").question_familiar


def test_the_memory_is_written_and_read(tmp_path: Path) -> None:
    layer = squares.layer(squares.model())
    layer.remember(torch.randn(20, layer.config.width))
    layer.save_pretrained(tmp_path)
    again = ArrCocLayer.from_pretrained(tmp_path)
    for name in ("asked", "middle", "near"):
        assert torch.equal(getattr(again, name), getattr(layer, name))


def test_the_shipped_layer_knows_the_questions_that_receipts_are_asked() -> None:
    layer, vlm = ArrCocLayer.from_pretrained(reader.WEIGHTS), arr_coc.load("reader", layer=None)

    def novelty(question: str) -> float:
        words = vlm.adapter.embed(vlm.prompter.ids(question)).detach()
        with torch.no_grad():
            heard = layer.hear(*wording.padded([words]))[0]
        found = wording.novelty(heard, layer.asked, layer.middle, layer.near)
        assert found is not None
        return found

    assert all(novelty(PLAIN[kind]) < 0.2 for kind in ("total", "date", "company", "address"))
    assert novelty("How many dogs are asleep under the piano?") > 1


@pytest.mark.parametrize(
    ("question", "vague"),
    [("How much is it?", False), ("When was this?", False), ("What is this?", True), ("Describe the image.", True)],
)
def test_a_question_that_the_layer_was_taught_is_not_vague(question: str, vague: bool) -> None:
    vlm = arr_coc.load("reader")
    selection = selection_input(vlm, vlm.look(arr_coc.pictures.receipt().crop((0, 0, 560, 560))), question)
    for one in (selection, replace(selection, tokens=None, probe=None)):  # after the encoder, and before it
        assert realized(replace(one, k=40)).strategy.startswith("vague: ") is vague
    untaught = realized(replace(selection, k=40), RelevanceSettings(learned=False))
    assert untaught.strategy.startswith("vague: ")  # its words name nothing
