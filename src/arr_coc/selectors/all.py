"""Keep everything: the dense model."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import Selector, Sight


class All(Selector):
    """Needs: nothing."""

    name = "all"

    def select(self, sight: Sight) -> torch.Tensor:
        """Every candidate, or the first `k` where a smaller budget was asked for."""
        return sight.candidates if sight.k is None else sight.candidates[: sight.count]

    before_encoding = select
