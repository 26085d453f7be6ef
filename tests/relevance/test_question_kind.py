"""How the kind of a question moves the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.relevance.realizing import realized
from arr_coc.relevance.strategy import instances
from tests.relevance.page import page_selection
from tests.selectors.selections import words


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
