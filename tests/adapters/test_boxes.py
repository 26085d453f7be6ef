"""The box of each cell on the original picture: computed by hand, and found from the pixels that reach the cell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from arr_coc.adapters.internvl import tile_layout
from arr_coc.adapters.llava import seen_area
from arr_coc.adapters.llava_next import best_canvas, mosaic
from arr_coc.types.grid import Cells, Grid
from tests.adapters.families import PINPOINTS
from tests.adapters.tiny_vlm import FLAT, picture, wrapped


def grid_of(family: str, *sizes: tuple[int, int]) -> list[Cells]:
    images = [picture(*size) for size in sizes]
    return [allocation.grid for allocation in wrapped(family).prepare(images, "What?").allocations]


def boxes(grid: Cells, cells: list[int], size: tuple[int, int]) -> list[list[float]]:
    return grid.boxes(torch.tensor(cells), size).tolist()


def test_llava_crops_the_centre() -> None:
    """80 x 40 becomes 64 x 32, of which the centre 32 x 32 is cropped: 20 to 60 of 80 pixels, in 4 x 4 cells."""
    (grid,) = grid_of("llava", (80, 40))
    assert grid == Grid(1, 4, 4, (0.25, 0.0, 0.75, 1.0))
    assert boxes(grid, [0, 7], (80, 40)) == [[20, 0, 30, 10], [50, 10, 60, 20]]


def test_llava_rounds_as_its_processor_does() -> None:
    """50 x 77 becomes 32 x 49, cut from row 8 to row 40."""
    (grid,) = grid_of("llava", (50, 77))
    assert grid.views[0].area == pytest.approx((0, 8 / 49, 1, 40 / 49))


def test_llava_with_padding_extends_beyond_the_picture() -> None:
    """80 x 40 is padded to 80 x 80: the first row of cells is above the picture."""
    (grid,) = grid_of("llava_padded", (80, 40))
    assert grid == Grid(1, 4, 4, (0.0, -0.5, 1.0, 1.5))
    assert boxes(grid, [0, 4], (80, 40)) == [[0, -20, 20, 0], [0, 0, 20, 20]]


def test_without_a_processor_a_centre_crop_is_assumed() -> None:
    assert seen_area(None, (80, 40), (32, 32)) == (0.25, 0.0, 0.75, 1.0)


def test_anyres_tiles_without_their_padding() -> None:
    """80 x 50 fits into 96 x 96 as 96 x 60, 18 pixels below the top; of 12 rows of 8 pixels 2 are cut off at each end."""
    (grid,) = grid_of("llava_next", (80, 50))
    overview, large = grid.views
    assert overview == Grid(1, 4, 4)
    assert (large.h, large.w) == (8, 12)
    assert large.area == pytest.approx((0, -2 / 60, 1, 62 / 60))
    first = grid.boxes(torch.tensor([0, 16]), (80, 50))
    assert first[0].tolist() == [0, 0, 20, 12.5]
    assert first[1].tolist() == pytest.approx([0, -50 / 30, 80 / 12, -50 / 30 + 50 * 64 / 60 / 8], abs=1e-4)


def test_a_big_picture_of_onevision_has_fewer_cells_over_the_same_area() -> None:
    """The same picture has 96 cells in its tiles, more than 1.1 ** 2 times the 64 of four tiles."""
    (grid,) = grid_of("llava_onevision", (80, 50))
    assert (grid.views[1].h, grid.views[1].w) == (6, 9)
    assert grid.views[1].area == pytest.approx((0, -2 / 60, 1, 62 / 60))


def test_several_pictures_of_onevision_are_padded_to_squares() -> None:
    first, second = grid_of("llava_onevision", (64, 64), (30, 70))
    assert first == Grid(1, 4, 4)
    assert second.views[0].area == pytest.approx((-20 / 30, 0, 50 / 30, 1))


def test_newline_tokens_are_not_cells() -> None:
    reader = wrapped("llava_next").adapter
    grid = mosaic((80, 50), (96, 96), 32, 4, None)
    at = reader.cell_tokens(grid)
    assert reader.token_count(grid) == 16 + 8 * 13
    assert len(at) == grid.n == 16 + 8 * 12
    assert sorted(set(range(16 + 8 * 13)) - set(at.tolist())) == [16 + 13 * row + 12 for row in range(8)]


def test_internvl_tiles_and_thumbnail() -> None:
    """90 x 60 is nearest to 3 x 2 tiles; each is a third of the width and half of the height."""
    (grid,) = grid_of("internvl", (90, 60))
    assert [view.area for view in grid.views[:2]] == [(0, 0, 1 / 3, 0.5), (1 / 3, 0, 2 / 3, 0.5)]
    assert len(grid.views) == 7
    assert grid.views[-1] == Grid(1, 4, 4)
    assert boxes(grid, [16 * 4], (90, 60)) == [[30, 30, 37.5, 37.5]]


@pytest.mark.parametrize("size", [(100, 30), (30, 100), (64, 64), (300, 200), (123, 77), (50, 130), (640, 480)])
@pytest.mark.parametrize("most", [4, 6, 12])
def test_internvl_layouts_are_the_processor_s(size: tuple[int, int], most: int) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    columns, rows = get_optimal_tiled_canvas((size[1], size[0]), (32, 32), 1, most)
    if columns * rows > 1:
        assert tile_layout(columns * rows, size) == (columns, rows)


def test_internvl_tiles_of_unknown_layout_cover_the_whole_picture() -> None:
    vlm = wrapped("internvl")
    made = vlm.processor(images=[picture(90, 60)], text=["<image>"], return_tensors="pt")
    (allocation,) = vlm.prepare(inputs=made).allocations
    assert set(allocation.grid.views) == {Grid(1, 4, 4)}


def test_idefics3_tiles_and_the_whole() -> None:
    """90 x 40 is resized to 96 x 64 pixels: 2 rows of 3 tiles of 32."""
    (grid,) = grid_of("idefics3", (90, 40))
    assert len(grid.views) == 7
    assert grid.views[3].area == (0, 0.5, 1 / 3, 1)
    narrow, square, wide = grid_of("idefics3", (20, 90), (60, 60), (90, 20))
    assert [view.area for view in narrow.views[:3]] == [(0, 0, 1, 1 / 3), (0, 1 / 3, 1, 2 / 3), (0, 2 / 3, 1, 1)]
    assert len(square.views) == 10
    assert [view.area[0] for view in wide.views[:3]] == [0, 1 / 3, 2 / 3]


def view_pixels(family: str, inputs: dict[str, Any], grid: Cells) -> list[torch.Tensor]:
    """The pixels of each view of the only picture: `[3, H, W]`."""
    tiles = inputs["pixel_values"]
    tiles = tiles[0] if tiles.ndim == 5 else tiles
    if family not in ("llava_next", "llava_onevision"):
        return list(tiles)
    columns, rows = (side // 32 for side in best_canvas((90, 40), PINPOINTS))
    canvas = (
        tiles[1 : 1 + rows * columns].view(rows, columns, 3, 32, 32).permute(2, 0, 3, 1, 4).reshape(3, rows * 32, -1)
    )
    down, across = (canvas.shape[1] - grid.views[1].h * 8) // 2, (canvas.shape[2] - grid.views[1].w * 8) // 2
    return [tiles[0], canvas[:, down : canvas.shape[1] - down, across : canvas.shape[2] - across]]


@pytest.mark.parametrize("family", FLAT)
def test_a_mark_on_the_picture_reaches_the_cell_whose_box_contains_it(family: str) -> None:
    vlm, size = wrapped(family), (90, 40)
    plain = Image.new("RGB", size, (90, 120, 60))
    before = vlm.look(plain).vision.tensors
    (grid,) = grid_of(family, size)
    seen = 0
    for x, y in [(4, 3), (24, 20), (33, 8), (47, 31), (58, 22), (66, 12), (85, 36)]:
        marked = plain.copy()
        ImageDraw.Draw(marked).rectangle([x - 1, y - 1, x + 1, y + 1], fill=(255, 0, 255))
        after = vlm.look(marked).vision.tensors
        start = 0
        for view, old, new in zip(
            grid.views, view_pixels(family, before, grid), view_pixels(family, after, grid), strict=True
        ):
            change = (
                (new - old).abs().sum(0).unflatten(0, (view.h, -1)).unflatten(2, (view.w, -1)).sum((1, 3)).flatten()
            )
            if change.max() > 5:  # the mark was not cropped
                left, top, right, bottom = grid.boxes(start + change.argmax()[None], size)[0].tolist()
                assert left - 1 <= x <= right + 1
                assert top - 1 <= y <= bottom + 1
                seen += 1
            start += view.n
    assert seen >= 3
