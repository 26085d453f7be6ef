"""Confidence of answers: token probabilities, calibrations, and looking again where an answer is not sure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import AllocationError, ModelError, PromptError
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.grid import Grid
from arr_coc.types.levels import Levels
from arr_coc.vlm.confidence import (
    BOUNDED,
    CALIBRATED,
    FILE,
    MOST_SURE,
    TOKEN_PROBABILITY,
    Calibration,
    Refusal,
    conclude,
    fits,
    judge,
)
from arr_coc.vlm.generation import TokenRecorder
from arr_coc.vlm.looking_again import is_enough, is_sure, surest, wider_budgets
from tests.adapters.tiny_vlm import GREEDY, picture

EVEN = Calibration({"surprise": -1.0, "doubt": -2.0}, 0.0)
# Two hidden units: one for a picture without text, one for what the layer and the tokens say.
USUAL = {"page": -1.0, "absent": -5.0, "found": 2.0, "surprise": -3.0, "own": 0.0, "doubt": 0.1}
REFUSAL = Refusal(
    ("page", "absent", "surprise"), ((-2.0, 0.0, 0.0), (0.0, 0.5, 0.5)), (-8.0, 0.0), (3.0, 3.0), 1.0, USUAL, 0.5, (0.01, 0.99),
    says=("not found",),
)  # fmt: skip
HONEST = Calibration({"surprise": -1.0, "doubt": -2.0}, 0.0, refusal=REFUSAL)


def allocation(kept: int = 4, cells: int = 16, sure: float | None = 0.5) -> Allocation:
    return Allocation(Grid(1, 4, cells // 4), torch.arange(kept), torch.arange(cells), "arr-coc", confidence=sure)


def answer(sure: float | None, source: str = CALIBRATED, *allocations: Allocation) -> Answer:
    found = allocations or (allocation(),)
    return Answer(f"{sure}", found, {"decode": 2.0}, torch.zeros(1), confidence=sure, confidence_source=source)


def test_the_recorder_finds_each_tokens_probability_and_rejects_beams() -> None:
    torch.manual_seed(0)
    steps, tokens = torch.randn(3, 2, 7), torch.randint(0, 7, (2, 3))
    recorder, ids = TokenRecorder(), torch.zeros(2, 5, dtype=torch.long)
    for step in range(3):
        recorder(torch.cat([ids, tokens[:, :step]], 1), steps[step])
    sequences = torch.cat([ids, tokens], 1)
    wanted = steps.softmax(-1).gather(2, tokens.T[..., None])[..., 0].T
    torch.testing.assert_close(recorder.probabilities(sequences), wanted)
    assert recorder.probabilities(sequences[:1]) is None  # other rows
    recorder(torch.cat([sequences, tokens], 1), steps[0])  # several tokens at once: assisted generation
    assert recorder.probabilities(torch.cat([sequences, tokens, tokens[:, :1]], 1)) is None
    assert TokenRecorder().probabilities(sequences) is None


def test_without_a_calibration_the_confidence_is_the_mean_token_probability(vlm: Any) -> None:
    found = vlm.ask(picture(), "What is it?", budget="40%", selector="uniform", **GREEDY)
    assert found.confidence_source == TOKEN_PROBABILITY
    assert found.end_probability is None  # it was cut off
    assert found.confidence == pytest.approx(float(found.token_probabilities.mean()), rel=1e-5)
    stream = vlm.stream(picture(), "What is it?", budget="40%", selector="uniform", **GREEDY)
    list(stream)
    assert stream.answer.confidence == pytest.approx(found.confidence, rel=1e-5)
    assert found.to_dict()["confidence"] == pytest.approx(found.confidence, abs=1e-4)


def test_recording_changes_no_token(vlm: Any) -> None:
    prepared = vlm.prepare(picture(), "What is it?", budget="40%", selector="uniform")
    stock = vlm.model.generate(**prepared, **GREEDY)[0, prepared.length :]
    assert vlm.generate(prepared, **GREEDY)[0].ids.tolist() == stock.tolist()


def confidence(tokens: torch.Tensor | None, allocations: list[Allocation], calibration: Calibration | None) -> Any:
    found = judge("12", tokens, allocations, calibration)
    return found.confidence, found.source


def test_a_calibration_reads_the_tokens_and_the_doubt_about_the_choice() -> None:
    sure, unsure = torch.tensor([0.99, 0.98]), torch.tensor([0.99, 0.3])
    assert confidence(sure, [allocation()], EVEN)[0] > confidence(unsure, [allocation()], EVEN)[0]
    assert confidence(sure, [allocation(sure=1.0)], EVEN)[0] > confidence(sure, [allocation(sure=0.1)], EVEN)[0]
    assert confidence(sure, [allocation()], EVEN)[1] == CALIBRATED
    assert confidence(sure, [allocation(sure=None)], EVEN)[1] == TOKEN_PROBABILITY  # the selector does not say
    assert confidence(None, [], EVEN) == confidence(torch.zeros(0), [], None) == (None, "")
    assert 0 <= confidence(torch.tensor([0.0]), [allocation()], EVEN)[0] <= 1


def test_a_calibration_is_stored_with_a_model_and_bad_ones_are_named(tmp_path: Path) -> None:
    assert Calibration.find(None) is Calibration.find(tmp_path) is None
    for made in (EVEN, HONEST):
        made.save(tmp_path)
        assert Calibration.find(tmp_path) == made
    wrong = json.loads((tmp_path / FILE).read_text())
    wrong["refusal"]["out"] = [1.0]
    for bad in ("{", "[]", json.dumps({"bias": 1}), json.dumps({"weights": {"luck": 1}, "bias": 0}), json.dumps(wrong)):
        (tmp_path / FILE).write_text(bad)
        with pytest.raises(ModelError, match=r"calibration|refusal"):
            Calibration.find(tmp_path)
    with pytest.raises(ModelError, match="finite"):
        Calibration({"doubt": float("nan")}, 0.0)
    for change in ({"threshold": 1.0}, {"usual": {}}, {"shift": (0.0,)}):
        with pytest.raises(ModelError, match="expected"):
            replace(REFUSAL, **change)


KNOWN = {"page": -1.0, "absent": -5.0, "surprise": -3.0, "own": 0.0, "doubt": 0.1}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, ""),
        ({"page": -6.0}, "nothing to read in the picture"),
        ({"absent": 6.0}, "the layer finds nothing"),
        ({"absent": 1.0, "surprise": 2.0}, "probabilities|layer"),
        ({"own": 1.0}, "the model itself"),
    ],
)
def test_what_is_not_in_the_picture_is_refused_with_a_reason(facts: dict[str, float], why: str) -> None:
    found = conclude(KNOWN | facts, HONEST, "auto", 0.9)
    assert bool(found.refused) == bool(why)
    assert re.search(why, found.refused)
    assert found.source == CALIBRATED
    if why and "own" not in facts:
        assert found.confidence == pytest.approx(REFUSAL.absent(KNOWN | facts))  # that the refusal is right
    stands = conclude(KNOWN | facts, HONEST, "off", 0.9)
    assert (stands.refused, stands.confidence) == ("", pytest.approx(HONEST(KNOWN | facts)))
    without_pictures = {name: value for name, value in (KNOWN | facts).items() if name != "page"}
    assert not conclude(without_pictures, HONEST, "auto", 0.9).refused
    assert not conclude(KNOWN | facts, EVEN, "auto", 0.9).refused  # a model that does not declare it


def test_the_layer_is_asked_only_where_the_decision_is_not_clear() -> None:
    assert REFUSAL.is_clear({"page": -6.0, "surprise": 6.0})
    assert not REFUSAL.is_clear({"page": -4.0, "surprise": 0.0})
    sure = replace(REFUSAL, clear=(0.4, 0.99))
    assert sure.is_clear({"surprise": -6.0, "novel": 0.2})
    assert not sure.is_clear({"surprise": -6.0, "novel": 2.0})  # questions of this kind were not trained
    assert not sure.is_clear({"surprise": -6.0})
    assert REFUSAL.absent({"page": -1.0}) == REFUSAL.absent(USUAL)  # what is not known is as usual


@pytest.mark.parametrize(
    ("question", "answer", "fine"),
    [
        ("Is there a cat?", "SERI KEMBANGAN", False),
        ("Is there a cat?", "No.", True),
        ("Do you see the total?", "12.50", True),
        ("Could you tell me the date?", "1 May", True),
        ("How many dogs are there?", "PENANG", False),
        ("What is the licence plate?", "BAKERY", False),
        ("Who issued it?", "12.50", False),
        ("What is the name?", "7-ELEVEN", True),
    ],
)
def test_answers_are_of_the_kind_that_was_asked_for(question: str, answer: str, fine: bool) -> None:
    assert fits(question, answer) == fine


def test_a_model_that_declares_it_refuses_and_keeps_what_it_wrote(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    always = replace(REFUSAL, bias=20.0)
    monkeypatch.setattr(vlm, "calibration", replace(HONEST, refusal=always))
    found = vlm.ask(picture(), "What is it?", budget="40%", **GREEDY)
    raw = vlm.ask(picture(), "What is it?", budget="40%", refuse="off", **GREEDY)
    assert (found.text, found.raw_text, raw.refused) == ("not in the picture", raw.text, "")
    assert found.refused
    assert found.ids.tolist() == raw.ids.tolist()
    assert found.to_dict()["refused"] == found.refused
    assert found.timings["judge"] > 0
    with vlm.stream(picture(), "What is it?", budget="40%", **GREEDY) as stream:
        assert "".join(stream) == raw.text  # pieces are what the model writes
        assert stream.answer.text == "not in the picture"
    first = vlm.ask(picture(), "What is it?", budget="40%", remember=True, **GREEDY)
    assert vlm.ask(None, "And the colour?", after=first, **GREEDY).refused
    assert not vlm.ask(None, "And the colour?", after=first, refuse="off", **GREEDY).refused
    assert not vlm.ask(None, "What is it?", **GREEDY).refused  # no picture
    batch = vlm.generate([[picture()], [picture()]], ["What is it?", "Who?"], budget="40%", **GREEDY)
    assert [one.text for one in batch] == ["not in the picture"] * 2
    with pytest.raises(PromptError, match="refuse"):
        vlm.ask(picture(), "What?", refuse="never")


def test_an_answer_is_sure_by_its_confidence_and_without_calibration_by_that_of_its_choice_too() -> None:
    assert is_sure(answer(0.9), 0.8)
    assert not is_sure(answer(0.7), 0.8)
    assert not is_sure(answer(None, ""), 0.8)
    assert not is_sure(answer(0.9, TOKEN_PROBABILITY, allocation(sure=0.4)), 0.8)
    assert is_sure(answer(0.9, TOKEN_PROBABILITY, allocation(sure=None)), 0.8)


def test_budgets_widen_to_twice_the_cells_and_then_to_all() -> None:
    assert list(wider_budgets(answer(0.1, CALIBRATED, allocation(2)), False)) == [[4], [8], "all"]
    assert list(wider_budgets(answer(0.1), False)) == [[8], "all"]
    assert list(wider_budgets(answer(0.1, CALIBRATED, allocation(2), allocation(6)), True)) == [16, 24, "all"]
    assert list(wider_budgets(answer(0.1, CALIBRATED, allocation(8)), False)) == ["all"]
    assert list(wider_budgets(answer(0.1, CALIBRATED, allocation(16)), False)) == []


def test_two_readings_that_agree_or_well_chosen_cells_are_enough() -> None:
    same = replace(answer(0.2), text="0.1")
    assert is_enough([answer(0.1), same], 0.8)
    assert not is_enough([answer(0.1), answer(0.2)], 0.8)
    assert not is_enough([answer(0.1)], 0.8)
    assert is_enough([answer(0.1, CALIBRATED, allocation(sure=0.95))], 0.8)  # its cells show what was asked for
    assert not is_enough([answer(0.1, CALIBRATED, allocation(sure=0.95), allocation(sure=0.3))], 0.8)
    assert not is_enough([answer(0.1, CALIBRATED, allocation(sure=None))], 0.8)
    assert is_enough([answer(0.9)], 0.8)


def test_the_surest_attempt_lists_all_of_them() -> None:
    best = surest([answer(0.2), answer(0.6), answer(0.5)])
    assert (best.text, best.timings) == ("0.6", {"decode": 6.0})
    assert [one.confidence for one in best.tried] == [0.2, 0.6, 0.5]
    assert best.tokens_paid == 12
    assert answer(0.2).tokens_paid == 4


def test_looking_again_reads_more_cells_of_the_same_encoding(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = vlm.adapter.encode
    monkeypatch.setattr(vlm.adapter, "encode", lambda *given: encoded.append(1) or encode(*given))
    found = vlm.ask(picture(), "What is it?", budget=8, selector="uniform", sure=1.0, **GREEDY)
    assert len(encoded) == 1
    n = found.tokens["all"]
    kept = [8, 16, 32, n]
    alone = [vlm.ask(picture(), "What is it?", budget=b, selector="uniform", **GREEDY).text for b in kept]
    agreed = next((i for i in range(1, 4) if alone[i] == alone[i - 1]), 3) + 1
    assert [(one.kept, one.text) for one in found.tried] == list(zip(kept, alone, strict=True))[:agreed]
    assert found.tokens_paid == sum(kept[:agreed])
    assert found.confidence == max(one.confidence for one in found.tried)
    satisfied = vlm.ask(picture(), "What is it?", budget=8, selector="uniform", sure=0.0, **GREEDY)
    assert [one.kept for one in satisfied.tried] == [8]
    several = vlm.ask(picture(), ["What is it?", "Who?"], budget="50%", selector="uniform", sure=1.0, **GREEDY)
    assert all(len(one.tried) == 2 for one in several)


def test_a_follow_up_is_looked_at_again_too(vlm: Any) -> None:
    first = vlm.ask(picture(), "What is it?", budget=8, selector="uniform", remember=True, **GREEDY)
    alone = vlm.ask(None, "Who?", after=first, **GREEDY)
    found = vlm.ask(None, "Who?", after=first, sure=1.0, **GREEDY)
    assert (found.tried[0].text, len(found.tried) > 1) == (alone.text, True)
    assert found.tried[-1].kept > found.tried[0].kept
    assert found.confidence == max(one.confidence for one in found.tried)
    assert vlm.ask(None, "And?", after=found, budget=0, **GREEDY).turn.shown.turns == 3
    assert [one.text for one in vlm.ask(None, "Who?", after=first, sure=0.0, **GREEDY).tried] == [alone.text]
    with pytest.raises(PromptError, match="sure or an allocation"):
        vlm.ask(None, "Who?", after=first, sure=1.0, allocation=[0], **GREEDY)


def test_a_follow_up_can_go_back_to_a_default(vlm: Any) -> None:
    first = vlm.ask(picture(), "What is it?", budget=8, selector="uniform", remember=True, **GREEDY)
    kept = vlm.ask(None, "Who?", after=first, **GREEDY).turn.shown.request
    assert (kept.budget, kept.selector.name) == (8, "uniform")
    back = vlm.ask(None, "Who?", after=first, budget="auto", selector="arr-coc", **GREEDY).turn.shown.request
    assert (back.budget, back.selector.name) == ("auto", "arr-coc")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"sure": 1.5}, "probability between 0 and 1"),
        ({"sure": True}, "probability between 0 and 1"),
        ({"sure": 0.5, "num_beams": 2}, "one plain sequence"),
        ({"sure": 0.5, "allocation": [0, 1]}, "sure or an allocation"),
    ],
)
def test_bad_requests_to_be_sure(vlm: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(PromptError, match=match):
        vlm.ask(picture(), "What?", **options)
    if match == "one plain sequence":
        with pytest.raises(PromptError, match="cannot be taken back"):
            vlm.stream(picture(), "What?", sure=0.5)


def test_an_allocation_has_a_probability_as_confidence() -> None:
    with pytest.raises(AllocationError, match="between 0 and 1"):
        replace(allocation(), confidence=float("nan"))


def test_cells_of_different_sizes_bound_the_confidence_whatever_the_source() -> None:
    """No calibration was fitted on them: neither nearly certain tokens nor a calibration may claim more."""
    levels = Levels.make(8, 8, (0, 0, 8, 8), 1, 1.0)
    mixed = Allocation(levels, torch.arange(4), torch.arange(4), "arr-coc", confidence=0.99)
    certain, unsure = torch.full((6,), 0.9999), torch.full((6,), 0.6)
    for calibration in (None, EVEN):
        plain = judge("12.00", certain, [allocation(sure=1.0)], calibration)
        assert plain.confidence is not None
        assert plain.confidence > MOST_SURE
        bounded = judge("12.00", certain, [allocation(sure=1.0), mixed], calibration)
        assert (bounded.confidence, bounded.source) == (MOST_SURE, BOUNDED)
        lower = judge("12.00", unsure, [mixed], calibration)
        assert (lower.confidence, lower.source) == (pytest.approx(0.6), BOUNDED)  # what is not sure stays as it is
    one_size = replace(mixed, grid=Levels.make(8, 8, (0, 0, 8, 8), 0, 1.0))
    assert judge("12.00", certain, [one_size], EVEN).source == CALIBRATED
    refused = conclude({"mixed": 1.0, "own": 1.0, "page": -1.0, "surprise": -3.0}, HONEST, "auto", 0.9999)
    assert refused.refused
    assert refused.source == BOUNDED
    assert refused.confidence is not None
    assert refused.confidence <= MOST_SURE
