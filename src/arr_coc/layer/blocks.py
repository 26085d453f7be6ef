"""The layer's building blocks: attention along rows and columns, attention to the question, neighbours.

Documents are written in rows and columns. Attention along both costs N (h + w) in place of N squared, and a label finds its
value in one step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class Lines(nn.Module):
    """Attention of each cell to its row (half of the heads) and to its column (the others): `[B, h, w, d]`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width, bias=False)  # a key's bias would change nothing
        self.out = nn.Linear(width, width)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        batch, high, wide, width = cells.shape
        split = self.into(self.norm(cells)).view(batch, high, wide, 3, self.heads, width // self.heads)
        half = self.heads // 2
        # Lines of all pictures are one batch: the fast kernels take four dimensions, not five.
        rows = split[..., :half, :].permute(3, 0, 1, 4, 2, 5).flatten(1, 2)  # [3, B h, heads, w, d]
        columns = split[..., half:, :].permute(3, 0, 2, 4, 1, 5).flatten(1, 2)  # [3, B w, heads, h, d]
        along = F.scaled_dot_product_attention(*rows).reshape(batch, high, half, wide, -1).permute(0, 1, 3, 2, 4)
        down = F.scaled_dot_product_attention(*columns).reshape(batch, wide, half, high, -1).permute(0, 3, 1, 2, 4)
        return cells + self.out(torch.cat([along, down], dim=-2).flatten(-2))


class Question(nn.Module):
    """Attention of each cell to the question's tokens `[B, T, d]`; `asked` `[B, T]` tells them from padding.

    Words are few and cells are many: with the cells innermost, a processor goes over them several times faster.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.keys = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def wonder(self, cells: torch.Tensor) -> torch.Tensor:
        """What each cell wants to know, whatever is asked: `[B, heads, d / heads, N]`."""
        return self.query(self.norm(cells)).flatten(1, 2).transpose(1, 2).unflatten(1, (self.heads, -1))

    def forward(
        self, cells: torch.Tensor, words: torch.Tensor, asked: torch.Tensor, query: torch.Tensor | None = None
    ) -> torch.Tensor:
        query = self.wonder(cells) if query is None else query
        key, value = self.keys(words).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, heads, T, each]
        nothing = torch.zeros_like(asked, dtype=cells.dtype).masked_fill(~asked, -math.inf)
        heed = (key / math.sqrt(key.shape[-1])) @ query + nothing[:, None, :, None]  # [B, heads, T, N]
        found = value.transpose(2, 3) @ heed.softmax(2)  # [B, heads, each, N]
        return cells + self.out(found.flatten(1, 2).transpose(1, 2)).view_as(cells)


class Neighbours(nn.Module):
    """Two linear maps with a look at the eight neighbours between them: `[B, h, w, d]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.beside = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        inner = self.into(self.norm(cells)).permute(0, 3, 1, 2)
        inner = F.gelu(inner + self.beside(inner))
        return cells + self.out(inner.permute(0, 2, 3, 1))


class Words(nn.Module):
    """Word embeddings `[B, T, W]`, of characters or of word pieces, each with what stands around it: `[B, T, d]`."""

    def __init__(self, word_width: int, width: int, reach: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(word_width)
        self.into = nn.Linear(word_width, width)
        self.around = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in reach)
        self.out = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        here = self.into(self.norm(words)) * asked[..., None]
        for around in self.around:
            here = (here + F.gelu(_convolved(here, around))) * asked[..., None]
        return self.out(here)


def _convolved(words: torch.Tensor, around: nn.Module) -> torch.Tensor:
    """A convolution along the words `[B, T, d]` as one product: on a few words torch's own, with gaps, takes three times as long."""
    assert isinstance(around, nn.Conv1d)
    (step,), (size,) = around.dilation, around.kernel_size
    reach = step * (size - 1)
    beside = F.pad(words, (0, 0, reach // 2, reach // 2)).unfold(1, reach + 1, 1)[..., ::step]  # [B, T, d, size]
    return F.linear(beside.flatten(2), around.weight.flatten(1), around.bias)
