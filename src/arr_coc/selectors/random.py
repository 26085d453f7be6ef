"""Keep cells by chance: the control that every selector has to beat."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Selector, Sight


class Random(Selector):
    """Needs: the seed."""

    name = "random"

    def select(self, sight: Sight) -> torch.Tensor:
        """`k` candidates, the same for the same seed on every machine."""
        dice = torch.Generator().manual_seed(sight.seed)
        order = torch.randperm(len(sight.candidates), generator=dice)
        return sight.candidates[order[: sight.count]].sort().values

    before_encoding = select
