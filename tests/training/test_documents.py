"""Rendered documents: the same for the same seed, with text where it is said to be and answers that are on the page."""

import random

import numpy as np
import pytest

from arr_coc.training.documents import form, notice, receipt, table
from arr_coc.training.documents.questions import HELD_OUT, NOT_FOUND, TRAINING

FAMILIES = [receipt, form, table, notice]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_gives_one_document(fonts, family):
    first, second = (family.render(random.Random(3), fonts, 504, 700) for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert first.questions == second.questions


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(560, 1260), (336, 504), (1008, 168)])
def test_answers_are_on_the_page(fonts, family, size):
    for seed in range(20):
        document = family.render(random.Random(seed), fonts, *size)
        assert document.image.shape[:2] == (size[1], size[0])
        for question in document.questions:
            shown = " ".join(document.lines[index].text for index in question.evidence)
            if question.answer == NOT_FOUND:
                assert not question.evidence
            else:
                assert question.answer in (shown.upper() if document.capitals else shown)


def test_characters_stand_where_their_ink_is(fonts):
    document = receipt.render(random.Random(5), fonts, 560, 1260)
    image = document.image.astype(float)
    hits = checked = 0
    for line in document.lines:
        top, bottom = int(line.box[1]), int(line.box[3]) + 1
        for character, x in zip(line.text, line.middles, strict=True):
            if character.isalnum() and 4 < x < 556 and bottom < 1260:
                around = image[top:bottom, int(x) - 2 : int(x) + 3]
                hits += np.ptp(around) > 20
                checked += 1
    assert checked > 100
    assert hits / checked > 0.97


def test_phrasings_for_measuring_are_not_trained_with():
    assert TRAINING.keys() == HELD_OUT.keys()
    for kind in TRAINING:
        assert not set(TRAINING[kind]) & set(HELD_OUT[kind])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_held_out_document_asks_in_held_out_phrasings_only(fonts, family):
    for question in family.render(random.Random(1), fonts, 504, 700, held_out=True).questions:
        starts = [phrasing.split("{")[0] for phrasing in HELD_OUT[question.kind]]
        assert question.text.startswith(tuple(starts))
