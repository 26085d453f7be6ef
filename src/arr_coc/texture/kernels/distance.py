"""Kernels for the exact distance to the nearest edge, in two passes: along each row, then down each column.

Squared distances separate: a running maximum finds the nearest edge in a pixel's own row, and among the rows above and
below the smallest sum of squares wins. A tile of rows searches together, one column per lane: each line it loads serves
all of them, and the search ends at the distance of their farthest edge, so it is short on pictures with many edges.
Jump flooding needs a dozen passes and is wrong in rare corners.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels.pooling import needs_int64

ROWS, COLUMNS = 16, 32  # px that search together, a column per lane
STRIDE = 4  # lines above and below that are loaded between two checks whether the search can end
INT16_SIDE = 1 << 14  # px of an image's longer side up to which distances are kept in 16 bits


def write_distance(edge: torch.Tensor, along: torch.Tensor, found: torch.Tensor, out: torch.Tensor) -> None:
    """Write the distance to the nearest 1 of `edge`, uint8 `[B, H, W]`, over half the diagonal into `out` `[B, H, W]`.

    `out` may be planes of a block: only its columns must be contiguous. along, found: `distance_buffers`.
    An image without an edge gets 1.
    """
    batch, height, width = edge.shape
    far = (1 << 15) - 1  # farther than any pixel of an image up to INT16_SIDE
    if along.dtype == torch.int32:
        far = 4 * max(height, width)
    _along_rows[(height, batch)](
        edge, along, found, height, width, far,
        BLOCK=triton.next_power_of_2(width), num_warps=4 if width <= 2048 else 16, enable_fp_fusion=True,
    )  # fmt: skip
    half_diagonal = (height**2 + width**2) ** 0.5 / 2
    grid = (triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), batch)
    _across_rows[grid](
        along, found, out, height, width, out.stride(0), out.stride(1), 1 / half_diagonal, far,
        ROWS=ROWS, COLUMNS=COLUMNS, STRIDE=STRIDE, HEIGHT=triton.next_power_of_2(height), WIDE=needs_int64(edge, out), num_warps=COLUMNS // 32, enable_fp_fusion=True,
    )  # fmt: skip


def distance_buffers(size: tuple[int, int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Buffers of `write_distance` for images `[B, H, W]`: each pixel's distance along its row, whether a row has an edge."""
    along = torch.empty(size, dtype=torch.int16 if max(size[1:]) <= INT16_SIDE else torch.int32, device=device)
    return along, torch.empty(size[:2], dtype=torch.int32, device=device)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def _along_rows(edge, along, found, height, width, far, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64) * height + tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    marked = tl.load(edge + row * width + columns, mask=columns < width, other=0) > 0
    tl.store(found + row, tl.max(marked.to(tl.int32)))
    before = tl.associative_scan(tl.where(marked, columns, -far), 0, _larger)
    after = tl.associative_scan(tl.where(marked, columns, 2 * far), 0, _smaller, reverse=True)
    nearest = tl.minimum(tl.minimum(columns - before, after - columns), far)
    tl.store(along + row * width + columns, nearest.to(along.dtype.element_ty), mask=columns < width)


@triton.jit
def _across_rows(
    along, found, out, height, width, out_b, out_y, per_pixel, far,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    top = tl.program_id(1) * ROWS
    each = tl.arange(0, ROWS)
    rows = top + each
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    source = along + image * height * width + columns
    nowhere = tl.cast(far, tl.float32)
    # Pixels outside the image need no search.
    best = tl.where(inside, nowhere * nowhere, 0.0)
    for number in tl.static_range(ROWS):
        best = _nearer(best, source, top + number, height, width, columns, far, (each - number).to(tl.float32), WIDE)
    end = height
    if tl.max(best) >= nowhere * nowhere:  # no edge in one of these rows: the image may have none
        every = tl.arange(0, HEIGHT)
        end *= tl.max(tl.load(found + image * height + every, mask=every < height, other=0))
    reach = 1
    # A line `reach` away can only help where the best so far is farther than that.
    while (reach < end) & (tl.max(best) > reach * reach):
        for more in tl.static_range(STRIDE):
            off = reach + more
            best = _nearer(best, source, top - off, height, width, columns, far, (each + off).to(tl.float32), WIDE)
            low, under = top + ROWS - 1 + off, (ROWS - 1 - each + off).to(tl.float32)
            best = _nearer(best, source, low, height, width, columns, far, under, WIDE)
        reach += STRIDE
    share = tl.minimum(tl.sqrt(best) * per_pixel, 1.0)
    share = tl.where(best >= nowhere * nowhere, 1.0, share)
    if WIDE:
        place = out + image * out_b + rows.to(tl.int64)[:, None] * out_y + columns[None, :]
    else:
        place = out + image * out_b + rows[:, None] * out_y + columns[None, :]
    tl.store(place, share.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _nearer(best, source, row, height, width, columns, far, off, WIDE: tl.constexpr):
    """The smaller of the squares so far and those through one more line, which is `off` rows away."""
    start = row.to(tl.int64) * width if WIDE else row * width
    there = columns < tl.where((row >= 0) & (row < height), width, 0)
    line = tl.load(source + start, mask=there, other=far).to(tl.float32)
    return tl.minimum(best, (line * line)[None, :] + (off * off)[:, None])
