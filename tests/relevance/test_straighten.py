"""Straightening: text in any pose is found upright; what is upright, or no text, is left as it is."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc.relevance import straighten
from arr_coc.relevance.straighten import STRIP, find_pose, judge
from tests.vlm.page import scenery

OWN_TILT = 0.75  # degrees: the bundled receipt is a photo


def receipt() -> np.ndarray:
    return np.asarray(arr_coc.pictures.receipt().convert("RGB"))


def moved(picture: np.ndarray, corners: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The picture with its corners at `corners`."""
    height, width = picture.shape[:2]
    own = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(own, corners.astype(np.float32))
    return cv2.warpPerspective(picture, matrix, size, flags=cv2.INTER_CUBIC, borderValue=(235, 235, 235))


def tilted(picture: np.ndarray, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """The picture turned clockwise, and its corners."""
    height, width = picture.shape[:2]
    turn = math.radians(degrees)
    own = np.array([[0, 0], [width, 0], [width, height], [0, height]], float)
    corners = own @ np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    corners -= corners.min(0)
    wide, high = (math.ceil(side) for side in corners.max(0))
    return moved(picture, corners, (wide, high)), corners


def pose_of(picture: np.ndarray) -> object:
    return find_pose(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), (picture.shape[1], picture.shape[0]))


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_a_turned_page_is_turned_back_without_a_loss(degrees: int) -> None:
    picture = np.ascontiguousarray(np.rot90(receipt(), -degrees // 90))
    region = pose_of(picture).region  # type: ignore[attr-defined]
    assert region is not None
    assert region.is_whole
    assert region.angle == degrees


@pytest.mark.parametrize("degrees", [-20, -7, 5, 12, 20, 100, 165, -110])
def test_a_tilted_page_is_levelled(degrees: int) -> None:
    picture, _ = tilted(receipt(), degrees)
    region = pose_of(picture).region  # type: ignore[attr-defined]
    assert region is not None
    assert abs((region.angle - degrees + OWN_TILT + 180) % 360 - 180) < 0.5
    assert "turned by" in region.done


def test_a_page_in_perspective_has_its_own_corners() -> None:
    picture = receipt()
    height, width = picture.shape[:2]
    corners = np.array([[70, 60], [width - 30, 20], [width + 40, height + 20], [10, height - 60]], float) + 20
    region = pose_of(moved(picture, corners, (width + 80, height + 80))).region  # type: ignore[attr-defined]
    assert region is not None
    assert region.quad is not None
    assert "out of perspective" in region.done
    # Lines are level and strokes upright again: the page's own directions, in the region, to 1.5 degrees.
    across, down = np.array([[0.3, 0.3], [0.7, 0.3]]), np.array([[0.5, 0.3], [0.5, 0.7]])
    own = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32)
    to_picture = cv2.getPerspectiveTransform(own, corners.astype(np.float32))
    for line, axis in ((across, 1), (down, 0)):
        shown = cv2.perspectiveTransform(line[None], to_picture)[0]
        inside = region.place(torch.from_numpy(shown)).numpy() * region.size
        step = inside[1] - inside[0]
        assert abs(step[axis] / np.hypot(*step)) < math.sin(math.radians(1.5))


def on_a_table(degrees: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The receipt, tilted, on a background full of edges that may be taken for lines, and its corners."""
    random = np.random.default_rng(seed)
    picture = receipt()
    page, corners = tilted(picture, degrees)
    height, width = (round(1.3 * side) + 200 for side in page.shape[:2])
    table = np.full((height, width, 3), 120, np.uint8)
    for _ in range(500):
        x, y, wide, high = random.integers(0, width), random.integers(0, height), *random.integers(4, 60, 2)
        shade = [int(random.integers(40, 200))] * 3
        cv2.rectangle(table, (int(x), int(y)), (int(x + wide), int(y + high)), shade, -1)
    mask = cv2.fillConvexPoly(np.zeros(page.shape[:2], np.uint8), corners.round().astype(np.int32), 1)[..., None]
    left, top = (width - page.shape[1]) // 2, (height - page.shape[0]) // 2
    part = table[top : top + page.shape[0], left : left + page.shape[1]]
    part[:] = np.where(mask > 0, page, part)
    return table, corners + np.array([left, top])


@pytest.mark.parametrize("degrees", [12, 90, 105])
def test_what_lies_around_a_page_is_left_out(degrees: float) -> None:
    picture, corners = on_a_table(degrees)
    region = pose_of(picture).region  # type: ignore[attr-defined]
    assert region is not None
    assert abs((region.angle - degrees + 180) % 360 - 180) < 3
    height, width = receipt().shape[:2]
    assert region.size[0] * region.size[1] < 1.25 * width * height
    # All of the text is in it: it starts and ends at these parts of the page, and a barcode follows.
    edges = np.array([[0.06, 0.06], [0.94, 0.06], [0.94, 0.76], [0.06, 0.76]])
    text = corners[0] + edges[:, :1] * (corners[1] - corners[0]) + edges[:, 1:] * (corners[3] - corners[0])
    inside = region.place(torch.from_numpy(text)).numpy()
    assert ((inside > 0) & (inside < 1)).all()


def test_pixels_and_components_are_those_of_the_plain_functions() -> None:
    noise = (np.random.default_rng(0).random((700, 900)) < 0.1).astype(np.uint8)
    for ink in (noise, noise[:40, :50], np.zeros((5, 7), np.uint8), np.ones((1, 1), np.uint8)):
        for one, other in zip(straighten._inked(ink), np.nonzero(ink), strict=True):
            assert np.array_equal(one, other)
        labels, stats = straighten._components(ink, 8)
        count, own, known, _ = cv2.connectedComponentsWithStats(ink, connectivity=8, ltype=cv2.CV_32S)
        assert count == len(stats)
        assert np.array_equal(labels, own)
        assert np.array_equal(stats, known)


def light(picture: np.ndarray) -> np.ndarray:
    return (picture * 0.3 + 10).astype(np.uint8)


@pytest.mark.parametrize("change", [lambda one: one, light, lambda one: 255 - one, lambda one: tilted(one, 1.0)[0]])
def test_what_is_upright_is_left_as_it_is(change: object) -> None:
    assert pose_of(change(receipt())).region is None  # type: ignore[operator,attr-defined]


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (800, 20), (2, 900), (600, 800)], ids=str)
@pytest.mark.parametrize("kind", ["blank", "soft", "noise"])
def test_no_text_no_pose(size: tuple[int, int], kind: str) -> None:
    image = {
        "blank": Image.new("RGB", size, "white"),
        "soft": scenery(60, 80).resize(size),
        "noise": Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)),
    }[kind]
    found = pose_of(np.asarray(image))
    assert found.region is None  # type: ignore[attr-defined]
    assert found.doubt == ""  # type: ignore[attr-defined]


def test_without_a_sure_vote_nothing_is_turned_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own = straighten.judge

    def unsure(strips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        text, up = own(strips)
        return text, np.where(np.arange(len(up)) % 2, 3.0, -3.0)  # as many for one way up as for the other

    monkeypatch.setattr(straighten, "judge", unsure)
    for degrees, doubt in ((0, ""), (90, "nothing says surely which way up"), (180, "")):
        found = pose_of(np.ascontiguousarray(np.rot90(receipt(), -degrees // 90)))
        assert found.region is None  # type: ignore[attr-defined]
        assert doubt in found.doubt  # type: ignore[attr-defined]


def test_a_strip_upside_down_has_the_opposite_vote() -> None:
    strips = np.random.default_rng(0).standard_normal((5, *STRIP)).astype(np.float32)
    text, up = judge(strips)
    over = judge(np.ascontiguousarray(strips[:, ::-1, ::-1]))
    assert np.allclose(text, over[0], atol=1e-5)
    assert np.allclose(up, -over[1], atol=1e-5)
    assert np.abs(up).max() > 1e-3


def test_the_scale_does_not_matter() -> None:
    picture, _ = tilted(receipt(), 12)
    height, width = picture.shape[:2]
    large = cv2.resize(picture, (2 * width, 2 * height), interpolation=cv2.INTER_CUBIC)
    one, two = pose_of(picture).region, pose_of(large).region  # type: ignore[attr-defined]
    assert one.angle == pytest.approx(two.angle, abs=0.3)
    assert np.allclose(2 * np.array(one.centre), two.centre, atol=0.1 * width)
