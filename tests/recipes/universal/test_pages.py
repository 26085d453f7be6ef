"""Training pages: evidence and letters are in the cells in which they are seen, at any cell size and pose."""

from __future__ import annotations

import random

import numpy as np
import pytest

from arr_coc.layer.universal import universal_config
from arr_coc.training.documents.drawing import Drawing, DrawnQuestion
from arr_coc.training.documents.page import Page, bundled_fonts, load_font
from recipes.universal.pages import LETTERS, make_page, moved_points, photograph

SIZE = 448
BOX = (115.0, 200.0, 250.0, 222.0)


def drawing() -> Drawing:
    """A page with one word in a box, and a dark patch around it."""
    page = Page(SIZE, SIZE, (255, 255, 255))
    page.draw.rectangle(BOX, fill=(60, 60, 60))
    page.write(120, 204, "TOTAL 48", load_font(bundled_fonts().paths[0], 18), (255, 255, 255))
    questions = (
        DrawnQuestion("total", "Total?", "48", ((BOX,),)),
        DrawnQuestion("date", "Date?", "not in the picture", (), absent=True),
        DrawnQuestion("whole", "Describe it.", "A page.", None, whole=True),
    )
    return Drawing("receipt", np.asarray(page.image), questions, tuple(page.lines), "A page.")


@pytest.mark.parametrize("cell", [14, 28, 32])
def test_evidence_is_in_the_cells_that_its_box_covers(cell: int) -> None:
    page = make_page(random.Random(0), drawing(), universal_config(), strength=0.0, cell=float(cell))
    side = SIZE // cell
    assert page.shape == (side, side)
    total, absent, whole = page.questions
    assert (total.intent, absent.intent, whole.intent) == ("find", "absent", "whole")
    assert not absent.groups
    assert not whole.groups
    left, top, right, bottom = BOX
    (cells,) = total.groups
    covered = {
        row * side + column
        for row in range(side)
        for column in range(side)
        if min(right, (column + 1) * cell) > max(left, column * cell) and min(bottom, (row + 1) * cell) > max(top, row * cell)
    }  # fmt: skip
    assert set(cells.tolist()) <= covered
    # A cell that the box only touches is left out; one that it covers by half each way is not.
    half = {
        row * side + column
        for row in range(side)
        for column in range(side)
        if min(right, (column + 1) * cell) - max(left, column * cell) >= cell / 2
        and min(bottom, (row + 1) * cell) - max(top, row * cell) >= min(cell, bottom - top) / 2
    }
    assert half <= set(cells.tolist())


@pytest.mark.parametrize("cell", [14, 28, 32])
def test_letters_are_in_the_evidence_cells(cell: int) -> None:
    page = make_page(random.Random(0), drawing(), universal_config(), strength=0.0, cell=float(cell))
    assert sorted(LETTERS[letter] for _, letter in page.letters) == sorted("total48")
    assert {int(place) for place, _ in page.letters} <= set(page.questions[0].groups[0].tolist())


def test_evidence_follows_the_page_when_it_is_photographed() -> None:
    """The dark patch stays where its mapped box is, whatever the pose."""
    moved = 0
    for seed in range(12):
        rng = random.Random(seed)
        image, move = photograph(rng, drawing().image, strength=1.0)
        corners = moved_points(move, np.array([[BOX[0], BOX[1]], [BOX[2], BOX[3]], [BOX[0], BOX[3]], [BOX[2], BOX[1]]]))
        x, y = corners.mean(0).round().astype(int)
        around = moved_points(move, np.array([[200.0, 120.0], [200.0, 300.0]])).round().astype(int)
        if not all(0 <= px < image.shape[1] and 0 <= py < image.shape[0] for px, py in (*around, (x, y))):
            continue
        moved += not np.allclose(move, np.eye(3))
        patch = image[max(0, y - 6) : y + 7, max(0, x - 6) : x + 7].astype(float)
        paper = [float(image[py, px].mean()) for px, py in around]
        assert all(abs(np.median(patch) - one) > 25 for one in paper), seed
    assert moved >= 4


def test_a_large_page_has_no_more_cells_than_allowed() -> None:
    page = make_page(random.Random(1), drawing(), universal_config(), strength=0.0, cell=4.0)
    assert page.shape[0] * page.shape[1] <= 1400
    assert page.pixels.shape == (3 * 16 * 16, *page.shape)
    assert page.channels.shape == (len(universal_config().channels), *page.shape)


def test_what_is_asked_for_by_colour_is_neither_inverted_nor_turned() -> None:
    """Red stays red: an inverted picture would show it cyan."""
    red = np.zeros((60, 60, 3), np.uint8) + np.array([200, 30, 30], np.uint8)
    inverted = 0
    for seed in range(150):
        kept = photograph(random.Random(seed), red, 0.0, as_seen=True)[0].reshape(-1, 3).mean(0)
        free = photograph(random.Random(seed), red, 0.0)[0].reshape(-1, 3).mean(0)
        assert kept[0] > kept[1] + 50
        inverted += free[0] < free[1]
    assert inverted > 3
