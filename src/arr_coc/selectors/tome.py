"""ToMe: merge the most similar tokens until few enough are left."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import encoder_tokens, top_k, unit_vectors


class ToMe(Selector):
    """Bipartite matching: split the tokens alternately into two halves and merge the most similar pairs; repeat if needed.

    A merged token is the mean of all its sources and keeps the cell of the pair's second token: the sum of tokens times
    their sizes does not change. "Token Merging: Your ViT But Faster" (2022). Needs: tokens; ignores the question. It merges
    once, after the encoder, by the cosine of tokens. The paper merges in every layer by the cosine of keys.
    """

    name = "tome"
    sets_budget = False

    def select(self, selection: SelectionInput) -> Choice:
        tokens = encoder_tokens(selection)
        indices, features, sizes = merge_tokens(tokens.float(), selection.count)
        keep = selection.candidates[indices.cpu()]
        size_map = torch.zeros(selection.grid.n)
        size_map[keep] = sizes.cpu()
        strategy = "the most similar tokens merged"
        return Choice(keep, features=features.to(tokens.dtype), scores={"size": size_map}, strategy=strategy)


def merge_tokens(tokens: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens `[M, D]` merged to `count`: their indices `[K]`, the tokens `[K, D]`, and the number of sources of each `[K]`."""
    indices = torch.arange(len(tokens), device=tokens.device)
    sums, sizes = tokens, tokens.new_ones(len(tokens))  # a sum has its mean's direction: divide once, at the end
    if count == 0:
        return indices[:0], tokens[:0], sizes[:0]
    while len(sums) > count:
        unit = unit_vectors(sums)
        closest, partner = (unit[0::2] @ unit[1::2].T).max(1)  # [M / 2] for each of the first half
        merged = 2 * top_k(closest, len(sums) - count)  # at most the whole first half
        into = 2 * partner[merged // 2] + 1
        stay = torch.ones_like(indices, dtype=torch.bool).index_fill_(0, merged, False)
        sums = sums.index_add(0, into, sums[merged])[stay]
        sizes, indices = sizes.index_add(0, into, sizes[merged])[stay], indices[stay]
    return indices, sums / sizes[:, None], sizes
