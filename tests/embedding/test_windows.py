"""Windows: they cover, their weights sum to one, and one window is the fast mode."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.embedding.encoder import l2_normalize
from arr_coc.embedding.windows import MAX_SIDE, WindowedEncoder, blend, fit_grid, native_grid, plan_windows, resize
from tests.embedding import tiny

sides = st.integers(1, 60)
shares = st.sampled_from([0.0, 0.25, 0.5, 0.75])


class Pooled(WindowedEncoder):
    """An encoder whose features are the colours of its cells: what it says of a cell depends on that cell alone."""

    name, width, cell, side = "pooled", 3, 4, 32

    def __init__(self, cells_per_batch: int = 16_384) -> None:
        self.cells_per_batch, self.calls = cells_per_batch, 0

    @property
    def identity(self) -> str:
        return "pooled"

    def encode_batch(self, pictures: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.avg_pool2d(pictures, self.cell)

    def embed(self, questions: list[str]) -> torch.Tensor:
        return torch.ones(len(questions), 3)


@settings(max_examples=200, deadline=None)
@given(rows=sides, columns=sides, window=st.integers(1, 20), overlap=shares)
def test_weights_are_a_partition_of_unity(rows: int, columns: int, window: int, overlap: float) -> None:
    windows = plan_windows((rows, columns), (window, window), overlap)
    total = torch.zeros(rows, columns)
    high, wide = windows.window
    for (top, left), share in zip(windows, windows.weights(), strict=True):
        assert bool((share > 0).all())
        total[top : top + high, left : left + wide] += share
    assert torch.allclose(total, torch.ones(rows, columns), atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(length=sides, window=st.integers(1, 20), overlap=shares)
def test_neighbours_overlap_as_requested(length: int, window: int, overlap: float) -> None:
    windows = plan_windows((length, 1), (window, 1), overlap)
    side = windows.window[0]
    assert windows.tops[0] == 0
    assert windows.tops[-1] + side == length
    for here, there in zip(windows.tops, windows.tops[1:], strict=False):
        assert 0 < there - here <= max(1, side * (1 - overlap))


def test_weights_fall_towards_the_edges() -> None:
    share = plan_windows((24, 24), (12, 12)).weights()[4]  # the one in the middle, which has neighbours on all sides
    assert share[6, 6] > share[6, 2] > share[6, 0] > 0
    assert torch.allclose(share, share.flip(0, 1), atol=1e-6)


def test_blending_keeps_features_that_depend_on_one_cell_only() -> None:
    image = torch.rand(3, 100, 72)
    found = Pooled().dense(image, "native").features
    assert torch.allclose(found, l2_normalize(torch.nn.functional.avg_pool2d(image, 4), dim=0), atol=1e-6)


def test_batch_size_does_not_change_the_result() -> None:
    image = torch.rand(3, 132, 100)
    one, parts = Pooled(), Pooled(cells_per_batch=100)
    assert torch.allclose(one.dense(image, "native").features, parts.dense(image, "native").features, atol=1e-6)
    assert one.calls == 1
    assert parts.calls > 1


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_one_window_is_the_fast_mode(kind: str) -> None:
    encoder = tiny.encoder(kind)
    for size in ((24, 24), (20, 24), (7, 9), (1, 24)):
        image = torch.rand(3, *size)
        assert torch.equal(encoder.dense(image, "fast").features, encoder.dense(image, "native").features)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_native_mode_is_the_weighted_mean_of_its_windows(kind: str) -> None:
    """Against the windows encoded one by one and summed by hand."""
    encoder = tiny.encoder(kind)
    image = torch.rand(3, 36, 24)  # 9 x 6 cells: two windows of 6 x 6, three rows apart
    found = encoder.dense(image, "native").features
    with torch.no_grad():
        upper, lower = (l2_normalize(encoder.encode_batch(image[None, :, top : top + 24])[0], dim=0) for top in (0, 12))
    bump = torch.sin(torch.pi * (torch.arange(6) + 0.5) / 6) ** 2 * 0.95 + 0.05
    smooth, plain = torch.zeros(encoder.width, 9, 6), torch.zeros(encoder.width, 9, 6)
    for row in range(9):
        for seen, weights, top in ((upper, bump, 0), (lower, bump, 3)):
            if top <= row < top + 6:
                smooth[:, row] += weights[row - top] * seen[:, row - top]
                plain[:, row] += seen[:, row - top]
    assert torch.allclose(found, l2_normalize(smooth, dim=0), atol=1e-5)
    assert not torch.allclose(found, l2_normalize(plain, dim=0), atol=1e-5)  # the weights do matter


@pytest.mark.parametrize("mode", ["fast", "native"])
@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (3, 200), (50, 51), (97, 31)])
def test_any_size(size: tuple[int, int], mode: str) -> None:
    for kind in ("clip", "siglip", "siglip2"):
        encoder = tiny.encoder(kind)
        features = encoder.dense(torch.rand(3, *size), mode).features  # type: ignore[arg-type]
        assert features.shape[0] == encoder.width
        assert torch.allclose(features.norm(dim=0), torch.ones(features.shape[1:]), atol=1e-5)


@settings(max_examples=300, deadline=None)
@given(height=st.integers(1, 10_000), width=st.integers(1, 10_000), own=st.integers(2, 40))
def test_grids_keep_the_aspect_ratio_and_bound_the_cells(height: int, width: int, own: int) -> None:
    rows, columns = fit_grid(height, width, own * own)
    assert 1 <= rows * columns <= 1.5 * own * own
    if min(rows, columns) > 3:  # where a cell more or less is not much
        assert 0.7 < (rows / columns) / (height / width) < 1.43
    rows, columns = native_grid(height, width, 16)
    assert max(rows, columns) * 16 <= MAX_SIDE


def test_an_image_of_the_right_size_is_not_resampled() -> None:
    image = torch.rand(3, 16, 24)
    assert resize(image, (16, 24)) is image
    assert resize(image, (8, 12)).shape == (3, 8, 12)


def test_blend_returns_the_grid() -> None:
    windows = plan_windows((4, 4), (2, 2))
    seen = blend(windows, torch.rand(9, 3, 2, 2))
    assert seen.shape == (3, 4, 4)
