"""Made-up joint spaces: features of a few strong directions with noise, and questions about them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

WIDTH = 48


def unit(rows: torch.Tensor) -> torch.Tensor:
    return F.normalize(rows, dim=-1)


def low_rank(
    count: int, rank: int = 12, width: int = WIDTH, noise: float = 0.05, seed: int = 0, gap: float = 0.5
) -> torch.Tensor:
    """Features `[count, width]` of length 1 that vary in `rank` directions, around a mean that is far from zero."""
    dice = torch.Generator().manual_seed(seed)
    directions = basis(width)[:rank]
    strength = torch.linspace(1.0, 0.3, rank)
    made = (torch.randn(count, rank, generator=dice) * strength) @ directions
    made = made + noise * torch.randn(count, width, generator=dice)
    return unit(made + gap * width**0.5 * basis(width)[-1] / 4)


def basis(width: int = WIDTH) -> torch.Tensor:
    """An orthonormal basis `[width, width]`, always the same."""
    return torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(7)))[0].T.contiguous()


def questions(count: int, among: slice = slice(0, 12), width: int = WIDTH, seed: int = 1) -> torch.Tensor:
    """Questions `[count, width]` of length 1 in some directions of the basis, around a mean of their own."""
    dice = torch.Generator().manual_seed(seed)
    directions = basis(width)[among]
    made = torch.randn(count, len(directions), generator=dice) @ directions
    return unit(made + 2.0 * basis(width)[-2])


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """By the book, for rows without equal values."""
    ranks = [x.argsort().argsort().double() for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
