"""Evidence recall and the pointing game on scenes with a known place of the answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from arr_coc.evaluation.data import Data, PictureQuestions, Sample
from embedding_evidence import Scorer, compressed_scorer, measure_evidence, plain_cosine
from tests.embedding.fake import Colours
from tests.training.projection.test_quality import fitted


def scene(seed: int) -> PictureQuestions:
    """Gray with one red block somewhere."""
    dice = np.random.default_rng(seed)
    image = np.full((64, 64, 3), 120, np.uint8)
    row, column = dice.integers(0, 8, 2) * 8
    image[row : row + 8, column : column + 8] = (255, 0, 0)
    box = (float(column), float(row), float(column + 8), float(row + 8))
    return PictureQuestions(
        f"{seed}", Image.fromarray(image), (64, 64), (Sample("Where is red?", evidence=((box,),)), Sample("?"))
    )


def test_evidence_is_found_in_full_and_compressed() -> None:
    data = Data("made up", tuple(scene(seed) for seed in range(12)))
    projection = fitted()
    ways: dict[str, Scorer] = {
        "full": projection.full_scores,
        "plain": plain_cosine,
        "16": compressed_scorer(projection),
    }
    found = measure_evidence(Colours(), ways, data)
    assert list(found) == ["full", "plain", "16", "centre", "random"]
    for name in ways:
        assert found[name].recall == found[name].pointing == 1
    assert found["random"].recall == pytest.approx(1 / 8)
    assert found["random"].pointing == pytest.approx(1 / 64)
    assert found["centre"].recall is not None
    assert found["centre"].recall < 0.6
    assert sum(len(values) for values in found["16"].recalls.values()) == 12  # the question without boxes is left out
    assert found["16"].to_dict()["evidence_recall_ci"] == (1.0, 1.0)
    halves_ = [measure_evidence(Colours(), ways, replace(data, pictures=data.pictures[part::2])) for part in (0, 1)]
    assert (halves_[0]["centre"] | halves_[1]["centre"]).recall == pytest.approx(found["centre"].recall)


def test_inverted_scores_recall_nothing() -> None:
    data = Data("made up", tuple(scene(seed) for seed in range(12)))
    found = measure_evidence(Colours(), {"wrong": lambda features, texts: -fitted().full_scores(features, texts)}, data)
    assert found["wrong"].recall == found["wrong"].pointing == 0
