"""Merge tokens that are alike until few enough are left."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import best
from arr_coc.selectors.similarity import tokens_of, units


class ToMe(Selector):
    """Split the tokens by turns into two halves, and merge the most similar pairs across; again while too many are left.

    A merged token is the mean of all that went into it and stands in the cell of the pair's second token: the sum of tokens
    times their sizes stays what it was. "Token Merging: Your ViT But Faster" (2022). Needs: tokens; reads no question.
    It merges once, after the encoder, by the cosine of its tokens, where the paper merges in every layer by that of keys.
    """

    name = "tome"

    def select(self, selection: SelectionInput) -> Choice:
        tokens = tokens_of(selection)
        places, features, sizes = merged(tokens.float(), selection.count)
        keep = selection.candidates[places.cpu()]
        on_grid = torch.zeros(selection.grid.n)
        on_grid[keep] = sizes.cpu()
        strategy = "the most similar tokens merged"
        return Choice(keep, features=features.to(tokens.dtype), scores={"size": on_grid}, strategy=strategy)


def merged(tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`[M, D]` merged down to `count`: their places `[K]`, tokens `[K, D]`, and how many went into each `[K]`."""
    places = torch.arange(len(tokens), device=tokens.device)
    sums, sizes = tokens, tokens.new_ones(len(tokens))  # a sum points where its mean does, so means wait until the end
    if count == 0:
        return places[:0], tokens[:0], sizes[:0]
    while len(sums) > count:
        unit = units(sums)
        closest, partner = (unit[0::2] @ unit[1::2].T).max(1)  # [M / 2] each of the first half
        leaving = 2 * best(closest, len(sums) - count)  # at most the whole first half
        into = 2 * partner[leaving // 2] + 1
        stay = torch.ones_like(places, dtype=torch.bool).index_fill_(0, leaving, False)
        sums = sums.index_add(0, into, sums[leaving])[stay]
        sizes, places = sizes.index_add(0, into, sizes[leaving])[stay], places[stay]
    return places, sums / sizes[:, None], sizes
