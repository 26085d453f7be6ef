"""`draw_any`: every kind, for many seeds, with evidence where the answer is, and nothing where it is not."""

from __future__ import annotations

import random
import re
from functools import cache

import numpy as np
import pytest

from arr_coc.errors import ArrCocError
from arr_coc.training.documents import KINDS, Drawing, DrawnQuestion, draw_any, mix
from arr_coc.training.documents.drawing import SCENE, draw_within
from arr_coc.training.documents.page import Line, bundled_fonts
from arr_coc.training.documents.phrasings import PHRASINGS, templates
from arr_coc.training.documents.questions import NOT_FOUND, normalize_phrasing

SEEDS = 12
# Answers that are counted, compared or seen, and not written: they need not be in the evidence's text.
NOT_WRITTEN = {
    "colour", "trend", "chart kind", "legend colour", "setting", "share", "value", "series value", "buttons", "where",
    "where all", "object colour", "count", "is there", "relation", "coloured", "biggest", "clock", "largest", "smallest",
    "address", "buyer address", "sender address", "recipient address",
}  # fmt: skip


@cache
def drawings(kind: str, held_out: bool = False) -> tuple[Drawing, ...]:
    return tuple(draw_any(f"test {seed}", [kind], held_out=held_out) for seed in range(SEEDS))


def clipped(line: Line, drawing: Drawing) -> tuple[float, ...]:
    height, width = drawing.image.shape[:2]
    left, top, right, bottom = line.box
    return max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)


def evidence_texts(drawing: Drawing, question: DrawnQuestion) -> list[str]:
    """The texts of each group of evidence, from its boxes."""
    by_box = {clipped(line, drawing): line.text for line in drawing.lines}
    return [" ".join(by_box[tuple(box)] for box in group) for group in question.evidence or ()]


def plain(words: str) -> str:
    return re.sub(r"[\s,]+", " ", words).strip().upper()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_drawing(kind: str) -> None:
    for seed in range(3):
        first, second = drawings(kind)[seed], draw_any(f"test {seed}", [kind])
        assert np.array_equal(first.image, second.image)
        assert first.questions == second.questions
    assert len({one.image.tobytes() for one in drawings(kind)}) == SEEDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_seed_draws_something_to_ask_about(kind: str) -> None:
    for drawing in drawings(kind):
        assert drawing.kind == kind
        assert drawing.image.dtype == np.uint8
        assert drawing.image.shape[2] == 3
        assert np.ptp(drawing.image) > 60, "a blank page"
        assert sum(question.whole for question in drawing.questions) == 1
        assert any(question.evidence for question in drawing.questions)
        assert drawing.summary.endswith(".")
        assert ".." not in drawing.summary


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_lies_in_the_picture_and_holds_ink(kind: str) -> None:
    for drawing in drawings(kind):
        height, width = drawing.image.shape[:2]
        for question in drawing.questions:
            for left, top, right, bottom in (box for group in question.evidence or () for box in group):
                assert 0 <= left < right <= width
                assert 0 <= top < bottom <= height
                inside = drawing.image[int(top) : int(bottom) + 1, int(left) : int(right) + 1].astype(int)
                assert np.ptp(inside) > 25, (question, "nothing is drawn there")


@pytest.mark.parametrize("kind", KINDS)
def test_the_characters_of_the_evidence_stand_where_they_are_said_to(kind: str) -> None:
    """Around the middle of each letter or digit there are two tones, within the line's box."""
    seen = 0
    hits = 0
    for drawing in drawings(kind):
        boxes = {tuple(box) for question in drawing.questions for group in question.evidence or () for box in group}
        for line in drawing.lines:
            if clipped(line, drawing) not in boxes or not len(line.middles) or np.ptp(line.middles) < 1:
                continue  # not asked for, or turned by a quarter
            top, bottom = int(line.box[1]), int(line.box[3]) + 1
            for character, x in zip(line.text, line.middles, strict=True):
                if character.isalnum():
                    assert line.box[0] <= x <= line.box[2]
                    around = drawing.image[top:bottom, max(0, int(x) - 2) : int(x) + 3].astype(int)
                    seen += 1
                    hits += np.ptp(around) > 20
    assert kind == SCENE or seen > 200
    assert hits >= 0.97 * seen


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_written_in_their_evidence(kind: str) -> None:
    checked = 0
    for drawing in drawings(kind):
        for question in drawing.questions:
            if question.whole or question.absent or question.kind in NOT_WRITTEN or question.answer == "empty":
                continue
            shown = evidence_texts(drawing, question)
            assert shown
            assert all(plain(question.answer) in plain(words) for words in shown), (question, shown)
            checked += 1
    assert checked > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_absent_is_nowhere_else_in_the_drawing(kind: str) -> None:
    asked = 0
    for drawing in drawings(kind):
        for question in drawing.questions:
            if not question.absent:
                assert question.whole or question.evidence
                assert question.answer != NOT_FOUND
                continue
            asked += 1
            assert question.evidence == ()
            assert not question.whole
            assert question.answer in (NOT_FOUND, "no", "0")
            same = [other for other in drawing.questions if other.text == question.text]
            assert all(other.absent for other in same), question
            if "{" not in "".join((*PHRASINGS[question.kind].asked, *PHRASINGS[question.kind].things)):
                # A kind without slots is there once or not at all.
                assert not any(o.kind == question.kind and not o.absent for o in drawing.questions), question
    assert asked >= SEEDS // 2


def pattern(phrasing: str) -> str:
    """A regular expression of the normalized phrasing, with anything in its slots."""
    return re.sub(r"\\{\w+\\}", ".+", re.escape(normalize_phrasing(phrasing)))


@cache
def kept_back(kind: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern(one)) for part in templates(kind, held_out=True) for one in part)


@pytest.mark.parametrize("kind", KINDS)
def test_training_drawings_use_no_phrasing_that_is_kept_back(kind: str) -> None:
    for drawing in drawings(kind):
        for question in drawing.questions:
            assert not question.held_out
            said = normalize_phrasing(question.text)
            # A slot at the start would match any question that ends alike.
            found = [one for one in kept_back(question.kind) if one.pattern[:2] != ".+" and one.fullmatch(said)]
            assert not found, question


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_drawings_are_asked_in_kept_back_phrasings_only(kind: str) -> None:
    exact = every = 0
    for drawing in drawings(kind, held_out=True):
        for question in drawing.questions:
            assert question.held_out
            every += 1
            said = normalize_phrasing(question.text)
            kinds = PHRASINGS if question.kind == "field" else [question.kind]  # a field may have other words
            exact += any(one.fullmatch(said) for name in kinds for one in kept_back(name))
    assert exact > 0.75 * every  # the others are misspelt or greet


def test_the_default_mix_has_every_kind_and_a_share_of_scenes() -> None:
    drawn = [draw_any(f"mix {seed}").kind for seed in range(90)]
    assert set(drawn) == set(KINDS)
    assert 2 <= drawn.count(SCENE) <= 30
    assert sum(mix(0.25).values()) == pytest.approx(1)
    assert mix(0.25)[SCENE] == 0.25
    assert draw_any("only", mix(1.0)).kind == SCENE
    assert not any(draw_any(f"none {seed}", mix(0.0)).kind == SCENE for seed in range(20))


def test_sizes_are_kept_and_small_ones_drawn() -> None:
    for kind in KINDS:
        assert draw_any(1, [kind], size=(400, 520)).image.shape == (520, 400, 3)
        assert draw_any(2, [kind], size=(112, 112)).image.shape == (112, 112, 3)
        assert draw_any(3, [kind], size=(900, 150)).image.shape == (150, 900, 3)


@pytest.mark.parametrize("kind", ["invoice", "screen", "chart", "table"])
def test_a_drawing_within_a_canvas_has_its_lines_where_its_ink_is(kind: str) -> None:
    fonts, drawn = bundled_fonts(), 0
    for seed in range(8):
        document = draw_within(random.Random(seed), fonts, kind, 840, 840)
        if document is None:
            continue
        drawn += 1
        assert document.image.shape[:2] == (840, 840)
        pixels = np.atleast_3d(document.image)
        for line in document.lines:
            left, top, right, bottom = (round(side) for side in line.box)
            assert left >= -2
            assert top >= -2
            assert right <= 842
            assert bottom <= 842
            shown = pixels[max(0, top) : bottom, max(0, left) : right]
            assert not line.text.strip() or np.ptp(shown, axis=(0, 1)).max() > 20, line.text
            assert (np.diff(line.middles) > -1).all()
    assert drawn >= 2
    assert draw_within(random.Random(0), fonts, kind, 112, 112) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kinds": ["poem"]}, "expected kinds among receipt, .*, got poem"),
        ({"kinds": []}, "got none"),
        ({"size": (40, 400)}, "expected a size of at least 112 x 112 pixels, got 40 x 400"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ArrCocError, match=sentence):
        draw_any(0, **options)  # type: ignore[arg-type]
    with pytest.raises(ArrCocError, match="expected a share of scenes from 0 to 1, got 2"):
        mix(2)
