"""The losses against slow, direct versions, and their gradients: every parameter of a layer gets one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.layer import ArrCocLayer
from arr_coc.layer.model import POOLINGS
from arr_coc.training.answer_loss import answer_loss
from arr_coc.training.batches import BatchSampler, LayerBatch, LayerTrainingSettings
from arr_coc.training.examples import LookCache, TrainingExample
from arr_coc.training.gates import METHODS, hard_gates, hard_top, soft_top
from arr_coc.training.layer import fit_statistics, measure_recall
from arr_coc.training.losses import (
    EvidenceMask,
    attention_loss,
    box_losses,
    calibration_loss,
    model_attention,
    model_losses,
    ranking_loss,
)
from tests.training import squares

CPU = torch.device("cpu")
N = 7
GROUPS = [
    [torch.tensor([0, 1]), torch.tensor([5])],
    [],  # no evidence
    [torch.tensor([2, 3, 6])],
    [torch.tensor([1, 4]), torch.tensor([1, 2]), torch.arange(N)],
]


def logits() -> torch.Tensor:
    return 2 * torch.randn(len(GROUPS), N, generator=torch.Generator().manual_seed(0))


def test_ranking_loss_is_that_of_the_easiest_group() -> None:
    rows, each = logits(), []
    for row, groups in zip(rows, GROUPS, strict=True):
        chances = (row.exp() / row.exp().sum()).tolist()
        costs = [
            -sum(torch.tensor(chances[cell]).log().item() for cell in group.tolist()) / len(group) for group in groups
        ]
        each += [min(costs)] if costs else []
    evidence = EvidenceMask.from_groups(GROUPS, N, torch.device("cpu"))
    assert ranking_loss(rows, evidence).item() == pytest.approx(sum(each) / 3, rel=1e-5)


def test_calibration_loss_weighs_both_classes_the_same() -> None:
    rows, each = logits(), []
    for row, groups in zip(rows, GROUPS, strict=True):
        if not groups:
            continue
        right = {cell for group in groups for cell in group.tolist()}
        chance = row.sigmoid().tolist()
        hits = [-torch.tensor(chance[cell]).log().item() for cell in sorted(right)]
        misses = [-torch.tensor(1 - chance[cell]).log().item() for cell in range(N) if cell not in right]
        each.append(0.5 * (sum(hits) / len(hits) + sum(misses) / N))
    evidence = EvidenceMask.from_groups(GROUPS, N, torch.device("cpu"))
    assert calibration_loss(rows, evidence).item() == pytest.approx(sum(each) / 3, rel=1e-4)


def test_attention_loss_is_a_cross_entropy() -> None:
    row, seen = logits()[0], torch.rand(N, generator=torch.Generator().manual_seed(1))
    wanted = (seen / seen.sum()).tolist()
    direct = -sum(share * torch.log(row.exp() / row.exp().sum())[cell].item() for cell, share in enumerate(wanted))
    assert attention_loss(row, seen).item() == pytest.approx(direct, rel=1e-5)
    nothing = torch.zeros(N, requires_grad=True)
    attention_loss(nothing, torch.zeros(N)).backward()
    assert nothing.grad is not None
    assert torch.equal(nothing.grad, torch.zeros(N))


def test_questions_without_evidence_get_no_gradient() -> None:
    found = logits().requires_grad_()
    evidence = EvidenceMask.from_groups(GROUPS, N, torch.device("cpu"))
    (ranking_loss(found, evidence) + calibration_loss(found, evidence)).backward()
    assert found.grad is not None
    assert bool((found.grad[1] == 0).all())
    assert bool((found.grad[[0, 2, 3]] != 0).any(-1).all())


@lru_cache
def tiny_vlm() -> Any:
    return squares.model()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[TrainingExample]:
    return squares.examples(tiny_vlm(), tmp_path_factory.mktemp("squares"), by_answer=True)


def fresh(examples: list[TrainingExample], **shape: Any) -> ArrCocLayer:
    layer = squares.layer(tiny_vlm(), **shape)
    fit_statistics(layer, examples)
    with torch.no_grad():  # break the symmetry of the initial weights
        layer.not_encoded.normal_(std=0.5)
    return layer


def batch(examples: list[TrainingExample]) -> LayerBatch:
    """Three pictures, each with some of its tokens."""
    drawn = BatchSampler(examples, LayerTrainingSettings(partly=1.0, blind=0.0), 0).at(3, CPU)
    assert len(drawn.pictures) == 3
    return drawn


def without_gradient(layer: ArrCocLayer) -> list[str]:
    """Names of the parameters whose gradient is missing or zero."""
    grads = {name: weights.grad for name, weights in layer.named_parameters()}
    assert all(grad is None or bool(grad.isfinite().all()) for grad in grads.values())
    return [name for name, grad in grads.items() if grad is None or not bool((grad != 0).any())]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_box_losses_reach_every_parameter(examples: list[TrainingExample], pooling: str) -> None:
    layer, drawn = fresh(examples, pooling=pooling), batch(examples)
    losses = box_losses(drawn, drawn.predict(layer))
    assert set(losses) == {"ranking", "calibration"}
    sum(losses.values()).backward()
    assert without_gradient(layer) == []


@pytest.mark.parametrize("gate", METHODS)
def test_answer_losses_reach_every_parameter_through_each_gate(examples: list[TrainingExample], gate: str) -> None:
    layer, drawn = fresh(examples), batch(examples)
    settings = LayerTrainingSettings(learn=("answers",), gate=gate, answers=4)
    losses = model_losses(LookCache(tiny_vlm()), drawn, drawn.predict(layer), settings, settings.rng("ask", 0, 0))
    losses["answers"].backward()
    assert without_gradient(layer) == []
    assert all(weights.grad is None for weights in tiny_vlm().model.parameters())


def test_attention_loss_reaches_every_parameter(examples: list[TrainingExample]) -> None:
    layer, drawn = fresh(examples), batch(examples)
    seen = torch.rand(64, generator=torch.Generator().manual_seed(0))
    prediction = drawn.predict(layer)
    torch.stack([attention_loss(row, seen) for row in prediction.relevance]).mean().backward()
    assert without_gradient(layer) == []


def test_a_hard_selection_has_no_gradient(examples: list[TrainingExample]) -> None:
    layer, drawn = fresh(examples), batch(examples)
    logits = drawn.predict(layer).relevance[0]
    sample = drawn.questions[0].sample
    look = LookCache(tiny_vlm()).at(drawn.examples[0].image)
    for lost in (
        answer_loss(tiny_vlm(), look, sample.question, sample.answers[0], hard_gates(hard_top(logits, 8))),
        answer_loss(tiny_vlm(), look, sample.question, sample.answers[0], keep=hard_top(logits, 8)),
    ):
        assert lost.isfinite()
        assert not lost.requires_grad
    soft = answer_loss(tiny_vlm(), look, sample.question, sample.answers[0], soft_top(logits, 8).clamp_min(1e-9).log())
    assert soft.requires_grad
    assert len(without_gradient(layer)) == len(list(layer.parameters()))


def test_a_batch_without_evidence_has_no_loss(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.examples(vlm, tmp_path, 2, by_answer=True)
    for example in found:
        for one in example.questions:
            one.groups = ()
    drawn = BatchSampler(found, LayerTrainingSettings(), 0).at(0, CPU)
    layer = squares.layer(vlm)
    assert box_losses(drawn, drawn.predict(layer)) == {}
    assert measure_recall(layer, found, CPU) == {}


def test_attention_is_learned_from_right_answers_only(tmp_path: Path) -> None:
    vlm = squares.model()
    found, looks = squares.examples(vlm, tmp_path, 1, by_answer=True), LookCache(vlm)
    assert model_attention(looks, found[0], found[0].questions[0]) is None  # a random model answers wrong
    assert found[0].questions[0].attention == (None,)
