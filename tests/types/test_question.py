"""One check of a question, the same sentence from every way in, and the kind of a question."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import arr_coc
from arr_coc.errors import PromptError
from arr_coc.types.question import (
    MAX_CHARACTERS,
    WEIGHTS,
    check_question,
    check_question_tokens,
    probabilities,
    question_kind,
)
from arr_coc.video.stream import watch
from recipes.question_kinds import make_others, make_questions
from recipes.question_kinds import test as recognised
from tests.adapters.tiny_vlm import picture, wrapped

BAD = {
    "empty": ("", "expected a question, got an empty one"),
    "blank": (" \n\t", "expected a question, got an empty one"),
    "too long": ("x" * (MAX_CHARACTERS + 1), "at most 20,000 characters, got 20,001"),
    "not Unicode": ("caf\udce9?", r"valid Unicode, got \\udce9 at character 4"),
    "NUL": ("What\x00?", "without NUL characters"),
}
WAYS: dict[str, Callable[[str], object]] = {
    "ask": lambda question: wrapped("qwen2_vl").ask(picture(), question),
    "ask, several": lambda question: wrapped("qwen2_vl").ask(picture(), ["What?", question]),
    "stream": lambda question: list(wrapped("qwen2_vl").stream(picture(), question)),
    "prepare": lambda question: wrapped("qwen2_vl").prepare([picture()], question),
    "realize": lambda question: arr_coc.realize(picture(), question),
    "watch": lambda question: watch([picture(), picture()], question),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("case", list(BAD))
def test_every_way_in_refuses_a_bad_question_with_the_same_sentence(case: str, way: str) -> None:
    question, sentence = BAD[case]
    with pytest.raises(PromptError, match=sentence):
        WAYS[way](question)


def test_a_good_question_is_returned_as_it_is() -> None:
    for question in ("?", "合計はいくらですか", "x" * MAX_CHARACTERS, " What? "):
        assert check_question(question) is question
    with pytest.raises(PromptError, match="as text, got int"):
        check_question(3)


def test_a_question_is_not_longer_than_the_model_reads() -> None:
    check_question_tokens(512, 512)
    check_question_tokens(10**9, None)
    with pytest.raises(PromptError, match="at most 512 tokens, which this model reads, got 513"):
        check_question_tokens(513, 512)
    vlm = wrapped("qwen2_vl")
    longest = vlm.adapter.max_positions
    assert longest is not None
    if longest < MAX_CHARACTERS:  # one token per character
        with pytest.raises(PromptError, match=f"at most {longest:,} tokens"):
            vlm.ask(picture(), "x" * (longest + 1))


def test_an_image_alone_is_a_message() -> None:
    message = [{"role": "user", "content": [{"type": "image", "image": picture()}]}]
    assert wrapped("qwen2_vl").generate(messages=message, max_new_tokens=1)
    bad = [{"role": "user", "content": [{"type": "text", "text": "\udce9"}]}]
    with pytest.raises(PromptError, match="valid Unicode"):
        wrapped("qwen2_vl").generate(messages=bad)


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What is the total amount?", "read"),
        ("What is the date on the receipt?", "read"),
        ("What is the name of the company?", "read"),
        ("How many red discs are there?", "count"),
        ("Which is the cheapest item?", "compare"),
        ("Describe the scene", "describe"),
        ("What is unusual here?", "odd"),
        ("", "read"),
        ("?!", "read"),
        ("x" * 5000, "read"),
    ],
)
def test_kinds(question: str, kind: str) -> None:
    assert question_kind(question) == kind
    assert probabilities(question).sum() == pytest.approx(1)


def test_phrasings_kept_back_are_recognised_and_reading_is_rarely_taken_for_another_kind() -> None:
    shares = {kind: right / number for kind, (right, number) in recognised(make_questions(held_out=True)).items()}
    assert min(shares["find"], shares["read"]) > 0.95, shares
    assert min(shares["describe"], shares["compare"], shares["count"], shares["odd"]) > 0.75, shares
    unseen = {kind: right / number for kind, (right, number) in recognised(make_others()).items()}
    assert min(unseen["find"], unseen["read"]) > 0.88, unseen
    assert min(unseen["describe"], unseen["compare"]) > 0.7, unseen
    assert min(unseen["count"], unseen["odd"]) > 0.35, unseen
    assert WEIGHTS.stat().st_size < 60_000


def test_no_training_question_has_a_phrasing_or_a_deciding_word_that_is_kept_back() -> None:
    trained = {" ".join(re.findall(r"[a-z]+", question.lower())) for question, _ in make_questions(held_out=False)}
    for question, _ in (*make_questions(held_out=True), *make_others()):
        assert " ".join(re.findall(r"[a-z]+", question.lower())) not in trained, question
    words = {word for question in trained for word in question.split()}
    deciding = (
        "headcount numerous enumerate reckon wins dwarfs weighs priciest walk narrate fill fishy jars glitch uncommon"
    )
    assert not words & {*deciding.split(), "neighbours", "whereabouts", "circle", "pinpoint"}
