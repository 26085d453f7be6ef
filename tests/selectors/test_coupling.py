"""Cells nearest the question, through embeddings in the texture: with a wrapped model, encoded once."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import Embeddings
from arr_coc.cli import main
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import SelectorError
from arr_coc.selectors import SelectionInput
from arr_coc.training.projection.fit import text_moments
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import GREEDY, wrapped
from tests.embedding.fake import NAMES, Colours, photo
from tests.embedding.test_labels import installed


def embeddings() -> Embeddings:
    encoder = Colours()
    rows = torch.cat([encoder.dense(photo(seed=n)).features.flatten(1).T for n in range(30)])
    texts = text_moments(encoder, [f"the {name} one" for name in NAMES])
    fitted = fit_projection(Moments.of(rows), texts, encoder=encoder.identity)
    encoder.pictures = encoder.texts = 0
    return Embeddings(encoder, fitted)


@lru_cache
def parts() -> tuple[Any, Any]:
    return families.model("qwen2_vl", "sdpa"), tiny_vlm.processor("qwen2_vl")


def vlm(**options: Any) -> Any:
    return arr_coc.wrap(*parts(), embeddings=embeddings(), **options)


def scene() -> Image.Image:
    """Gray, a red block above on the left, a blue one below on the right: 8 x 8 cells of 8 pixels."""
    image = np.full((64, 64, 3), 120, np.uint8)
    image[8:24, 8:24] = (255, 0, 0)
    image[40:56, 40:56] = (0, 0, 255)
    return Image.fromarray(image)


def inside(allocation: Any, box: tuple[int, int, int, int]) -> float:
    """The share of the kept cells whose centre lies in a box."""
    centres = (allocation.boxes[:, :2] + allocation.boxes[:, 2:]) / 2
    left, top, right, bottom = box
    x, y = centres[:, 0], centres[:, 1]
    return float(((x > left) & (x < right) & (y > top) & (y < bottom)).double().mean())


RED, BLUE = (8, 8, 24, 24), (40, 40, 56, 56)


def test_the_question_decides_what_is_kept() -> None:
    model = vlm()
    red, blue = model.ask(scene(), ["Where is red?", "Where is blue?"], budget=4, selector="coupling", **GREEDY)
    assert inside(red.allocation, RED) == inside(blue.allocation, BLUE) == 1
    assert not red.fallback
    assert red.allocation.selector == "coupling"
    assert float(red.allocation.relevance.max()) == 1
    assert model.embeddings.runs.pictures == 1
    assert "embed" in red.timings


def test_it_can_glance() -> None:
    answer = vlm().ask(scene(), "Where is blue?", budget=4, glance=8, selector="coupling", **GREEDY)
    assert answer.tokens["encoded"] == 8
    assert inside(answer.allocation, BLUE) == 1


def test_a_picture_is_embedded_once_for_all_questions() -> None:
    model = vlm()
    look = model.look(scene())
    for question in ("red?", "blue?", "green?"):
        model.ask(look, question, budget=4, selector="coupling", **GREEDY)
    assert model.embeddings.encoder.pictures == 1
    model.ask(scene(), "yellow?", budget=4, selector="coupling", **GREEDY)  # another object, the same content
    assert model.embeddings.encoder.pictures == 1
    model.ask(scene().rotate(90), "yellow?", budget=4, selector="coupling", **GREEDY)
    assert model.embeddings.encoder.pictures == 2


def test_nothing_is_embedded_unless_somebody_asks() -> None:
    model = vlm()
    model.ask(scene(), "Where?", budget=4, selector="ink", **GREEDY)
    assert model.embeddings.runs.pictures == 0


def test_a_selector_of_ones_own_may_ask() -> None:
    seen: list[Any] = []

    def mine(selection: SelectionInput) -> torch.Tensor:
        scores = selection.embedding_scores
        seen.append((scores, selection.texture["embedding_00"]))
        return selection.candidates[scores.topk(selection.count).indices].sort().values

    model = vlm()
    answer = model.ask(scene(), "red?", budget=4, selector=mine, **GREEDY)
    assert inside(answer.allocation, RED) == 1
    scores, channel = seen[0]
    assert scores.shape == (answer.tokens["all"],)
    assert channel.shape == (64, 64)
    assert float(channel.std()) > 0
    assert model.embeddings.encoder.pictures == 1


def test_one_budget_for_two_pictures_follows_the_question() -> None:
    gray = Image.new("RGB", (64, 64), (120, 120, 120))
    answer = vlm().ask([scene(), gray], "blue?", budget=8, shared=True, selector="coupling", **GREEDY)
    kept = [len(allocation.keep) for allocation in answer.allocations]
    assert sum(kept) <= 16
    assert kept[0] > kept[1]


def test_tiles_and_frames_see_their_own_part() -> None:
    family = "llava_next"
    processor = tiny_vlm.build(family)
    model = arr_coc.wrap(processor.model, processor.processor, embeddings=embeddings())
    answer = model.ask(scene(), "red?", budget=3, selector="coupling", **GREEDY)
    assert not answer.fallback
    assert inside(answer.allocation, (0, 0, 32, 32)) == 1
    other = Image.new("RGB", (64, 64), (120, 120, 120))
    video = vlm().ask(None, "red?", videos=[[other, other, scene(), scene()]], budget=3, selector="coupling", **GREEDY)
    assert not video.fallback
    assert set(video.allocation.thw[:, 0].tolist()) == {1}


def test_without_embeddings_it_is_one_sentence() -> None:
    for options in ({}, {"glance": 8}):
        with pytest.raises(SelectorError, match="pass the image itself, and embeddings="):
            wrapped("qwen2_vl").ask(scene(), "red?", budget=4, selector="coupling", **GREEDY, **options)


@installed
def test_an_encoders_name_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene().resize((160, 160)).save(tmp_path / "a.png")
    asked = [
        "ask",
        str(tmp_path / "a.png"),
        "Where is it?",
        "--budget",
        "50%",
        "--selector",
        "coupling",
        "--tokens",
        "4",
    ]
    assert main(asked) == 2
    assert "--embeddings labels" in capsys.readouterr().err
    assert main([*asked, "--embeddings", "labels", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["tokens"]["kept"] == round(said["tokens"]["all"] / 2)
    assert "embed" in said["timings_ms"]


def test_load_takes_embeddings() -> None:
    model = arr_coc.load("reader", embeddings=embeddings())
    prepared = model.prepare(scene(), "blue?", budget="12.5%", selector="coupling")
    assert inside(prepared.allocations[0], (32, 32, 64, 64)) == 1
