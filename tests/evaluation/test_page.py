"""Plots, the page and the table's words."""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import Report, evaluate, page
from arr_coc.evaluation.measure import grid_from_lists, grid_to_lists, pack_cells, unpack_cells
from arr_coc.evaluation.report import classify_outcome, format_share
from arr_coc.types.grid import Grid, Mosaic
from tests.adapters.tiny_vlm import wrapped


@pytest.fixture
def report(folder: Callable[[int], Path]) -> Report:
    options = {"tokens": 3, "seeds": 2}
    return evaluate(wrapped("qwen2_vl"), folder(3), ["all", "random", "uniform"], ["50%", "25%"], **options)  # type: ignore[arg-type]


def test_a_plot_is_written(report: Report, tmp_path: Path) -> None:
    report.plot(tmp_path / "pareto.png")
    with Image.open(tmp_path / "pareto.png") as drawn:
        assert drawn.width > 800
    with pytest.raises(ArrCocError, match="cannot write"):
        report.plot(tmp_path / "no" / "pareto.png")


def test_the_page_needs_nothing_beside_itself(report: Report, tmp_path: Path) -> None:
    text = report.page(tmp_path / "out").read_text()
    assert not re.search(r"""(src|href)=["'](?!data:|#)|url\((?!data:)|https?:""", text)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "report.json"]
    for words in ("prefers-color-scheme:dark", "width=device-width", "<svg", "uniform", "no selector gets any right"):
        assert words in text
    assert text.count("data:image/jpeg;base64,") == 3  # each picture once
    assert unclosed(text) == []


def unclosed(text: str) -> list[str]:
    """Elements that were opened and not closed in order."""
    stack: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "img", "br", "input"):
                stack.append(tag)

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Reader().feed(text)
    return stack


def test_without_matplotlib_there_is_a_page_with_plots(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArrCocError, match="pip install matplotlib"):
        report.plot(tmp_path / "pareto.png")
    assert "visual tokens that a language layer reads" in report.page(tmp_path).read_text()


def test_a_page_that_cannot_be_written_is_one_sentence(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ArrCocError, match=r"cannot write .*file"):
        report.page(tmp_path / "file")


def reported(folder: Callable[[int], Path], selectors: Any, budgets: Any = ("50%", "25%"), **options: Any) -> Report:
    return evaluate(wrapped("qwen2_vl"), folder(3), selectors, budgets, tokens=3, seeds=1, **options)


def test_cases_show_what_was_kept_and_how_hot_it_was(folder: Callable[[int], Path], tmp_path: Path) -> None:
    text = reported(folder, ["all", "ink", "divprune", "tome", "oracle", "fastv"]).page(tmp_path).read_text()
    about = dict(re.findall(r"<summary><b>([\w-]+)</b>.*?</summary>\s*<p class=\"quiet\">(.*?)</p>", text))
    assert list(about)[-1] == "oracle"
    assert about["ink"] == about["fastv"] == "Warm: what the selector thinks a cell is worth."
    assert about["divprune"] == "This selector gives its cells no scores, so there is no heat to show."
    assert "size" in about["tome"]
    for name in ("ink", "fastv", "tome", "divprune"):
        part = text[text.index(f"<summary><b>{name}</b>") :]
        part = part[: part.index("</details>")]
        figures, kept, heat = (part.count(words) for words in ("<figure", 'label="kept cells"', 'label="heat"'))
        assert figures == kept > 0
        assert heat == (0 if name == "divprune" else figures)


def test_layers_have_a_pixel_a_cell(folder: Callable[[int], Path]) -> None:
    found = reported(folder, ["ink"], ["25%"], answers=False)
    row = found.rows["0.png"][0]
    grid = grid_from_lists(row["grid"])
    assert isinstance(grid, Grid)

    def pixels(uri: str) -> np.ndarray:
        with Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) as image:
            return np.asarray(image)

    veil, warm = pixels(page.kept_layer(row)), pixels(page.heat_layer(row))
    assert veil.shape[:2] == warm.shape[:2] == (grid.h, grid.w)
    keep = unpack_cells(row["keep"], grid.n)
    clear = torch.zeros(grid.n).index_fill(0, keep, 1).view(grid.h, grid.w).bool().numpy()
    assert ((veil[..., -1] == 0) == clear).all()
    assert warm[..., -1][clear].min() >= warm[..., -1][~clear].max()  # ink keeps the hottest


def test_outcomes_say_why_answers_are_wrong() -> None:
    dense = {"selector": "all", "accuracy": 1.0, "recall": 1.0}
    wrong = {"selector": "x", "accuracy": 0.0, "recall": 0.5}
    assert classify_outcome(wrong, dense) == "lost"
    assert classify_outcome(wrong | {"recall": 0.9}, dense) == "misread"
    assert classify_outcome(wrong | {"recall": None}, dense) == "unknown"
    assert classify_outcome(wrong, dense | {"accuracy": 0.3}) == "dense too"
    assert classify_outcome(wrong | {"accuracy": 0.6}, dense) == "right"
    assert classify_outcome(wrong | {"accuracy": None}, dense) is None


def test_outcomes_add_up(report: Report) -> None:
    for record in report.records:
        assert sum(record["outcomes"].values()) == pytest.approx(1, abs=1e-3)
        assert record["outcomes"]["right"] == record["accuracy"]


def test_shares_read_well() -> None:
    assert format_share(0.5) == ".50"
    assert format_share(0.999, (0.0, 1.0)) == "1.00 [.00, 1.00]"
    assert format_share(None) == ""


def test_layers_of_tiles_and_an_overview() -> None:
    grid = Mosaic((Grid(1, 2, 2, (0, 0, 0.5, 1)), Grid(1, 2, 2, (0.5, 0, 1, 1)), Grid(1, 1, 2)))
    row = {
        "grid": grid_to_lists(grid),
        "keep": pack_cells(torch.tensor([0, 9]), grid.n),
    }  # a tile's corner, the overview's right half
    with Image.open(io.BytesIO(base64.b64decode(page.kept_layer(row).split(",")[1]))) as image:
        veil = np.asarray(image)[..., -1]
    height, width = veil.shape
    clear = veil == 0
    assert clear[: height // 2, : width // 4].all()
    assert clear[:, width // 2 :].all()
    assert not clear[height // 2 :, : width // 2].any()
