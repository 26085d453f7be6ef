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
        word = self.words(words) / math.sqrt(cells.shape[-1])
        # A cell's map into the words' space is made part of the words: they are few. Cells are innermost: they are many.
        alike = (word @ self.cells.weight) @ cells.flatten(1, 2).transpose(1, 2) + (word @ self.cells.bias)[..., None]
        return self._pooled(alike, words, asked).view(cells.shape[:3]) + self.own(cells)[..., 0]

    def _pooled(self, alike: torch.Tensor, words: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Likeness to every token `[B, T, N]` as one number `[B, N]`."""
        count = asked.sum(-1, keepdim=True)
        most = alike.masked_fill(~asked[..., None], -math.inf).amax(1)
        shares = [asked / count]  # of the tokens, in the mean and in the sum
        if self.worth is not None:
            shares.append(torch.sigmoid(self.worth(words))[..., 0] * asked / count.sqrt())
        mean, *total = (torch.stack(shares, dim=1) @ alike).unbind(1)
        if not total:
            return most if self.pooling == "max" else mean
        if self.mix is None:
            return total[0]
        share = self.mix.softmax(0)
        return share[0] * most + share[1] * mean + share[2] * total[0]


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
