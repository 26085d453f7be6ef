"""Kept tokens gathered out of all of them, for a whole batch in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from arr_coc.errors import ArrCocError


def gather_tokens(tokens: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Rows `keep` `[B, K]` of tokens `[B, N, D]`: `[B, K, D]`. A place outside 0 .. N-1 gives a row of NaN."""
    if tokens.ndim != 3 or keep.ndim != 2 or len(tokens) != len(keep):
        raise ArrCocError(
            f"expected tokens [B, N, D] and places [B, K], got {list(tokens.shape)} and {list(keep.shape)}"
        )
    batch, count, width = tokens.shape
    out = torch.empty(batch, keep.shape[1], width, dtype=tokens.dtype, device=tokens.device)
    if out.numel() == 0:
        return out
    block = min(1024, triton.next_power_of_2(width))
    grid = (keep.shape[1], triton.cdiv(width, block), batch)
    _gather[grid](
        tokens, keep, out, count, width, tokens.stride(0), tokens.stride(1), tokens.stride(2),
        keep.stride(0), keep.stride(1), out.stride(0), BLOCK=block, num_warps=4 if block >= 512 else 1, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _gather(
    tokens, keep, out, count, width, in_b, in_n, in_d, keep_b, keep_k, out_b, BLOCK: tl.constexpr
):  # fmt: skip
    batch, row = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    place = tl.load(keep + batch * keep_b + row * keep_k).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    readable = tl.where((place >= 0) & (place < count), width, 0)
    source = tokens + batch * in_b + place * in_n + columns.to(tl.int64) * in_d
    values = tl.load(source, mask=columns < readable, other=float("nan"))
    tl.store(out + batch * out_b + row * width + columns, values, mask=columns < width)
