"""A budget is a price: what is read and encoded of a large image is what is read and encoded of a small one of the same shape."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arr_coc.cli import main
from arr_coc.types.pyramid import Pyramid, Region
from arr_coc.vlm.view import ViewMaker
from tests.adapters.tiny_vlm import CELL, build
from tests.vlm.page import printed, scenery

SHAPES = {"portrait": (3, 4), "landscape": (4, 3), "slip": (1, 4), "strip": (4, 1)}  # width to height
CONTENTS: dict[str, Callable[[int, int], Image.Image]] = {
    "page": lambda width, height: printed(width, height, angle=3.0)[0],
    "photo": scenery,
}
QUESTIONS = {"part": "What is the total?", "whole": "Describe this page.", "both": "Compare the two prices."}
BUDGET = 256
TOLERANCE = 0.1


@lru_cache
def model(family: str) -> Any:
    """A tiny model whose processor gives an ordinary image as many cells as that of a large model: 1,024."""
    vlm = build(family)
    vlm.processor.image_processor.size = {"shortest_edge": 4 * CELL**2, "longest_edge": 1024 * CELL**2}
    return vlm


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    """A picture of 640 px on its longer side and the same one of 12 megapixels, as files."""
    folder = tmp_path_factory.mktemp("pictures")

    @lru_cache
    def made(content: str, shape: str) -> tuple[Path, Path]:
        width, height = SHAPES[shape]
        scale = math.sqrt(12e6 / (width * height))
        large = CONTENTS[content](round(width * scale), round(height * scale))
        scale = 640 / max(width, height)
        small = large.resize((round(width * scale), round(height * scale)), Image.Resampling.LANCZOS)
        paths = folder / f"{content} {shape} small.jpg", folder / f"{content} {shape} large.jpg"
        for picture, path in zip((small, large), paths, strict=True):
            picture.save(path, quality=92)
        return paths

    return made


def price(vlm: Any, image: Path, question: str, mode: str) -> tuple[int, int]:
    """Tokens read, and patches encoded (4 for each cell)."""
    allocations = vlm.prepare(image, question, budget=BUDGET, detail=mode).allocations
    assert all(allocation.view is not None for allocation in allocations)
    return sum(a.k for a in allocations), 4 * sum(len(a.encoded) for a in allocations)


@pytest.mark.parametrize("question", list(QUESTIONS))
@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("content", list(CONTENTS))
@pytest.mark.parametrize("mode", ["views", "mixed"])
def test_a_budget_costs_the_same_whatever_the_size(
    pictures: Any, mode: str, content: str, shape: str, question: str
) -> None:
    small, large = (price(model("qwen2_vl"), one, QUESTIONS[question], mode) for one in pictures(content, shape))
    assert large == pytest.approx(small, rel=TOLERANCE)
    assert (1 - TOLERANCE) * BUDGET <= large[0] <= BUDGET
    assert large[1] == 4 * large[0]  # what is encoded is read


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("mode", ["views", "mixed"])
def test_other_families_keep_to_the_price(pictures: Any, mode: str, family: str) -> None:
    small, large = (price(model(family), one, QUESTIONS["part"], mode) for one in pictures("page", "portrait"))
    assert large == pytest.approx(small, rel=TOLERANCE)
    assert large[0] == pytest.approx(BUDGET, rel=TOLERANCE)


def test_under_auto_a_large_page_costs_no_more_than_a_small_one(pictures: Any) -> None:
    """A small one is shown as it is, where glance="auto" may encode more than is read."""
    found = []
    for one in pictures("page", "portrait"):
        (*_, last) = allocations = model("qwen2_vl").prepare(one, QUESTIONS["part"], budget=BUDGET).allocations
        assert sum(a.k for a in allocations) == BUDGET
        found.append((last.view.role, sum(len(a.encoded) for a in allocations)))
    (small, encoded), (large, cost) = found
    assert (small, large) == ("straightened", "region")
    assert BUDGET == cost <= encoded


@pytest.mark.parametrize("size", [(2000, 1500), (400, 6000), (5, 3)], ids=str)
def test_a_view_has_whole_cells_and_no_more_pixels_than_it_may(size: tuple[int, int]) -> None:
    maker = ViewMaker(model("qwen2_vl"), Pyramid(Image.new("RGB", size)), CELL, 0)
    for region in (Region.whole(size), Region.whole(size).part(1, 1, size[0] - 1, size[1] - 1)):
        view = maker.make(region, "region", 100 * CELL**2).view
        assert view is not None
        width, height = view.size
        assert width % CELL == height % CELL == 0
        assert width * height <= 100 * CELL**2


@pytest.mark.parametrize("question", ["What is the total?", "Describe this picture."])
@pytest.mark.parametrize("mode", ["views", "mixed"])
@pytest.mark.parametrize("size", [(20_000, 800), (1, 1), (15, 20)], ids=str)
def test_the_command_answers_about_odd_pictures_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: tuple[int, int], mode: str, question: str
) -> None:
    """A panorama, one pixel, and less than one cell; and a budget below that of an overview."""
    scenery(90, 120).resize(size).save(tmp_path / "odd.png")
    assert main(["ask", str(tmp_path / "odd.png"), question, "--detail", mode, "--budget", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["tokens"]["kept"] <= 3
    assert found["tokens"]["encoded"] == found["tokens"]["kept"]
    coarse = found["strategy"].startswith("whole: ")
    assert coarse == (mode == "mixed" and "Describe" in question)  # the processor makes 64 cells of a view at least
    assert coarse or found["tokens"]["all"] > 3


def test_a_picture_that_no_processor_takes_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (3, 4000)).save(tmp_path / "thin.png")
    assert main(["ask", str(tmp_path / "thin.png"), "What is the total?", "--detail", "mixed", "--budget", "9"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(
        "arr-coc: the processor refused the pictures: absolute aspect ratio must be smaller than 200"
    )
