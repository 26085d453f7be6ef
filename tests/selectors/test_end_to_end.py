"""Every selector by name, through a wrapped model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import SelectorError
from arr_coc.selectors import Oracle, names
from tests.adapters import tiny_vlm
from tests.adapters.tiny_vlm import GREEDY, picture, wrapped

IMAGE_NAMES = [name for name in names() if name not in ("evs", "oracle", "coupling")]  # coupling needs embeddings
EVIDENCE = [[[10, 10, 30, 25]]]

flat = tiny_vlm.wrapped


@pytest.fixture(autouse=True)
def _nothing_falls_back(recwarn: Any) -> Any:
    yield
    assert not [w for w in recwarn if issubclass(w.category, arr_coc.errors.FallbackWarning)]


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_every_selector_answers_by_name(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What is it?", budget=12, selector=name, **GREEDY)
    assert not answer.fallback
    assert answer.allocation.selector == name
    assert answer.allocation.strategy
    if name == "resize":
        assert 0 < answer.tokens["kept"] <= 12
    else:
        assert answer.tokens["kept"] == 12


@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name not in ("resize", "fastv", "sparsevlm")])
def test_every_selector_gazes_at_what_was_encoded(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(
        picture(), "What is it?", budget=12, glance=30, glance_selector="random", selector=name, **GREEDY
    )
    assert answer.tokens == {"all": 63, "encoded": 30, "kept": 12}
    assert not answer.fallback


@pytest.mark.parametrize("name", ["centre", "saliency", "ink"])
def test_what_needs_only_pixels_glances(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What?", budget=12, glance=30, selector=name, **GREEDY)
    assert answer.tokens == {"all": 63, "encoded": 30, "kept": 12}


@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name not in ("resize", "fastv", "sparsevlm")])
def test_one_budget_for_two_pictures(name: str) -> None:
    answer = wrapped("qwen2_vl").ask(
        [picture(), picture(40, 64, 1)], "Which?", budget=20, shared=True, selector=name, **GREEDY
    )
    assert sum(allocation.k for allocation in answer.allocations) == 20
    assert not answer.fallback


def test_the_oracle_answers_from_its_evidence() -> None:
    answer = wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector=Oracle(EVIDENCE), **GREEDY)
    boxes = answer.allocation.boxes
    inside = (boxes[:, 0] < 30) & (boxes[:, 2] > 10) & (boxes[:, 1] < 25) & (boxes[:, 3] > 10)
    assert (
        answer.allocation.strategy == f"{int(inside.sum())} cells of evidence, {12 - int(inside.sum())} evenly spaced"
    )
    with pytest.raises(SelectorError, match=r"pass Oracle\(evidence\)"):
        wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector="oracle", **GREEDY)


@pytest.mark.parametrize("name", ["evs", "ink", "saliency", "centre", "hiprune", "tome"])
def test_videos(name: str) -> None:
    frames = [picture(40, 32, seed) for seed in range(4)]
    answer = wrapped("qwen2_vl").generate(videos=[frames], text="What happens?", budget=7, selector=name, **GREEDY)[0]
    assert answer.tokens["kept"] == 7
    assert not answer.fallback


def test_evs_is_for_videos() -> None:
    with pytest.raises(SelectorError, match="compares the frames of a video"):
        wrapped("qwen2_vl").ask(picture(), "What?", budget=12, selector="evs", **GREEDY)


@pytest.mark.parametrize("name", ["tome", "visionzip"])
def test_merged_tokens_reach_the_model(name: str) -> None:
    vlm = wrapped("qwen2_vl")
    prepared = vlm.prepare([picture()], "What?", budget=12, selector=name)
    plain = vlm.prepare([picture()], "What?", allocation=prepared.allocations[0])
    merged, own = (p["mm_encoder_outputs"]["image"].pooler_output[0] for p in (prepared, plain))
    assert merged.shape == own.shape
    assert not torch.equal(merged, own)


@pytest.mark.parametrize("family", tiny_vlm.FLAT)
@pytest.mark.parametrize("name", [name for name in IMAGE_NAMES if name != "resize"])
def test_tiles_and_overviews(name: str, family: str) -> None:
    answer = flat(family).ask(picture(90, 40), "What is this?", budget=6, selector=name, max_new_tokens=2)
    assert answer.tokens["kept"] == 6
    assert not answer.fallback
