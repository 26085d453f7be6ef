"""How many cells, and which."""

from __future__ import annotations

import torch

from arr_coc.attending import COPY, FEWEST, MOST, automatic, most_relevant


def bump(height: int, width: int, size: float) -> torch.Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.exp(-((y - height / 2) ** 2 + (x - width / 3) ** 2) / (2 * size**2)).flatten()


def test_auto_follows_the_spread() -> None:
    hot, wide, flat = bump(36, 36, 1.5), bump(36, 36, 3.5), torch.ones(1296)
    assert FEWEST <= automatic(hot) < 100 < automatic(wide) < automatic(flat) == MOST
    noise = torch.rand(1296, generator=torch.Generator().manual_seed(0))
    assert automatic(noise) == MOST
    assert automatic(torch.ones(30)) == 30
    assert automatic(bump(5, 6, 1)) == 30
    counts = [automatic(bump(40, 40, size)) for size in (1.0, 2.0, 4.0, 6.0, 8.0)]
    assert counts == sorted(counts)


def test_auto_does_not_depend_on_scale() -> None:
    hot = bump(36, 36, 4)
    assert automatic(hot) == automatic(hot * 7 + 3)


def test_the_most_relevant_in_order_ties_to_the_first() -> None:
    assert most_relevant(torch.tensor([1.0, 3, 2, 3, 0]), 3).tolist() == [1, 2, 3]
    assert most_relevant(torch.ones(5), 2).tolist() == [0, 1]
    assert most_relevant(torch.ones(5), 0).tolist() == []
    assert most_relevant(torch.ones(5), 9).tolist() == [0, 1, 2, 3, 4]


def test_near_copies_wait() -> None:
    relevance = torch.tensor([9.0, 8, 7, 6, 5, 4])
    tokens = torch.tensor([[1.0, 0], [1, 0.01], [2, 0], [0, 1], [0.5, 0.5], [0, 2]])
    assert most_relevant(relevance, 3, tokens).tolist() == [0, 3, 4]
    assert most_relevant(relevance, 4, tokens).tolist() == [0, 1, 3, 4]  # then the best of the rest
    assert most_relevant(relevance, 6, tokens).tolist() == [0, 1, 2, 3, 4, 5]


def test_near_copies_by_definition() -> None:
    dice = torch.Generator().manual_seed(0)
    base = torch.randn(20, 8, generator=dice)
    tokens = base[torch.randint(20, (100,), generator=dice)] + 0.02 * torch.randn(100, 8, generator=dice)
    relevance = torch.rand(100, generator=dice)
    kept = most_relevant(relevance, 15, tokens)
    unit = tokens / tokens.norm(dim=1, keepdim=True)
    chosen: list[int] = []
    for place in relevance.argsort(descending=True)[:30].tolist():
        if len(chosen) < 15 and all(float(unit[place] @ unit[other]) < COPY for other in chosen):
            chosen.append(place)
    rest = [place for place in relevance.argsort(descending=True)[:30].tolist() if place not in chosen]
    assert kept.tolist() == sorted(chosen + rest[: 15 - len(chosen)])
