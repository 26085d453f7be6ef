"""ARR-COC as a selector: relevance for shared budgets, and how much to encode."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import SelectorError
from arr_coc.relevance.selector import AUTO_GLANCE, ArrCoc
from arr_coc.selectors import Selector, selector
from arr_coc.vlm.model import VLM
from tests.adapters.tiny_vlm import picture
from tests.relevance.page import page_selection
from tests.training import squares

ASKED: dict[str, Any] = {"budget": 9, "max_new_tokens": 1}


def test_the_registry_makes_it_and_it_scores_every_candidate() -> None:
    made = selector("arr-coc")
    assert isinstance(made, Selector)
    values = made.relevance(page_selection())
    assert values is not None
    assert values.shape == (100,)


def test_untrained_equals_a_model_without_a_layer() -> None:
    vlm = squares.model()
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=squares.confident(squares.layer(vlm)))
    image = picture(64, 64)
    plain = vlm.ask(image, "Which one?", **ASKED).allocations[0]
    untrained = trained.ask(image, "Which one?", selector="arr-coc-untrained", **ASKED).allocations[0]
    learned = trained.ask(image, "Which one?", **ASKED).allocations[0]
    assert torch.equal(plain.keep, untrained.keep)
    assert torch.equal(plain.relevance, untrained.relevance)
    assert not torch.equal(plain.relevance, learned.relevance)


def test_a_confident_layer_decides_how_much_is_encoded() -> None:
    vlm = squares.model()
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=squares.confident(squares.layer(vlm)))
    image = picture(128, 128)
    every = vlm.ask(image, "Which one?", glance="all", **ASKED).tokens["encoded"]

    def encoded(model: VLM, **options: Any) -> int:
        return int(model.ask(image, "Which one?", glance="auto", **ASKED | options).tokens["encoded"])

    assert encoded(trained) == math.ceil(AUTO_GLANCE * every) < every
    assert encoded(vlm) == every  # this model has no layer
    assert encoded(trained, selector="arr-coc-untrained") == every
    assert encoded(trained, selector="divprune") == every  # cannot set a glance
    for how in ("none", "probe", "scout", "tokens"):  # the layer is not used; "scout" is the former name of "probe"
        assert encoded(trained, selector=ArrCoc(coupling=how)) == every
    assert trained.ask(image, "What is this?", glance="auto", **ASKED).tokens["encoded"] == every
    unfamiliar = squares.confident(squares.layer(vlm))
    unfamiliar.unusual.copy_(1e6 * torch.eye(len(unfamiliar.usual)))
    assert encoded(arr_coc.wrap(vlm.model, vlm.processor, layer=unfamiliar)) == every


@pytest.mark.parametrize("budget", ["all", "80%", 60, "auto"])
def test_an_automatic_glance_encodes_at_least_what_is_read(budget: Any) -> None:
    vlm = squares.model()
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=squares.confident(squares.layer(vlm)))
    answer = trained.ask(picture(128, 128), "Which one?", **ASKED | {"budget": budget})
    kept, encoded, every = (answer.tokens[name] for name in ("kept", "encoded", "all"))
    assert kept == {"all": every, "80%": math.ceil(0.8 * every), 60: min(60, every)}.get(budget, kept)
    assert encoded == max(kept, math.ceil(AUTO_GLANCE * every))
    assert answer.allocation.notes == ()


def test_without_a_layer_auto_reads_everything_and_says_so() -> None:
    vlm = squares.model()
    for options in ({}, {"glance": "all"}, {"selector": "arr-coc-untrained"}):
        answer = vlm.ask(picture(128, 128), "Which one?", **ASKED | {"budget": "auto"} | options)
        assert answer.tokens["kept"] == answer.tokens["encoded"] == answer.tokens["all"]
        assert answer.allocation.strategy.startswith("everything: nothing cheap relates cells to this question")
        assert "probe" not in answer.timings
    probed = vlm.ask(picture(128, 128), "Which one?", selector=ArrCoc(coupling="probe"), **ASKED | {"budget": "auto"})
    assert "probe" in probed.timings


def test_the_number_of_cells_that_auto_keeps_does_not_depend_on_what_is_encoded() -> None:
    vlm = squares.model()
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=squares.confident(squares.layer(vlm)))
    image, asked = picture(128, 128), ASKED | {"budget": "auto"}
    ways = [trained.ask(image, "Which one?", **asked), trained.ask(trained.look(image), "Which one?", **asked)]
    ways += [trained.ask(image, "Which one?", glance="all", **asked), *trained.ask(image, ["Which one?"], **asked)]
    assert len({answer.tokens["kept"] for answer in ways}) == 1
    assert arr_coc.realize(image, "Which one?", using=trained).k == ways[0].tokens["kept"]
    assert [answer.tokens["encoded"] == answer.tokens["all"] for answer in ways] == [False, True, True, True]


@pytest.mark.parametrize("unfamiliar", ["question", "image", "nothing"])
def test_what_no_layer_knows_is_read_whole_before_anything_else_is_computed(unfamiliar: str) -> None:
    vlm = squares.model()
    layer = squares.confident(squares.layer(vlm))
    if unfamiliar == "image":
        layer.unusual.copy_(1e6 * torch.eye(len(layer.usual)))
    if unfamiliar == "question":
        layer.asked = torch.nn.functional.normalize(torch.randn(4, layer.config.width), dim=-1).half()
        layer.near.fill_(1e-3)
    trained = arr_coc.wrap(vlm.model, vlm.processor, layer=layer)
    image, asked = picture(128, 128), ASKED | {"budget": "auto"}
    plain = trained.ask(image, "Which one?", **asked)
    explained = trained.ask(image, "Which one?", selector=ArrCoc(explain=True), **asked)
    assert plain.tokens == explained.tokens
    assert plain.allocation.strategy == explained.allocation.strategy
    assert explained.allocation.relevance is not None
    assert (plain.allocation.relevance is None) == (unfamiliar != "nothing")
    assert arr_coc.realize(image, "Which one?", using=trained).relevance is not None


def test_an_image_where_the_probe_finds_nothing_gets_less_of_a_shared_budget() -> None:
    flat, peaked = (selector("arr-coc").relevance(page_selection(rest=rest)) for rest in (0.15, 1e-6))
    assert flat is not None
    assert peaked is not None
    assert 0 < float(flat.max()) < float(peaked.max())


def test_the_cascade_is_refused() -> None:
    with pytest.raises(SelectorError, match=r"the cascade is for arr_coc\.realize"):
        ArrCoc(cascade="on")
