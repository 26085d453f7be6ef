"""Attention inside many segments in one call.

An encoder with windows, or with many frames, attends inside hundreds of short segments. One call per segment leaves an
accelerator idle between launches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn = None  # type: ignore[assignment]

LONG_SEGMENT = 1024  # patches: from this mean length on, one call per segment is faster


class Segments:
    """A division of P patches into consecutive segments, with the indices that attention on one device needs."""

    def __init__(self, lengths: torch.Tensor, device: torch.device, dtype: torch.dtype) -> None:
        self.lengths: list[int] = lengths.tolist()
        self.count, self.longest = len(lengths), int(lengths.max())
        self.even = int(lengths.min()) == self.longest
        self.apart = self.count == 1 or sum(self.lengths) / self.count >= LONG_SEGMENT
        if self.apart:
            return
        ends = F.pad(lengths.cumsum(0), (1, 0))
        self.packed = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and varlen_attn is not None
        if self.packed:
            self.ends = ends.to(device, torch.int32)
        elif not self.even:
            within = torch.arange(self.longest)
            real = within < lengths[:, None]  # [S, L]
            self.slots = torch.where(real, ends[:-1, None] + within, 0).to(device)
            self.real = real.to(device)
            self.back = real.flatten().nonzero()[:, 0].to(device)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Scaled dot-product attention inside each segment: `[P, H, D]` three times to `[P, H, D]`."""
        if self.apart:
            parts = zip(*(part.split(self.lengths) for part in (query, key, value)), strict=True)
            mixed = [self._dense(q[None], k[None], v[None])[0] for q, k, v in parts]
            return mixed[0] if self.count == 1 else torch.cat(mixed)
        if self.packed:
            query, key, value = (part.contiguous() for part in (query, key, value))
            together = varlen_attn(query, key, value, self.ends, self.ends, self.longest, self.longest)
            assert isinstance(together, torch.Tensor)
            return together
        if self.even:
            split = (self.count, self.longest, *query.shape[1:])
            return self._dense(query.view(split), key.view(split), value.view(split)).reshape(query.shape)
        padded = self._dense(query[self.slots], key[self.slots], value[self.slots], self.real[:, None, None])
        return padded.flatten(0, 1)[self.back]

    @staticmethod
    def _dense(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[S, L, H, D]` three times to `[S, L, H, D]`."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
