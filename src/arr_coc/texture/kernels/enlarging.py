"""Small maps enlarged into planes of a block, bilinearly, all of them in one launch: embeddings, memory, attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.texture.kernels import tables
from arr_coc.texture.kernels.centre_surround import _corners

ROWS = 8  # rows of a program: most of them lie between the same two rows of the small map
ACROSS = 1024  # columns of a program, at the most


def write_enlarged(maps: torch.Tensor, out: torch.Tensor, first: int) -> None:
    """Write maps `[B, N, h, w]`, float32, at the size of `out` `[B, C, H, W]` into its planes from `first` on."""
    batch, count, high, wide = maps.shape
    height, width = out.shape[2:]
    block = min(ACROSS, triton.next_power_of_2(width))
    _enlarge[(triton.cdiv(width, block), triton.cdiv(height, ROWS), batch * count)](
        maps, out, height, width, high, wide, count, first, maps.stride(0), maps.stride(1), maps.stride(2), maps.stride(3),
        out.stride(0), out.stride(1), out.stride(2), ROWS=ROWS, BLOCK=block, WIDE=tables.wide(out), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _enlarge(
    maps, out, height, width, high, wide, count, first, in_b, in_n, in_y, in_x, out_b, out_c, out_y,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image, which = (tl.program_id(2) // count).to(tl.int64), (tl.program_id(2) % count).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    left, right, across = _corners(columns, wide, width)
    source = maps + image * in_b + which * in_n
    target = out + image * out_b + (first + which) * out_c + columns
    held = -1  # the row of the small map that lies above
    above = tl.zeros([BLOCK], tl.float32)
    below = tl.zeros([BLOCK], tl.float32)
    for number in tl.static_range(ROWS):
        y = tl.program_id(1) * ROWS + number
        top, bottom, down = _corners(y, high, height)
        if top != held:
            a = tl.load(source + top * in_y + left * in_x, mask=inside, other=0.0)
            b = tl.load(source + top * in_y + right * in_x, mask=inside, other=0.0)
            c = tl.load(source + bottom * in_y + left * in_x, mask=inside, other=0.0)
            d = tl.load(source + bottom * in_y + right * in_x, mask=inside, other=0.0)
            above = (1 - across) * a + across * b
            below = (1 - across) * c + across * d
            held = top
        value = (1 - down) * above + down * below
        row = y.to(tl.int64) if WIDE else y
        tl.store(target + row * out_y, value.to(out.dtype.element_ty), mask=columns < tl.where(y < height, width, 0))
