"""Phrasings: enough of them, and those that are kept back are in no kind's training phrasings."""

from __future__ import annotations

import random
import re

import pytest

from arr_coc.training.documents import questions
from arr_coc.training.documents.phrasings import PHRASINGS, misspell, say, templates
from arr_coc.training.documents.questions import normalize_phrasing


def shape(phrasing: str) -> str:
    """A normalized phrasing, whatever its slots are called."""
    return re.sub(r"\{\w+\}", "{}", normalize_phrasing(phrasing))


def shapes(held_out: bool) -> set[str]:
    return {shape(one) for kind in PHRASINGS for part in templates(kind, held_out) for one in part}


def test_no_kind_trains_on_a_phrasing_that_any_kind_keeps_back() -> None:
    assert not shapes(held_out=True) & shapes(held_out=False)


def test_the_older_phrasings_do_not_use_them_either() -> None:
    older = [*questions.PLAIN.values(), *(one for some in questions.QUESTIONS.values() for one in some)]
    framed = [frame.replace("{thing}", thing) for some in questions.THINGS.values() for thing in some for frame in questions.FRAMES]  # fmt: skip
    kept_back = {shape(one) for kind in PHRASINGS for one in PHRASINGS[kind].held_out}
    used = {shape(one) for one in (*older, *framed)}
    # `phrase` itself refuses those of `questions.HELD_OUT`.
    assert not (used & kept_back) - set(questions.held_out_phrasings())


@pytest.mark.parametrize("kind", PHRASINGS)
def test_every_kind_has_phrasings_for_training_and_for_the_exam(kind: str) -> None:
    asked, framed = templates(kind)
    assert len(set(asked) | set(framed)) >= 5
    assert any(templates(kind, held_out=True))
    slots = {name: name for name in set(re.findall(r"\{(\w+)\}", " ".join((*asked, *framed))))}
    for seed in range(30):
        for held_out in (False, True):
            said = say(random.Random(seed), kind, held_out, **slots)
            assert said.strip() == said != ""
            assert "{" not in said


def test_a_misspelt_word_differs_by_one_error() -> None:
    rng = random.Random(0)
    for word in ("total", "invoice", "company", "address"):
        for _ in range(20):
            wrong = misspell(rng, word)
            assert abs(len(wrong) - len(word)) <= 1
            assert wrong[0] == word[0]
    assert misspell(rng, "vat") == "vat"
    assert misspell(rng, "48.20") == "48.20"
