"""DART: prune after the second layer of the language model, by duplication of a few pivot tokens."""

from __future__ import annotations

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, LayerState, Selector
from arr_coc.selectors.scoring import top_k, unit_vectors


class DART(Selector):
    """After the second of 32 layers, keep the cells that duplicate a few pivot tokens least.

    "Stop Looking for Important Tokens in Multimodal Language Models: Duplication Matters More" (2025). From the paper:
    `image_pivots` cells and `text_pivots` text tokens with the largest L1 norm of their keys in the layer that ran last;
    pivot cells are kept; each pivot in turn adds the same number of remaining cells, those with the smallest cosine to it.
    Changed: a budget is met exactly, so that the first pivots add one cell more where it does not divide; a budget below
    `image_pivots` takes fewer pivot cells; text pivots are any text after the first cell; cosines are those of the hidden
    states themselves, without the model's final norm; the depth is a share of the layers, 2 of 32. Needs: hidden states and
    keys inside the language model; attention maps are not read.
    """

    name = "dart"
    sets_budget = False
    depths = (2 / 32,)

    def __init__(self, image_pivots: int = 4, text_pivots: int = 4) -> None:
        if image_pivots < 1 or text_pivots < 0:
            raise SelectorError(
                f"expected at least one image pivot and no fewer than 0 text pivots, got {image_pivots!r} and {text_pivots!r}"
            )
        self.image_pivots, self.text_pivots = image_pivots, text_pivots

    def at_layer(self, state: LayerState) -> Choice:
        visual = (state.cells >= 0).nonzero()[:, 0]
        words = (state.cells < 0).nonzero()[:, 0]
        words = words[words > visual[0]]
        norms = state.keys.float().abs().sum(-1).cpu()  # [T]
        image = visual[top_k(norms[visual], min(self.image_pivots, state.count))]
        pivots = torch.cat([image, words[top_k(norms[words], self.text_pivots)]])
        unit = unit_vectors(state.hidden)
        cosines = (unit[pivots.to(unit.device)] @ unit[visual.to(unit.device)].T).cpu()  # [pivots, cells]
        chosen = least_duplicated(cosines, torch.searchsorted(visual, image), state.count)
        return Choice(state.cells[visual[chosen]].sort().values)


def least_duplicated(cosines: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
    """`count` of M cells: `kept`, and for each pivot in turn its share of those with the smallest of `cosines` `[P, M]`.

    >>> least_duplicated(torch.tensor([[1.0, 0.9, 0.1, 0.2], [0.3, 0.4, 0.0, 0.9]]), torch.tensor([0]), 3).tolist()
    [0, 2, 1]
    """
    free = torch.ones(cosines.shape[1], dtype=torch.bool)
    free[kept] = False
    chosen, rest = [kept], count - len(kept)
    for number, row in enumerate(cosines):
        share = rest // len(cosines) + (number < rest % len(cosines))
        found = top_k((-row).masked_fill(~free, -torch.inf), share)
        free[found] = False
        chosen.append(found)
    return torch.cat(chosen)
