"""Drawn folders: read like any training data, the same for the same seed, and not drawn twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from arr_coc.errors import DataError
from arr_coc.evaluation.data import read_samples
from arr_coc.training.documents import KINDS
from arr_coc.training.documents.drawing import SIZES
from arr_coc.training.documents.folder import MANIFEST, draw_folder
from arr_coc.training.documents.page import bundled_fonts


def test_a_folder_is_read_like_any_other_data(tmp_path: Path) -> None:
    data = read_samples(draw_folder(tmp_path / "a", 6, bundled_fonts()))
    assert (len(data.pictures), list(data.problems)) == (6, [])
    for picture in data.pictures:
        with Image.open(str(picture.still)) as image:
            assert image.size in SIZES
        assert all(sample.evidence and sample.answers for sample in picture.samples)
        assert all(sample.kind.split(": ")[0] in KINDS for sample in picture.samples)


def test_the_seed_decides_and_validation_has_other_pictures(tmp_path: Path) -> None:
    fonts = bundled_fonts()
    first, again, other, held = (
        (draw_folder(tmp_path / name, 2, fonts, **options) / "samples.jsonl").read_text()
        for name, options in {"a": {}, "b": {}, "c": {"seed": 1}, "d": {"held_out": True}}.items()  # type: ignore[arg-type]
    )
    assert first == again
    assert len({first, other, held}) == 3
    questions = [{json.loads(line)["question"] for line in text.splitlines()} for text in (first, held)]
    assert not questions[0] & questions[1]


def test_a_complete_folder_is_kept_and_an_incomplete_one_drawn_again(tmp_path: Path) -> None:
    folder, fonts, drawn = tmp_path / "a", bundled_fonts(), []

    def draw() -> None:
        draw_folder(folder, 2, fonts, tick=lambda done, total: drawn.append((done, total)))

    draw()
    draw()
    assert drawn == [(1, 2), (2, 2)]
    (folder / MANIFEST).unlink()
    draw()
    assert len(drawn) == 4


def test_other_settings_are_refused(tmp_path: Path) -> None:
    draw_folder(tmp_path, 1, bundled_fonts())
    with pytest.raises(DataError, match="was drawn with another count and seed: use the same"):
        draw_folder(tmp_path, 2, bundled_fonts(), seed=3)
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(DataError, match=r"cannot read .* start again with --fresh"):
        draw_folder(tmp_path, 1, bundled_fonts())


def test_what_cannot_be_drawn_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 1 or more pictures to draw, got 0"):
        draw_folder(tmp_path, 0, bundled_fonts())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write drawings into"):
        draw_folder(tmp_path / "file" / "a", 1, bundled_fonts())
