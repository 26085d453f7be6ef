"""The kind of a question, and how it moves the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.relevance.question_kind import KINDS, WEIGHTS, probabilities, question_kind
from arr_coc.relevance.realizing import realized
from arr_coc.relevance.strategy import instances
from recipes.question_kinds import make_questions
from tests.relevance.page import page_selection
from tests.selectors.selections import words


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
    """Finding and reading are treated alike, so they count as one kind here."""
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for question, kind in make_questions(held_out=True):
        found = question_kind(question)
        right[kind].append(found == kind or {found, kind} <= {"find", "read"})
    shares = {kind: sum(some) / len(some) for kind, some in right.items()}
    assert min(shares["find"], shares["read"]) > 0.95, shares
    assert shares["describe"] > 0.65, shares
    assert min(shares["count"], shares["compare"]) > 0.5, shares
    assert WEIGHTS.stat().st_size < 8_000


@pytest.mark.parametrize(
    ("question", "rule"), [("Describe the page in detail.", "describe"), ("What is unusual in this picture?", "odd")]
)
def test_describing_and_what_is_odd_spread_over_the_picture(question: str, rule: str) -> None:
    found = realized(page_selection(question=replace(words(), text=question)))
    assert found.rule == rule
    assert "asked to " in found.strategy
    assert found.tensions["exploit"] == 0


def test_all_instances_are_kept_before_more_of_one() -> None:
    components = torch.tensor([0] * 6 + [1] * 2 + [2] * 2 + [-1] * 4)
    relevance = torch.tensor([1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.4, 0.3, 0.01, 0.01, 0.5, 0.5, 0.5, 0.5])
    assert instances(relevance, 4, components).tolist() == [0, 1, 6, 7]  # the third component does not match
    assert instances(relevance, 14, components).tolist() == list(range(14))
    assert instances(relevance[:0], 0, components[:0]).tolist() == []
