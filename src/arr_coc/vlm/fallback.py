"""Calling a selector, and what happens when it fails: the answer still comes, and the result says why.

Under a count or a share, evenly spaced cells replace the choice of a failing selector; under `auto` or a mass, all cells.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from arr_coc.errors import AllocationError, FallbackWarning, SelectorError, first_line, whole_number
from arr_coc.selectors.base import Choice, Downscale, SelectionInput, Selector
from arr_coc.selectors.controls import Uniform
from arr_coc.types.allocation import check_cells


def call_prepare(selector: Selector, selections: Sequence[SelectionInput]) -> Sequence[SelectionInput]:
    """What a selector works out for several images at once. Where that fails, each image is chosen for by itself."""
    if not selections:
        return selections
    try:
        return selector.prepare(selections)
    except Exception:  # whatever it was, the same work for one image raises it again, and says for which
        return selections


def call_glance(selector: Selector, selection: SelectionInput) -> tuple[Choice | Downscale, str]:
    """Cells to encode, and why the selector's own result was replaced (empty if it was used)."""
    return _call(selector, selector.before_encoding, selection)


def call_gaze(selector: Selector, selection: SelectionInput) -> tuple[Choice, str]:
    """Cells to keep among the encoded ones, and why the selector's own result was replaced."""
    choice, why = _call(selector, selector.select, selection)
    if isinstance(choice, Downscale):
        raise SelectorError(f"selector {selector.name!r} asked for a smaller image after it was encoded")
    return choice, why


def call_relevance(selector: Selector, selection: SelectionInput) -> tuple[torch.Tensor | None, str]:
    """Each candidate's score `[M]`, or None if the selector has none; and why it was not used."""
    try:
        values = selector.relevance(selection)
        if values is None:
            return None, ""
        values = torch.as_tensor(values).detach().float().cpu()
        if values.shape != selection.candidates.shape or not torch.isfinite(values).all():
            raise AllocationError(f"expected {len(selection.candidates)} finite values, got shape {list(values.shape)}")
        return values, ""
    except SelectorError:
        raise
    except Exception as error:
        return None, _warn(selector, error, "the budget is divided by size")


def fallback_cells(selection: SelectionInput) -> torch.Tensor:
    """Evenly spaced candidates under a count or a share, all of them under `auto` or a mass."""
    return selection.candidates if selection.k is None else Uniform().select(selection)


def _call(
    selector: Selector,
    function: Callable[[SelectionInput], Choice | Downscale | torch.Tensor],
    selection: SelectionInput,
) -> tuple[Choice | Downscale, str]:
    try:
        return _check(function(selection), selection), ""
    except SelectorError:  # the caller asked for something the selector cannot do
        raise
    except Exception as error:
        why = _warn(selector, error, "every cell is kept" if selection.k is None else "evenly spaced cells are kept")
        return Choice(fallback_cells(selection), strategy="uniform" if selection.k is not None else "everything"), why


def _warn(selector: Selector, error: Exception, replacement: str) -> str:
    why = f"{type(error).__name__}: {first_line(error)}"
    message = f"selector {selector.name!r} failed ({why}); {replacement} instead"
    warnings.warn(message, FallbackWarning, stacklevel=5)
    return why


def _check(result: object, selection: SelectionInput) -> Choice | Downscale:
    """The result as a valid choice, or an error."""
    if isinstance(result, Downscale):
        cells = whole_number(result.cells)
        most = selection.grid.n if selection.k is None else selection.k
        if cells is None or cells > most:
            raise AllocationError(f"expected a smaller picture of 1 to {most} cells, got {result.cells!r}")
        return Downscale(cells)
    choice = result if isinstance(result, Choice) else Choice(result)  # type: ignore[arg-type]
    keep = check_cells(choice.keep, selection.grid, "kept cells")
    if selection.k is not None and len(keep) > selection.k:
        raise AllocationError(f"expected at most {selection.k} cells, got {len(keep)}")
    if len(selection.candidates) < selection.grid.n and not torch.isin(keep, selection.candidates).all():
        raise AllocationError("expected cells among the encoded ones")
    width = None if selection.tokens is None else selection.tokens.shape[-1]
    for what, values, shape in (
        ("features", choice.features, None if width is None else (len(keep), width)),
        ("relevance", choice.relevance, (selection.grid.n,)),
    ):
        if values is None:
            continue
        if shape is not None and tuple(values.shape) != shape:
            raise AllocationError(f"expected {what} of shape {list(shape)}, got {list(values.shape)}")
        if not torch.isfinite(values).all():
            raise AllocationError(f"expected finite {what}, got NaN or infinity")
    return replace(choice, keep=keep)
