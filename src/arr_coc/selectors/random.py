"""Keep cells by chance: the control that every selector has to beat."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import SelectionInput, Selector


class Random(Selector):
    """Needs: the seed."""

    name = "random"

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """`k` candidates, the same for the same seed on every machine."""
        dice = torch.Generator().manual_seed(selection.seed)
        order = torch.randperm(len(selection.candidates), generator=dice)
        return selection.candidates[order[: selection.count]].sort().values

    before_encoding = select
