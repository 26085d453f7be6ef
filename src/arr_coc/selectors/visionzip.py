"""VisionZip: the tokens that received most attention, and the rest merged into a few more."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import encoder_attention, encoder_tokens, relevance_map, top_k, unit_vectors

LAST = 1.0  # encoder depth
DOMINANT = 54 / 64  # share of the budget for tokens kept unchanged


class VisionZip(Selector):
    """54/64 of the budget by attention received; the rest is merged into evenly strided targets among it.

    Each other token joins its most similar target, and a target becomes the mean of its group: the groups' means times
    their sizes add up to what was merged. "VisionZip: Longer is Better but Not Necessary in Vision Language Models"
    (2024). Needs: tokens and attention (the mean over each cell's patches). Similarity is the cosine of the encoder's last
    tokens, not of its keys: keys belong to patches, before these are merged into tokens.
    """

    name = "visionzip"
    sets_budget = False
    attention_at = (LAST,)

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Attention received, as a multiple of the mean: `[M]`."""
        return encoder_attention(selection, LAST)

    def select(self, selection: SelectionInput) -> Choice:
        attention, tokens, count = self.relevance(selection), encoder_tokens(selection), selection.count
        dominant = top_k(attention, round(DOMINANT * count))
        others = torch.ones(len(tokens), dtype=torch.bool).index_fill_(0, dominant, False)
        rest = others.nonzero()[:, 0]  # [R]
        targets = torch.arange(count - len(dominant)) * len(rest) // max(count - len(dominant), 1)
        merged = merge_into_targets(tokens[rest.to(tokens.device)].float(), targets)
        features = torch.cat([tokens[dominant.to(tokens.device)].float(), merged])
        indices, order = torch.cat([dominant, rest[targets]]).sort()
        return Choice(
            selection.candidates[indices],
            features=features[order.to(tokens.device)].to(tokens.dtype),
            relevance=relevance_map(selection, attention),
            strategy="most attention received, the rest merged",
        )


def merge_into_targets(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Tokens `[R, D]` as one mean for each of the targets `[C]` among them: `[C, D]`."""
    if len(targets) == 0:
        return tokens[:0]
    targets = targets.to(tokens.device)
    unit = unit_vectors(tokens)
    group = (unit @ unit[targets].T).argmax(1)  # [R]
    group[targets] = torch.arange(len(targets), device=tokens.device)  # even if two targets are equal
    sums = tokens.new_zeros(len(targets), tokens.shape[1]).index_add_(0, group, tokens)
    return sums / torch.bincount(group, minlength=len(targets))[:, None]
