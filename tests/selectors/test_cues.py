"""Single cues against their definitions: saliency, ink (contrast), and coupling through image-text embeddings."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc import Embeddings, TextureArray
from arr_coc.cli import main
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import SelectorError
from arr_coc.selectors import SelectionInput, selector
from arr_coc.selectors.base import ImageSource
from arr_coc.texture import TextureBatch
from arr_coc.texture.filters import luma
from arr_coc.training.projection.fit import text_moments
from arr_coc.types.grid import Cells, Grid, Mosaic
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import GREEDY, wrapped
from tests.conftest import noise
from tests.embedding.fake import NAMES, Colours, photo
from tests.embedding.test_labels import installed
from tests.selectors.selections import TILES, choice, selection


def slow_cells(plane: torch.Tensor, grid: Cells, deviation: bool) -> list[tuple[float, float]]:
    """Mean and standard deviation inside each cell, each pixel weighted by the part of it inside."""
    height, width = plane.shape
    out = []
    for left, top, right, bottom in grid.boxes(torch.arange(grid.n), (width, height)).double().tolist():
        total = first = second = 0.0
        for y in range(math.floor(top), min(math.ceil(bottom), height)):
            for x in range(math.floor(left), min(math.ceil(right), width)):
                part = (min(right, x + 1) - max(left, x)) * (min(bottom, y + 1) - max(top, y))
                value = float(plane[y, x])
                total, first, second = total + part, first + part * value, second + part * value**2
        mean = first / total
        out.append((mean, math.sqrt(max(0.0, second / total - mean**2)) if deviation else 0.0))
    return out


@pytest.mark.parametrize("grid", [Grid(1, 5, 7), TILES, Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75))], ids=str)
def test_ink_is_the_contrast_inside_the_cell(grid: Cells) -> None:
    pixels = noise(31, 44)
    seen = selection(grid, 6, pixels=pixels)
    slow = [deviation for _, deviation in slow_cells(luma(pixels), grid, True)]
    assert torch.allclose(selector("ink").relevance(seen), torch.tensor(slow, dtype=torch.float64), atol=1e-5)
    best = sorted(range(grid.n), key=lambda i: -slow[i])[:6]
    assert choice(selector("ink").select(seen)).keep.tolist() == sorted(best)


@pytest.mark.parametrize("grid", [Grid(1, 5, 7), TILES, Grid(1, 3, 4, (0.1, 0.25, 0.9, 0.75))], ids=str)
def test_saliency_is_the_mean_inside_the_cell(grid: Cells) -> None:
    seen = selection(grid, 6)
    slow = [mean for mean, _ in slow_cells(seen.texture["saliency"], grid, False)]
    assert torch.allclose(selector("saliency").relevance(seen), torch.tensor(slow, dtype=torch.float64), atol=1e-5)
    best = sorted(range(grid.n), key=lambda i: -slow[i])[:6]
    assert choice(selector("saliency").select(seen)).keep.tolist() == sorted(best)


def test_a_cell_outside_the_image_scores_zero() -> None:
    seen = selection(Grid(1, 1, 3, (-0.5, 0, 1, 1)), 1, pixels=noise(16, 16))
    ink = selector("ink").relevance(seen)
    assert ink[0] == 0
    assert (ink[1:] > 0).all()


def test_a_flat_image_ties_and_the_first_cells_win() -> None:
    seen = selection(Grid(1, 3, 4), 5, pixels=torch.full((3, 37, 41), 0.3))
    for name in ("ink", "saliency"):
        assert choice(selector(name).select(seen)).keep.tolist() == [0, 1, 2, 3, 4]


def test_a_video_step_averages_its_frames() -> None:
    flat, busy = torch.full((3, 24, 24), 0.5), noise(24, 24)
    frames = [flat, flat, busy, flat]
    batch = TextureBatch([TextureArray.from_image(frame) for frame in frames])
    seen = selection(Grid(2, 2, 2), 4, source=ImageSource(texture=batch), kind="video")
    assert choice(selector("ink").select(seen)).keep.tolist() == [4, 5, 6, 7]
    alone = [selector("ink").relevance(selection(Grid(1, 2, 2), 4, pixels=frame)) for frame in frames]
    pairs = torch.cat([(alone[0] + alone[1]) / 2, (alone[2] + alone[3]) / 2])
    assert torch.allclose(selector("ink").relevance(seen), pairs)


def test_each_view_scores_its_own_area() -> None:
    pixels = torch.full((3, 40, 40), 0.5)
    pixels[:, 4:8, 24:28] = 0.0
    halves = Mosaic((Grid(1, 2, 2, (0, 0, 0.5, 1)), Grid(1, 2, 2, (0.5, 0, 1, 1))))
    ink = selector("ink").relevance(selection(halves, 1, pixels=pixels))
    assert ink.nonzero().flatten().tolist() == [4]


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
    """Gray, with a red block at the top left and a blue one at the bottom right: 8 x 8 cells of 8 pixels."""
    image = np.full((64, 64, 3), 120, np.uint8)
    image[8:24, 8:24] = (255, 0, 0)
    image[40:56, 40:56] = (0, 0, 255)
    return Image.fromarray(image)


def inside(allocation: Any, box: tuple[int, int, int, int]) -> float:
    """Share of the kept cells whose centre lies in the box."""
    centres = (allocation.boxes[:, :2] + allocation.boxes[:, 2:]) / 2
    left, top, right, bottom = box
    x, y = centres[:, 0], centres[:, 1]
    return float(((x > left) & (x < right) & (y > top) & (y < bottom)).double().mean())


RED, BLUE = (8, 8, 24, 24), (40, 40, 56, 56)


def test_coupling_keeps_the_cells_that_the_question_names() -> None:
    model = vlm()
    red, blue = model.ask(scene(), ["Where is red?", "Where is blue?"], budget=4, selector="coupling", **GREEDY)
    assert inside(red.allocation, RED) == inside(blue.allocation, BLUE) == 1
    assert not red.fallback
    assert red.allocation.selector == "coupling"
    assert float(red.allocation.relevance.max()) == 1
    assert model.embeddings.runs.pictures == 1
    assert "embed" in red.timings


def test_coupling_can_glance() -> None:
    answer = vlm().ask(scene(), "Where is blue?", budget=4, glance=8, selector="coupling", **GREEDY)
    assert answer.tokens["encoded"] == 8
    assert inside(answer.allocation, BLUE) == 1


def test_an_image_is_embedded_once_for_all_questions() -> None:
    model = vlm()
    look = model.look(scene())
    for question in ("red?", "blue?", "green?"):
        model.ask(look, question, budget=4, selector="coupling", **GREEDY)
    assert model.embeddings.encoder.pictures == 1
    model.ask(scene(), "yellow?", budget=4, selector="coupling", **GREEDY)  # another object, the same content
    assert model.embeddings.encoder.pictures == 1
    model.ask(scene().rotate(90), "yellow?", budget=4, selector="coupling", **GREEDY)
    assert model.embeddings.encoder.pictures == 2


def test_other_selectors_embed_nothing() -> None:
    model = vlm()
    model.ask(scene(), "Where?", budget=4, selector="ink", **GREEDY)
    assert model.embeddings.runs.pictures == 0


def test_a_custom_selector_can_read_embedding_scores() -> None:
    seen: list[Any] = []

    def custom(selection: SelectionInput) -> torch.Tensor:
        scores = selection.embedding_scores
        seen.append((scores, selection.texture["embedding_00"]))
        return selection.candidates[scores.topk(selection.count).indices].sort().values

    model = vlm()
    answer = model.ask(scene(), "red?", budget=4, selector=custom, **GREEDY)
    assert inside(answer.allocation, RED) == 1
    scores, channel = seen[0]
    assert scores.shape == (answer.tokens["all"],)
    assert channel.shape == (64, 64)
    assert float(channel.std()) > 0
    assert model.embeddings.encoder.pictures == 1


def test_a_shared_budget_follows_the_question() -> None:
    gray = Image.new("RGB", (64, 64), (120, 120, 120))
    answer = vlm().ask([scene(), gray], "blue?", budget=8, shared=True, selector="coupling", **GREEDY)
    kept = [len(allocation.keep) for allocation in answer.allocations]
    assert sum(kept) <= 16
    assert kept[0] > kept[1]


def test_coupling_scores_tiles_and_frames_separately() -> None:
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


def test_coupling_without_embeddings_raises() -> None:
    for options in ({}, {"glance": 8}):
        with pytest.raises(SelectorError, match="pass the image itself, and embeddings="):
            wrapped("qwen2_vl").ask(scene(), "red?", budget=4, selector="coupling", **GREEDY, **options)


@installed
def test_the_command_line_takes_an_encoder_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    printed = json.loads(capsys.readouterr().out)
    assert printed["tokens"]["kept"] == round(printed["tokens"]["all"] / 2)
    assert "embed" in printed["timings_ms"]


def test_load_takes_embeddings() -> None:
    model = arr_coc.load("reader", embeddings=embeddings())
    prepared = model.prepare(scene(), "blue?", budget="12.5%", selector="coupling")
    assert inside(prepared.allocations[0], (32, 32, 64, 64)) == 1
