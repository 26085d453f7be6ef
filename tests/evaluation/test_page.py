"""The HTML page: self-contained, well-formed, and what it says about single cases."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.errors import ArrCocError
from arr_coc.evaluation import PictureQuestions, page
from arr_coc.evaluation.measure import grid_from_lists, grid_to_lists, pack_cells, unpack_cells
from arr_coc.types.grid import Grid, Mosaic
from tests.evaluation.conftest import PICTURES, SAMPLE, Folder, answering, made_up, make_row, run

PICTURE = PictureQuestions("p", Path("p"), (80, 10), (SAMPLE,))
DENSE = make_row("all", 1.0, list(range(8)))


def test_the_page_is_self_contained_and_well_formed(folder: Folder, tmp_path: Path) -> None:
    text = run(folder(3), budgets=["50%", "25%"]).page(tmp_path / "out").read_text()
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
            if tag not in ("meta", "img", "br", "hr", "input"):
                stack.append(tag)

        def handle_startendtag(self, tag: str, attrs: Any) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    Reader().feed(text)
    return stack


def test_a_page_that_cannot_be_written_is_an_error(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ArrCocError, match=r"cannot write .*file"):
        run(folder(1), ["uniform"]).page(tmp_path / "file")


def test_text_of_the_data_is_escaped() -> None:
    found = made_up({"<b>&x": answering("<b>&x", 0, [0, 1])})
    text = page.render_report(found)
    assert "&lt;b&gt;&amp;x" in text
    assert "<b>&x" not in text
    assert unclosed(text) == []


def test_cases_show_the_kept_cells_and_their_heat(folder: Folder, tmp_path: Path) -> None:
    text = (
        run(folder(3), ["all", "ink", "divprune", "tome", "oracle", "fastv"], ["50%", "25%"], seeds=1)
        .page(tmp_path)
        .read_text()
    )
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


def test_layers_have_one_pixel_per_cell(folder: Folder) -> None:
    found = run(folder(1), ["ink"], ["25%"], answers=False)
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


@pytest.mark.parametrize(
    ("answer", "dense", "words"),
    [
        (
            make_row("x", 0.0, [6, 7]),
            DENSE,
            "None of the 2 cells that show the answer was kept. The dense model is right.",
        ),
        (make_row("x", 0.0, [1, 7]), None, "1 of the 2 cells that show the answer was kept."),
        (
            make_row("x", 0.0, [0, 1]),
            DENSE,
            "All 2 cells that show the answer were kept. Enough to read from: the dense",
        ),
        (make_row("x", 0.0, [0, 1]), DENSE | {"accuracy": 0.0, "said": "nay"}, "The dense model errs as well: 'nay'."),
        (make_row("x", 1.0, [0, 1]), DENSE, "All 2 cells that show the answer were kept."),
        (make_row("x", 0.0, [6], fallback="RuntimeError: no"), DENSE, "The selector failed, and evenly spaced cells"),
        (make_row("x", 0.0, [6], [0.2, 0.1, 0.9, 0.8, 0, 0, 1, 0]), DENSE, "the best of them is number 4 of 8."),
        (make_row("x", 0.0, [6], [0.5, 0, 0.5, 0.5, 0, 0, 1, 0]), DENSE, "the best of them is number 2 to 4 of 8."),
    ],
)
def test_why_a_case_failed(answer: dict[str, Any], dense: dict[str, Any] | None, words: str) -> None:
    assert words in page.explain_case((PICTURE, answer, dense))


def test_the_worst_cases_are_those_that_the_dense_model_gets_right() -> None:
    answers = answering("x", 10, [6, 7])
    dense = [make_row("all", float(n in (12, 15)), list(range(8))) for n in range(PICTURES)]
    found = made_up({"all": dense, "x": answers})
    order = [picture.name for picture, _, _ in page.rank_cases(found, "x", "25%")]
    assert set(order[:2]) == {"12", "15"}
    assert set(order[10:]) == {str(n) for n in range(10)}
    record = found.record("x", "25%")
    assert record["outcomes"] == {"right": 0.5, "lost": 0.1, "dense too": 0.4}
