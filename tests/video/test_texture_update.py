"""Which pixels and which encoder windows a partial update covers."""

from __future__ import annotations

import torch

from arr_coc import Embeddings
from arr_coc.video.texture_update import bounding_box, covering_windows, encode_frame, encode_windows


def test_the_bounding_box_holds_all_marked_windows() -> None:
    marked = torch.zeros(4, 5, dtype=torch.bool)
    assert bounding_box(marked, (90, 100)) is None
    marked[1, 2] = marked[2, 3] = True
    assert bounding_box(marked, (90, 100)) == (22, 40, 68, 80)
    assert bounding_box(torch.ones(4, 5, dtype=torch.bool), (90, 100)) == (0, 0, 90, 100)


def test_windows_over_marked_cells_hold_the_same_features_as_the_whole_frame(native_yellows: Embeddings) -> None:
    pixels = torch.rand(3, 256, 384, generator=torch.Generator().manual_seed(0))
    whole = encode_frame(native_yellows, pixels)
    grid = (int(whole.shape[1]), int(whole.shape[2]))
    marked = torch.zeros(grid, dtype=torch.bool)
    marked[3, 4] = True
    part = encode_windows(native_yellows, pixels, grid, marked)
    assert part is not None
    features, weight = part
    assert weight[3, 4] > 0
    assert torch.allclose(features[:, 3, 4], whole[:, 3, 4], atol=1e-4)
    layout = native_yellows.encoder.plan(pixels)  # type: ignore[attr-defined]
    assert len(covering_windows(layout, marked)) == 1


def test_the_whole_frame_is_encoded_in_one_pass_or_where_most_is_marked(
    yellows: Embeddings, native_yellows: Embeddings
) -> None:
    pixels = torch.rand(3, 256, 384)
    grid = (32, 48)
    marked = torch.ones(grid, dtype=torch.bool)
    assert encode_windows(yellows, pixels, grid, marked) is None
    assert encode_windows(native_yellows, pixels, grid, marked) is None
