"""Keep what the encoder looked at, and fold everything else into a few more tokens."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.ranking import attention, best, on_grid
from arr_coc.selectors.similarity import tokens_of, units

LAST = 1.0  # encoder depth
DOMINANT = 54 / 64  # share of the budget for tokens kept as they are


class VisionZip(Selector):
    """54/64 of the budget by attention received; the rest is merged into evenly strided targets among it.

    Each other token joins the target most similar to it, and a target becomes the mean of its group: the sum of groups'
    means times their sizes is the sum of what was merged. "VisionZip: Longer is Better but Not Necessary in Vision
    Language Models" (2024). Needs: tokens and attention, the mean over each cell's patches. Similarity is the cosine of the
    encoder's last tokens, not of its keys, which live before the merging of patches.
    """

    name = "visionzip"
    attention_at = (LAST,)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, 1 being an even share: `[M]`."""
        return attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        seen, tokens, count = self.relevance(selection), tokens_of(selection), selection.count
        dominant = best(seen, round(DOMINANT * count))
        left = torch.ones(len(tokens), dtype=torch.bool).index_fill_(0, dominant, False)
        rest = left.nonzero()[:, 0]  # [R]
        targets = torch.arange(count - len(dominant)) * len(rest) // max(count - len(dominant), 1)
        merged = grouped(tokens[rest.to(tokens.device)].float(), targets)
        features = torch.cat([tokens[dominant.to(tokens.device)].float(), merged])
        places, order = torch.cat([dominant, rest[targets]]).sort()
        return Choice(
            selection.candidates[places], features=features[order.to(tokens.device)].to(tokens.dtype),
            relevance=on_grid(selection, seen), strategy="most attention received, the rest merged",
        )  # fmt: skip


def grouped(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Tokens `[R, D]` as one mean for each of the targets `[C]` among them: `[C, D]`."""
    if len(targets) == 0:
        return tokens[:0]
    targets = targets.to(tokens.device)
    unit = units(tokens)
    group = (unit @ unit[targets].T).argmax(1)  # [R]
    group[targets] = torch.arange(len(targets), device=tokens.device)  # a target is its own, also beside a twin
    sums = tokens.new_zeros(len(targets), tokens.shape[1]).index_add_(0, group, tokens)
    return sums / torch.bincount(group, minlength=len(targets))[:, None]
