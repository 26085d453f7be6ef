"""Weights and tensions set by the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError
from arr_coc.relevance.realizing import RelevanceSettings, realized
from tests.relevance.page import page_selection


def test_weights_and_the_exploit_tension_can_be_set() -> None:
    found = realized(page_selection())
    explore = realized(page_selection(), RelevanceSettings(exploit=0.0))
    assert found.tensions["exploit"] == 1
    assert explore.tensions["exploit"] == explore.tensions["focus"] == explore.tensions["weight of coupling"] == 0
    assert explore.tensions["weight of information"] == 1
    uncoupled = realized(page_selection(), RelevanceSettings(weights={"coupling": 0.0}))
    assert uncoupled.tensions["weight of coupling"] == 0
    assert uncoupled.tensions["weight of information"] == found.tensions["weight of information"]
    assert uncoupled.keep.tolist() != found.keep.tolist()
    same = {name.removeprefix("weight of "): w for name, w in found.tensions.items() if name.startswith("weight of ")}
    assert realized(page_selection(), RelevanceSettings(weights=same)).keep.tolist() == found.keep.tolist()


@pytest.mark.parametrize("wrong", [{"exploit": 1.5}, {"weights": {"luck": 1.0}}, {"weights": {"coupling": -1.0}}])
def test_weights_out_of_range_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArrCocError, match="expected"):
        RelevanceSettings(**wrong)


def test_weights_apply_to_a_layers_scores_too() -> None:
    vlm, receipt = arr_coc.load("reader"), arr_coc.pictures.receipt()
    seen = vlm.look(receipt)
    question = "What is the date?"
    found = arr_coc.realize(receipt, question, budget=60, using=vlm, look=seen, glance="all")
    uncoupled = arr_coc.realize(
        receipt, question, budget=60, using=vlm, look=seen, glance="all", weights={"coupling": 0.0}
    )
    assert found.strategy.endswith("(coupling by layer)")
    assert uncoupled.tensions["weight of coupling"] == 0
    assert torch.equal(uncoupled.scores["coupling"], found.scores["coupling"])
    assert uncoupled.keep.tolist() != found.keep.tolist()
