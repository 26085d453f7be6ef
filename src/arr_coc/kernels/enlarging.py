"""Small maps enlarged into planes of a block, bilinearly, all of them in one launch: embeddings, memory, attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.kernels import tables
from arr_coc.kernels.centre_surround import _corners

AT_ONCE = 8  # maps a program, which share the work of finding the place


def write_enlarged(maps: torch.Tensor, out: torch.Tensor, first: int) -> None:
    """Write maps `[B, N, h, w]`, float32, at the size of `out` `[B, C, H, W]` into its planes from `first` on."""
    batch, count, high, wide = maps.shape
    height, width = out.shape[2:]
    _enlarge[(triton.cdiv(height * width, 512), triton.cdiv(count, AT_ONCE), batch)](
        maps, out, height, width, high, wide, count, first, maps.stride(0), maps.stride(1), maps.stride(2), maps.stride(3),
        out.stride(0), out.stride(1), out.stride(2), AT_ONCE=AT_ONCE, BLOCK=512, WIDE=tables.wide(out), num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _enlarge(
    maps, out, height, width, high, wide, count, first, in_b, in_n, in_y, in_x, out_b, out_c, out_y,
    AT_ONCE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2).to(tl.int64)
    if WIDE:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    else:
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = tl.cast(height, tl.int64) * width
    y, x = place // width, place % width
    top, bottom, down = _corners(y, high, height)
    left, right, across = _corners(x, wide, width)
    for number in tl.static_range(AT_ONCE):
        which = tl.program_id(1) * AT_ONCE + number
        mask = place < tl.where(which < count, pixels, 0)
        source = maps + image * in_b + which.to(tl.int64) * in_n
        a = tl.load(source + top * in_y + left * in_x, mask=mask, other=0.0)
        b = tl.load(source + top * in_y + right * in_x, mask=mask, other=0.0)
        c = tl.load(source + bottom * in_y + left * in_x, mask=mask, other=0.0)
        d = tl.load(source + bottom * in_y + right * in_x, mask=mask, other=0.0)
        value = (1 - down) * ((1 - across) * a + across * b) + down * ((1 - across) * c + across * d)
        target = out + image * out_b + (first + which).to(tl.int64) * out_c + y * out_y + x
        tl.store(target, value.to(out.dtype.element_ty), mask=mask)
