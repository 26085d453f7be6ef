"""FastV: prune after the second layer of the language model, by the last token's attention."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, LayerState, Selector
from arr_coc.selectors.scoring import top_k


class FastV(Selector):
    """After the second of 32 layers, keep the `k` cells that the prompt's last token attends to most, over all heads.

    "An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large Vision-Language Models"
    (2024). Needs: attention inside the language model. The depth is a share of the layers: 2 of 32.
    """

    name = "fastv"
    sets_budget = False
    depths = (2 / 32,)

    def at_layer(self, state: LayerState) -> Choice:
        visual = (state.cells >= 0).nonzero()[:, 0]
        last = torch.tensor([len(state.cells) - 1])
        attention = state.attention(last).mean((0, 1)).cpu()[visual]  # [cells]
        return Choice(state.cells[visual[top_k(attention, state.count)]].sort().values, relevance=attention)
