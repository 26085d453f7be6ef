"""Drawn photos and pages are the same each time, and their boxes are where the answers are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from large_pages import A4, MAX_ANGLE, PHONE, WIDTHS, _moved, dense_page, draw_held_out, photographed, placed, report
from recipes.reader.receipts import read_receipts, split


def test_a_dense_page_is_deterministic_and_its_answers_lie_on_print() -> None:
    page, samples = dense_page(3)
    again, same = dense_page(3)
    assert np.array_equal(np.asarray(page), np.asarray(again))
    assert samples == same
    assert page.size == A4
    pixels = np.asarray(page.convert("L"))
    for sample in samples:
        x0, y0, x1, y1 = (round(v) for v in sample["evidence"][0][0])
        assert (pixels[y0:y1, x0:x1] < 100).mean() > 0.05  # ink
    other, _ = dense_page(4)
    assert not np.array_equal(np.asarray(page), np.asarray(other))


def test_a_receipt_is_a_third_to_a_half_of_the_width_and_inside_the_photo() -> None:
    scan = np.zeros((900, 450, 3), np.uint8)
    for seed in range(20):
        matrix = placed(scan, seed)
        assert np.array_equal(matrix, placed(scan, seed))
        scale, angle = np.hypot(*matrix[:, 0]), np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0]))
        assert WIDTHS[0] <= scale * 450 / PHONE[0] <= WIDTHS[1]
        assert abs(angle) <= MAX_ANGLE
        x0, y0, x1, y1 = _moved([0, 0, 450, 900], matrix)
        assert x0 >= 0
        assert y0 >= 0
        assert x1 <= PHONE[0]
        assert y1 <= PHONE[1]


def test_the_photo_shows_the_receipt_where_the_map_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 90, (120, 90, 3), dtype=np.uint8)).save(tmp_path / "dark.jpg")
    scan = np.full((500, 300, 3), 235, np.uint8)
    scan[200:300, 100:200] = 0
    matrix = placed(scan, 5)
    photo = photographed(scan, matrix, [tmp_path / "dark.jpg"], 5)
    assert photo.shape == (PHONE[1], PHONE[0], 3)
    for (x, y), dark in (((150, 250), True), ((50, 100), False), ((250, 420), False)):
        column, row = (matrix[:, :2] @ (x, y) + matrix[:, 2]).astype(int)
        assert (photo[row, column].mean() < 60) == dark


def test_the_report_counts_by_image_and_kind(tmp_path: Path) -> None:
    row = {"contestant": "views", "kind": "total", "tokens": {"kept": 256, "encoded": 256}, "cpu_ms": 1500}
    rows = [
        row | {"image": "a", "right": 1.0, "probability": 0.97},
        row | {"image": "b", "right": 0.0, "probability": 0.92, "kind": "date"},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    made = report(tmp_path / "r.jsonl")
    assert "| views | 0.50 [0.00, 1.00] | 0.00 | 1.00 | 256 | 256 | 1.50 | 2 |" in made
    assert "| views | 0.50 of 2 | 0.50 of 2 | 1.00 of 1 | 1.00 of 1 |  |  |" in made  # the surest are right


def test_scans_kept_for_validation_are_written_as_they_are_or_smaller(tmp_path: Path) -> None:
    folder, records = tmp_path / "all", {}
    folder.mkdir()
    for number in range(30):
        Image.new("L", (200, 300), 8 * number).save(folder / f"{number:03d}.jpg")
        lines = [["SHOP", [10, 10, 90, 30]], ["TOTAL 3.20", [20, 200, 120, 220]]]
        records[f"{number:03d}"] = {"fields": {"total": "3.20", "company": "SHOP"}, "lines": lines}
    (folder / "recs.json").write_text(json.dumps(records))
    kept = [receipt.name for receipt in split(read_receipts(folder))[1]]
    assert 0 < len(kept) < 30
    for scale, size in ((1.0, (200, 300)), (0.5, (100, 150))):
        out = tmp_path / str(scale)
        draw_held_out(folder, out, scale)
        samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
        assert [sample["image"] for sample in samples] == [f"{name}.jpg" for name in kept for _ in range(2)]
        assert [(one["kind"], one["answer"]) for one in samples[:2]] == [("total", "3.20"), ("company", "SHOP")]
        assert samples[0]["evidence"] == [[[v * scale for v in (20, 200, 120, 220)]]]
        for name in kept:
            with Image.open(out / f"{name}.jpg") as opened:
                assert opened.size == size
    assert (tmp_path / "1.0" / f"{kept[0]}.jpg").read_bytes() == (folder / f"{kept[0]}.jpg").read_bytes()
