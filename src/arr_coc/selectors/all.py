"""Keep everything: the dense model."""

from __future__ import annotations

import torch

from arr_coc.selectors.base import SelectionInput, Selector


class All(Selector):
    """Needs: nothing."""

    name = "all"

    def select(self, selection: SelectionInput) -> torch.Tensor:
        """Every candidate, or the first `k` where a smaller budget was asked for."""
        return selection.candidates if selection.k is None else selection.candidates[: selection.count]

    before_encoding = select
