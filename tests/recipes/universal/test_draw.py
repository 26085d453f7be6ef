"""Shards of pages: the same for the same seed, drawn once, with and without scans."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from arr_coc.training.documents import KINDS
from arr_coc.training.documents.page import bundled_fonts
from recipes.reader.data import Library
from recipes.reader.receipts import Receipt
from recipes.universal.draw import draw_page, draw_picture, draw_shards, main


def test_a_page_depends_on_its_seed_and_number_only(library: Library) -> None:
    first, again, other = (draw_page(seed, 3, library) for seed in (0, 0, 1))
    assert np.array_equal(first.pixels, again.pixels)
    assert [one.text for one in first.questions] == [one.text for one in again.questions]
    assert first.pixels.shape != other.pixels.shape or not np.array_equal(first.pixels, other.pixels)


def test_shards_that_are_there_are_not_drawn_again(shards: Path, library: Library) -> None:
    paths = sorted(shards.glob("pages_*.pickle"))
    assert [len(pickle.loads(path.read_bytes())) for path in paths] == [4, 4]
    before = [path.stat().st_mtime_ns for path in paths]
    draw_shards(shards, library, shards=2, size=4)
    assert before == [path.stat().st_mtime_ns for path in paths]


def test_without_scans_all_pages_are_drawings(library: Library) -> None:
    assert {draw_picture(random.Random(seed), library).kind for seed in range(25)} <= set(KINDS)


def test_with_scans_some_pages_show_them(receipts: list[Receipt]) -> None:
    library = Library.from_receipts(bundled_fonts(), receipts)
    drawn = [draw_picture(random.Random(seed), library) for seed in range(16)]
    assert {"scan"} < {one.kind for one in drawn}
    assert all(any(question.evidence for question in one.questions) for one in drawn)


@pytest.mark.parametrize("option", ["--fonts", "--receipts"])
def test_a_missing_folder_is_one_sentence(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([option, "/no/where", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "/no/where" in capsys.readouterr().err.splitlines()[-1]
