"""Rendered documents: the same for the same seed, with text where it is said to be and answers that are on the page."""

import random

import numpy as np
import pytest

from arr_coc.training.documents import form, notice, receipt, table, text
from arr_coc.training.documents.questions import (
    FRAMES,
    HELD_OUT,
    NOT_FOUND,
    PLAIN,
    QUESTIONS,
    THINGS,
    normalize_phrasing,
    phrase,
)

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
                assert not question.evidence or question.kind == "notice"
            elif question.kind == "colour":
                assert question.answer in notice.COLOUR_NAMES
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
    slots = {name: f"{{{name}}}" for name in ("item", "prefix", "row", "column", "key", "which", "words")}
    assert PLAIN.keys() == QUESTIONS.keys() == HELD_OUT.keys() >= THINGS.keys()
    for kind in PLAIN:
        asked = {normalize_phrasing(phrase(random.Random(seed), kind, **slots)) for seed in range(1500)}
        assert not asked & {normalize_phrasing(phrasing) for phrasing in HELD_OUT[kind]}
        assert len(asked) >= min(200, len(QUESTIONS[kind]) + len(FRAMES) * len(THINGS.get(kind, ())) // 3)


def test_hardly_two_names_or_addresses_are_alike():
    rng = random.Random(0)
    companies = [text.company(rng) for _ in range(500)]
    addresses = [" ".join(text.address(rng, widest=30)) for _ in range(500)]
    assert len(set(companies)) > 480
    assert len(set(addresses)) == 500
    assert all(part == part.strip() and part for part in companies + addresses)
    assert not any("  " in part for part in companies + addresses)
    assert max(map(len, addresses)) < 150


def test_the_shop_is_asked_for_without_its_registration_number(fonts):
    numbered = 0
    for seed in range(60):
        document = receipt.render(random.Random(seed), fonts, 560, 1260)
        company = next(question for question in document.questions if question.kind == "company")
        shown = " ".join(document.lines[index].text for index in company.evidence).upper()
        if company.evidence and shown != company.answer:
            numbered += 1
            assert shown.startswith(f"{company.answer} (")
    assert numbered > 5


def test_texts_of_a_notice_have_the_colour_they_are_asked_for_by(fonts):
    for seed in range(40):
        document = notice.render(random.Random(seed), fonts, 504, 336)
        paper = notice.paper_colour(random.Random(seed))
        for line in document.lines:
            name = notice.COLOUR_NAMES[line.colour - 1]
            left, top, right, bottom = (round(edge) for edge in line.box)
            pixels = document.image[max(0, top) : bottom, max(0, left) : right].reshape(-1, 3).astype(int)
            if not len(pixels):  # a font that has no such letter
                continue
            ink = pixels[np.abs(pixels - np.array(paper)).sum(1).argmax()]
            if name == notice.GRAY:
                assert np.ptp(ink) < 12
            else:
                near = (notice.ON_DARK if notice.is_dark(paper) else notice.ON_LIGHT)[name]
                assert np.abs(ink - np.array(near)).max() < 60


@pytest.mark.parametrize("family", FAMILIES)
def test_a_held_out_document_asks_in_held_out_phrasings_only(fonts, family):
    for question in family.render(random.Random(1), fonts, 504, 700, held_out=True).questions:
        starts = [phrasing.split("{")[0] for phrasing in HELD_OUT[question.kind]]
        assert question.text.startswith(tuple(starts))
