"""Batches depend on the seed, the rank and the step only; settings are checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.training.batches import BatchSampler, LayerTrainingSettings
from tests.training import squares

CPU = torch.device("cpu")


def test_a_step_draws_the_same_batch_in_every_run(tmp_path: Path) -> None:
    found = squares.examples(squares.model(), tmp_path, 4)
    settings = LayerTrainingSettings(pictures=2, questions=3)
    first, again, other = (
        BatchSampler(found, settings, 0),
        BatchSampler(found, settings, 0),
        BatchSampler(found, settings, 1),
    )
    for step in range(3):
        first.at(step, CPU)
    mine, its, rank = first.at(7, CPU), again.at(7, CPU), other.at(7, CPU)
    assert [one.sample.question for one in mine.questions] == [one.sample.question for one in its.questions]
    assert mine.examples == its.examples
    for left, right in zip(mine.pictures, its.pictures, strict=True):
        assert [view.encoded is None for view in left] == [view.encoded is None for view in right]
        assert [view.tokens is None for view in left] == [view.tokens is None for view in right]
    assert [one.sample for one in rank.questions] != [one.sample for one in mine.questions]


def test_the_learning_rate_has_a_warmup_and_an_end() -> None:
    settings = LayerTrainingSettings()
    assert settings.rate(0, 0.0) == pytest.approx(settings.lr / settings.warmup_steps)
    assert settings.rate(100, 1.0) == pytest.approx(settings.lr * settings.last_lr)


def test_bad_settings() -> None:
    with pytest.raises(ArrCocError, match="expected to learn from boxes, attention, answers, got nothing"):
        LayerTrainingSettings(learn=())
    with pytest.raises(ArrCocError, match="expected questions from 1 on, got 0"):
        LayerTrainingSettings(questions=0)
