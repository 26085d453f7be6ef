"""SparseVLM: prune in three steps inside the language model, by the attention of the words that attend to the image."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, LayerState, Selector
from arr_coc.selectors.scoring import top_k

QUERIES = 256  # per attention call


class SparseVLM(Selector):
    """After layers 2, 6 and 15 of 32, keep the cells that the raters attend to most.

    Raters are the words after the image whose attention to it is at least average; heads and raters are averaged. The count
    falls by the same factor at each step and ends at `k`, so the mean over layers is well above `k`: a model with few
    layers could not reach so small a mean. "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model
    Inference" (2024) states its budget as that mean, finds raters once, before the first layer, sets its counts by the rank
    of the attention, and recycles some dropped tokens. Needs: attention inside the language model.
    """

    name = "sparsevlm"
    sets_budget = False
    depths = (2 / 32, 6 / 32, 15 / 32)

    def at_layer(self, state: LayerState) -> Choice:
        visual = (state.cells >= 0).nonzero()[:, 0]
        words = (state.cells < 0).nonzero()[:, 0]
        later = words[words > visual[0]]  # causal attention: earlier words cannot see the image
        later = later if len(later) else torch.tensor([len(state.cells) - 1])
        parts = [state.attention(queries).mean(0).cpu()[:, visual] for queries in torch.split(later, QUERIES)]
        attention = torch.cat(parts)  # [words, cells]
        total = attention.sum(1)  # [words] attention to the image
        rating = attention[total >= total.mean().clamp(max=total.max())].mean(0)  # [cells]
        return Choice(state.cells[visual[top_k(rating, self._count(state))]].sort().values, relevance=rating)

    def _count(self, state: LayerState) -> int:
        """Cells to keep at this step: the count falls by equal factors."""
        steps = 1 + sum(depth > state.depth for depth in self.depths)
        present = int((state.cells >= 0).sum())
        return state.count if steps == 1 else round(present * (state.count / present) ** (1 / steps))
