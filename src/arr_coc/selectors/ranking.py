"""Scores to cells: the best ones, ties to the earlier cell, and scores laid out on the whole grid."""

from __future__ import annotations

import torch

from arr_coc.errors import SelectorError
from arr_coc.selectors.base import Choice, SelectionInput
from arr_coc.types.budget import count_for_mass


def best(values: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the `count` largest of `values` `[M]`, largest first; of equals the first."""
    return values.argsort(descending=True, stable=True)[:count]


def unit_range(values: torch.Tensor) -> torch.Tensor:
    """`values` `[M]` stretched to [0, 1]; all 1 where they do not differ, because then nothing counts for less."""
    if len(values) == 0:
        return values
    low, high = torch.aminmax(values)
    return (values - low) / (high - low) if bool(high > low) else torch.ones_like(values)


def laid_out(selection: SelectionInput, values: torch.Tensor) -> torch.Tensor:
    """The candidates' values `[M]` on the whole grid, `[N]`; 0 for cells that were not candidates."""
    whole = torch.zeros(selection.grid.n)
    whole[selection.candidates] = values.detach().float().cpu()
    return whole


def on_grid(selection: SelectionInput, values: torch.Tensor) -> torch.Tensor:
    """The candidates' values `[M]` as a relevance `[N]` in [0, 1]; 0 for cells that were not candidates."""
    return laid_out(selection, unit_range(values.detach().float().cpu()))


def best_cells(selection: SelectionInput, values: torch.Tensor, strategy: str) -> Choice:
    """The `k` candidates with the largest values `[M]`, which are also their relevance; or as many as hold its `mass`."""
    count = selection.count if selection.mass is None else count_for_mass(values, selection.mass)
    keep = selection.candidates[best(values, count).cpu()].sort().values
    return Choice(keep, relevance=on_grid(selection, values), strategy=strategy)


def attention(selection: SelectionInput, depth: float) -> torch.Tensor:
    """What each candidate receives at an encoder depth `[M]`, as a multiple of an even share: comparable over sizes."""
    if depth not in selection.attention:
        raise SelectorError(f"this selector needs the encoder's attention at depth {depth:g}, which nobody measured")
    return selection.attention[depth].detach().float().cpu() * len(selection.candidates)
