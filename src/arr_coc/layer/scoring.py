"""The three ways of knowing in their learned form, and the policy that weighs them. All scores are logits.

- information: the texture's channels and the entropy of the cell's own pixels, weighed by what was learned;
- salience: a small convolutional network over the channels, so that a cell is seen against its surroundings;
- coupling: likeness between a cell and each of the question's tokens, by a learned mix of the largest, the mean and a sum.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WAYS = ("information", "salience", "coupling")
TONES = 8  # of the histogram that a cell's entropy is taken from
STATISTICS = 4  # of a score map: mean, spread, largest, evenness


def entropy(pixels: torch.Tensor) -> torch.Tensor:
    """How many tones a cell's pixels `[B, P, h, w]` have, from 0 (one) to 1 (all alike often): `[B, 1, h, w]`."""
    tone = (
        (pixels.clamp(0, 1) * (TONES - 1)).round().to(torch.uint8)
    )  # small, because it is gone over once for each tone
    share = torch.stack([(tone == level).float().mean(1) for level in range(TONES)], dim=1)
    return -(share * share.clamp(min=1e-9).log()).sum(1, keepdim=True) / math.log(TONES)


class Information(nn.Module):
    """What is there at all: `[B, h, w]` from the channels `[B, C, h, w]` and the entropy inside each cell."""

    def __init__(self, channels: int, hidden: int = 32) -> None:
        super().__init__()
        self.weigh = nn.Conv2d(channels + 1, hidden, 1)
        self.out = nn.Conv2d(hidden, 1, 1)

    def forward(self, channels: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return self.out(F.gelu(self.weigh(torch.cat([channels, entropy(pixels)], dim=1))))[:, 0]


class Salience(nn.Module):
    """What stands out from its surroundings: `[B, h, w]` from the channels `[B, C, h, w]`."""

    def __init__(self, channels: int, hidden: int = 24) -> None:
        super().__init__()
        self.near = nn.Conv2d(channels, hidden, 3, padding=1)
        self.far = nn.Conv2d(hidden, hidden, 3, padding=2, dilation=2)
        self.out = nn.Conv2d(hidden, 1, 1)

    def forward(self, channels: torch.Tensor) -> torch.Tensor:
        near = F.gelu(self.near(channels))
        return self.out(near + F.gelu(self.far(near)))[:, 0]


class Coupling(nn.Module):
    """What a cell has to do with the question: `[B, h, w]` from cells `[B, h, w, d]` and words `[B, T, d]`."""

    def __init__(self, width: int, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.cells, self.words = nn.Linear(width, width), nn.Linear(width, width)
        self.worth = nn.Linear(width, 1) if pooling in ("learned", "sum") else None  # of each token, in the sum
        self.mix = nn.Parameter(torch.zeros(3)) if pooling == "learned" else None
        self.own = nn.Linear(width, 1)  # what the cell says by itself, having heard the question

    def forward(self, cells: torch.Tensor, words: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        batch, high, wide, width = cells.shape
        alike = self.cells(cells).flatten(1, 2) @ self.words(words).transpose(1, 2) / math.sqrt(width)  # [B, N, T]
        return self._pooled(alike, words, asked[:, None]).view(batch, high, wide) + self.own(cells)[..., 0]

    def _pooled(self, alike: torch.Tensor, words: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Likeness to every token `[B, N, T]` as one number `[B, N]`."""
        count = there.sum(-1)
        most = alike.masked_fill(~there, -math.inf).amax(-1)
        mean = (alike * there).sum(-1) / count
        if self.worth is None:
            return most if self.pooling == "max" else mean
        total = (alike * torch.sigmoid(self.worth(words)).transpose(1, 2) * there).sum(-1) / count.sqrt()
        if self.mix is None:
            return total
        share = self.mix.softmax(0)
        return share[0] * most + share[1] * mean + share[2] * total


class Policy(nn.Module):
    """How much each way counts, from the question and from the score maps' statistics: weights `[B, 3]`.

    By sigmoids they do not sum to 1: two ways of knowing may both be right.
    """

    def __init__(self, width: int, hidden: int = 64, balance: str = "sigmoid") -> None:
        super().__init__()
        self.balance = balance
        self.attend = nn.Linear(width, 1, bias=False)
        self.into = nn.Linear(width + STATISTICS * len(WAYS), hidden)
        self.out = nn.Linear(hidden, len(WAYS))

    def forward(self, words: torch.Tensor, asked: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        heed = self.attend(words)[..., 0].masked_fill(~asked, -math.inf).softmax(-1)
        question = (heed[:, None] @ words)[:, 0]
        weights = self.out(F.gelu(self.into(torch.cat([question, statistics(scores)], dim=-1))))
        return weights.sigmoid() if self.balance == "sigmoid" else weights.softmax(-1)


def statistics(scores: torch.Tensor) -> torch.Tensor:
    """Mean, spread, largest and evenness of each map of `[B, S, N]` logits, all of moderate size: `[B, 4 S]`."""
    chances = scores.softmax(-1)
    even = -(chances * chances.clamp(min=1e-9).log()).sum(-1) / math.log(max(2, scores.shape[-1]))
    spread = scores.std(-1) if scores.shape[-1] > 1 else torch.zeros_like(even)
    found = torch.stack([scores.mean(-1), spread, scores.amax(-1)], dim=-1).tanh()
    return torch.cat([found, even[..., None]], dim=-1).flatten(1)
