"""Every parameter of a layer learns: from boxes, from attention, and from answers through each gate. A hard choice teaches nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from arr_coc.layer import ArrCocLayer
from arr_coc.layer.config import POOLINGS
from arr_coc.training.answer_loss import answer_loss
from arr_coc.training.examples import Lesson
from arr_coc.training.gates import METHODS, hard_gates, hard_top, soft_top
from arr_coc.training.look_cache import Looks
from arr_coc.training.loop import standardise
from arr_coc.training.losses import attention_loss
from arr_coc.training.model_losses import model_losses
from arr_coc.training.settings import Settings
from arr_coc.training.steps import Batch, Draws, box_losses
from tests.training import squares

CPU = torch.device("cpu")


@lru_cache
def vlm() -> Any:
    return squares.model()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Lesson]:
    return squares.taught(vlm(), tmp_path_factory.mktemp("squares"), by_answer=True)


def fresh(found: list[Lesson], **shape: Any) -> ArrCocLayer:
    layer = squares.layer(vlm(), **shape)
    standardise(layer, found)
    with torch.no_grad():  # out of the symmetric start
        layer.not_encoded.normal_(std=0.5)
    return layer


def batch(found: list[Lesson]) -> Batch:
    """Three pictures, each encoded in part."""
    drawn = Draws(found, Settings(partly=1.0, blind=0.0), 0).at(3, CPU)
    assert len(drawn.pictures) == 3
    return drawn


def without(layer: ArrCocLayer) -> list[str]:
    """Parameters without a gradient, or with one of nothing."""
    grads = {name: weights.grad for name, weights in layer.named_parameters()}
    assert all(grad is None or bool(grad.isfinite().all()) for grad in grads.values())
    return [name for name, grad in grads.items() if grad is None or not bool((grad != 0).any())]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_from_boxes(found: list[Lesson], pooling: str) -> None:
    layer, drawn = fresh(found, pooling=pooling), batch(found)
    losses = box_losses(drawn, drawn.judged(layer))
    assert set(losses) == {"ranking", "calibration"}
    sum(losses.values()).backward()
    assert without(layer) == []


@pytest.mark.parametrize("gate", METHODS)
def test_from_answers_through_each_gate(found: list[Lesson], gate: str) -> None:
    layer, drawn = fresh(found), batch(found)
    settings = Settings(learn=("answers",), gate=gate, answers=4)
    losses = model_losses(Looks(vlm()), drawn, drawn.judged(layer), settings, settings.chance("ask", 0, 0))
    losses["answers"].backward()
    assert without(layer) == []
    assert all(weights.grad is None for weights in vlm().model.parameters())


def test_from_attention(found: list[Lesson]) -> None:
    layer, drawn = fresh(found), batch(found)
    seen = torch.rand(64, generator=torch.Generator().manual_seed(0))
    judged = drawn.judged(layer)
    torch.stack([attention_loss(row, seen) for row in judged.relevance]).mean().backward()
    assert without(layer) == []


def test_a_hard_choice_alone_teaches_nothing(found: list[Lesson]) -> None:
    layer, drawn = fresh(found), batch(found)
    logits = drawn.judged(layer).relevance[0]
    sample = drawn.asked[0].sample
    look = Looks(vlm()).at(drawn.lessons[0].image)
    for lost in (
        answer_loss(vlm(), look, sample.question, sample.answers[0], hard_gates(hard_top(logits, 8))),
        answer_loss(vlm(), look, sample.question, sample.answers[0], keep=hard_top(logits, 8)),
    ):
        assert lost.isfinite()
        assert not lost.requires_grad
    soft = answer_loss(vlm(), look, sample.question, sample.answers[0], soft_top(logits, 8).clamp_min(1e-9).log())
    assert soft.requires_grad
    assert len(without(layer)) == len(list(layer.parameters()))
