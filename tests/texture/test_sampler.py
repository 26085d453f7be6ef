"""Sampling against grid_sample on a level, and against a hand-written trilinear reference between levels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from arr_coc import ArrCocError, TextureArray
from arr_coc.texture import sampler
from arr_coc.texture.filters import pool

from ..conftest import noise


def points(count: int, seed: int = 0) -> torch.Tensor:
    """Points inside, on the border and outside of the image."""
    inside = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([inside, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5], [-0.3, 0.5], [0.2, 1.7]])])


@pytest.mark.parametrize("level", [0, 1, 3])
def test_equals_grid_sample_on_a_level(level: int) -> None:
    texture = TextureArray.from_image(noise(45, 70))
    names = ["red", "edges", "saliency", "distance", "text"]
    xy = points(200)
    planes = texture.level(names, level)[None]
    expected = F.grid_sample(planes, (xy * 2 - 1)[None, None], align_corners=False, padding_mode="border")[0, :, 0].T
    assert torch.allclose(texture.sample(xy, level, names), expected, atol=1e-5)


def by_hand(texture: TextureArray, name: str, x: float, y: float, level: float) -> float:
    """One point, one channel, in plain arithmetic."""

    def bilinear(number: int) -> float:
        plane = texture.level(name, number)
        height, width = plane.shape
        px, py = min(max(x * width - 0.5, 0), width - 1), min(max(y * height - 0.5, 0), height - 1)
        x0, y0 = math.floor(px), math.floor(py)
        x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, height - 1)
        above = float(plane[y0, x0]) * (1 - px + x0) + float(plane[y0, x1]) * (px - x0)
        below = float(plane[y1, x0]) * (1 - px + x0) + float(plane[y1, x1]) * (px - x0)
        return above * (1 - py + y0) + below * (py - y0)

    level = min(max(level, 0), texture.levels - 1)
    low = min(math.floor(level), texture.levels - 1)
    high = min(low + 1, texture.levels - 1)
    return bilinear(low) * (1 - level + low) + bilinear(high) * (level - low)


def test_between_levels_equals_the_hand_written_reference() -> None:
    texture = TextureArray.from_image(noise(37, 50, seed=2))
    xy = points(30)
    levels = torch.linspace(-0.5, 7.5, len(xy))  # a different level for every point, some beyond the ends
    names = ["green", "edges", "lowpass"]
    got = texture.sample(xy, levels, names)
    for i, (x, y) in enumerate(xy.tolist()):
        for j, name in enumerate(names):
            assert got[i, j] == pytest.approx(by_hand(texture, name, x, y, float(levels[i])), abs=1e-5)


def test_one_level_for_all_equals_a_level_each() -> None:
    texture = TextureArray.from_image(noise(37, 50))
    xy = points(20)
    assert torch.equal(texture.sample(xy, 1.3), texture.sample(xy, torch.full((len(xy),), 1.3)))


def test_ids_are_read_and_never_mixed() -> None:
    texture = TextureArray.from_image(noise(80, 100))
    ids = texture.sample(points(300), 1.5, ["cluster_id"])
    assert torch.equal(ids, ids.round())
    assert set(ids.unique().tolist()) <= set(texture["cluster_id"].unique().tolist())
    on_level_0 = texture.sample(torch.tensor([[0.305, 0.905]]), 0.49, ["cluster_id"])
    assert on_level_0.item() == texture["cluster_id"][int(0.905 * 80), int(0.305 * 100)]


def test_all_channels_in_one_call_and_in_the_layouts_order() -> None:
    texture = TextureArray.from_image(noise(40, 40))
    together = texture.sample(points(10), 0.7)
    assert together.shape == (15, 40)
    for i in (0, 8, 12, 20, 39):
        assert torch.equal(together[:, i], texture.sample(points(10), 0.7, [texture.names[i]])[:, 0])


def test_gradients_flow_into_the_texture() -> None:
    planes = {name: torch.rand(9, 13, requires_grad=True) for name in ("gaze", "edges")}
    texture = TextureArray.from_planes(planes)
    texture.sample(points(40), 1.4).pow(2).sum().backward()
    texture.grid(4, 5).sum().backward()
    for plane in planes.values():
        assert plane.grad is not None
        assert plane.grad.isfinite().all()
        assert plane.grad.abs().sum() > 0


def test_gradients_are_right() -> None:
    plane = torch.rand(6, 7, dtype=torch.float64, requires_grad=True)
    xy = torch.rand(5, 2, dtype=torch.float64, requires_grad=True)
    level = torch.tensor([0.2, 0.9, 1.1, 1.6, 0.5], dtype=torch.float64, requires_grad=True)

    def levels(base: torch.Tensor, number: int) -> list[torch.Tensor]:
        return [base] if number == 0 else [pool(base.double(), (6 >> number, 7 >> number), "max")]

    assert torch.autograd.gradcheck(
        lambda p, q, v: sampler.trilinear(lambda n: levels(p, n), q, v, 2), (plane, xy, level), eps=1e-6, atol=1e-5
    )


def test_far_outside_reads_the_border_also_for_ids() -> None:
    texture = TextureArray.from_image(noise(40, 50))
    far = texture.sample([[1e30, 0.5], [-1e30, 0.5]])
    assert torch.equal(far, texture.sample([[1.0, 0.5], [0.0, 0.5]]))


def test_points_in_chunks_equal_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texture = TextureArray.from_image(noise(40, 50))
    at_once = texture.sample(points(50), 1.2)
    monkeypatch.setattr("arr_coc.texture.sampler.POINTS_AT_ONCE", 7)
    assert torch.equal(texture.sample(points(50), 1.2), at_once)


def test_no_points() -> None:
    assert TextureArray.from_image(noise(8, 8)).sample(torch.zeros(0, 2)).shape == (0, 40)


def test_a_level_that_no_point_needs_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    texture = TextureArray.from_image(noise(64, 64))
    read: set[int] = set()
    real = TextureArray.level
    monkeypatch.setattr(TextureArray, "level", lambda self, name, level: (read.add(level), real(self, name, level))[1])
    texture.sample(points(5), 2.0, ["red", "green"])
    assert read == {2}


@pytest.mark.parametrize(
    ("xy", "level", "words"),
    [
        (torch.zeros(5, 3), 0.0, r"\[N, 2\]"),
        (torch.zeros(2), 0.0, r"\[N, 2\]"),
        (torch.zeros(5, 2), torch.zeros(4), r"\[5\]"),
        (torch.full((5, 2), float("nan")), 0.0, "finite"),
        (torch.zeros(5, 2), float("inf"), "finite"),
    ],
)
def test_bad_points_are_refused(xy: torch.Tensor, level: float, words: str) -> None:
    with pytest.raises(ArrCocError, match=words):
        TextureArray.from_image(noise(8, 8)).sample(xy, level)
