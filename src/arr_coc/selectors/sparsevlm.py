"""Let the words that look at the picture rate its cells, and drop in three steps inside the language model."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, LayerState, Selector
from arr_coc.selectors.ranking import best

QUERIES = 256  # at a time


class SparseVLM(Selector):
    """After layers 2, 6 and 15 of 32, keep the cells that the raters attend to most.

    Raters are the words behind the picture that attend to it at least as much as such words do on average; heads and
    raters are averaged. The count falls by the same factor at each step and ends at `k`, so that the mean over layers is
    well above `k`: a model with few layers could not be given so small a mean. "SparseVLM: Visual Token Sparsification for
    Efficient Vision-Language Model Inference" (2024), which states its budget as that mean, finds raters once, before the
    first layer, sets its counts by the rank of the attention and recycles some dropped tokens. Needs: attention inside
    the language model.
    """

    name = "sparsevlm"
    depths = (2 / 32, 6 / 32, 15 / 32)

    def at_layer(self, inside: LayerState) -> Choice:
        visual = (inside.cells >= 0).nonzero()[:, 0]
        words = (inside.cells < 0).nonzero()[:, 0]
        behind = words[words > visual[0]]  # words before the picture cannot see it
        behind = behind if len(behind) else torch.tensor([len(inside.cells) - 1])
        some = [behind[start : start + QUERIES] for start in range(0, len(behind), QUERIES)]
        paid = torch.cat([inside.attention(queries).mean(0).cpu()[:, visual] for queries in some])  # [words, cells]
        looking = paid.sum(1)  # [words] how much each looks at the picture
        rated = paid[looking >= looking.mean().clamp(max=looking.max())].mean(0)  # [cells]
        return Choice(inside.cells[visual[best(rated, self._count(inside))]].sort().values, relevance=rated)

    def _count(self, inside: LayerState) -> int:
        """Cells to keep here: on the way down in equal factors."""
        steps = 1 + sum(depth > inside.depth for depth in self.depths)
        present = int((inside.cells >= 0).sum())
        return inside.count if steps == 1 else round(present * (inside.count / present) ** (1 / steps))
