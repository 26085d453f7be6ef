"""Asking a selector, and what happens when it fails: the answer still comes, and the result says why.

Under a count or a share a failing selector is replaced by evenly spaced cells, under `auto` or a mass by every cell.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from arr_coc.errors import AllocationError, SelectorError, first_line, whole_number
from arr_coc.selectors.base import Choice, Selector, Sight, Smaller
from arr_coc.selectors.uniform import Uniform
from arr_coc.types.allocation import checked


class FallbackWarning(UserWarning):
    """A selector failed and its choice was replaced."""


def glance(selector: Selector, sight: Sight) -> tuple[Choice | Smaller, str]:
    """Cells worth encoding; and why the selector's own answer was not used, or an empty string."""
    return _ask(selector, selector.before_encoding, sight)


def gaze(selector: Selector, sight: Sight) -> tuple[Choice, str]:
    """Cells worth reading, among the encoded ones; and why the selector's own answer was not used."""
    choice, why = _ask(selector, selector.select, sight)
    if isinstance(choice, Smaller):
        raise SelectorError(f"selector {selector.name!r} asked for a smaller picture after it was encoded")
    return choice, why


def relevance(selector: Selector, sight: Sight) -> tuple[torch.Tensor | None, str]:
    """Each candidate's worth `[M]`, or None where the selector has no such thing; and why it was not used."""
    try:
        values = selector.relevance(sight)
        if values is None:
            return None, ""
        values = torch.as_tensor(values).detach().float().cpu()
        if values.shape != sight.candidates.shape or not torch.isfinite(values).all():
            raise AllocationError(f"expected {len(sight.candidates)} finite values, got shape {list(values.shape)}")
        return values, ""
    except SelectorError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        warnings.warn(
            f"selector {selector.name!r} failed ({why}); the budget is divided by size instead",
            FallbackWarning,
            stacklevel=4,
        )
        return None, why


def fallback(sight: Sight) -> torch.Tensor:
    """Evenly spaced candidates under a count or a share, every one under `auto` or a mass."""
    return sight.candidates if sight.k is None else Uniform().select(sight)


def _ask(
    selector: Selector, question: Callable[[Sight], Choice | Smaller | torch.Tensor], sight: Sight
) -> tuple[Choice | Smaller, str]:
    try:
        return _fitting(question(sight), sight), ""
    except SelectorError:  # asked for what it cannot do: the user's to change
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        kept = "every cell is kept" if sight.k is None else "evenly spaced cells are kept"
        warnings.warn(f"selector {selector.name!r} failed ({why}); {kept} instead", FallbackWarning, stacklevel=4)
        return Choice(fallback(sight), strategy="uniform" if sight.k is not None else "everything"), why


def _fitting(answer: object, sight: Sight) -> Choice | Smaller:
    """The answer as a valid choice, or an error."""
    if isinstance(answer, Smaller):
        cells = whole_number(answer.cells)
        most = sight.grid.n if sight.k is None else sight.k
        if cells is None or cells > most:
            raise AllocationError(f"expected a smaller picture of 1 to {most} cells, got {answer.cells!r}")
        return Smaller(cells)
    choice = answer if isinstance(answer, Choice) else Choice(answer)  # type: ignore[arg-type]
    keep = checked(choice.keep, sight.grid, "kept cells")
    if sight.k is not None and len(keep) > sight.k:
        raise AllocationError(f"expected at most {sight.k} cells, got {len(keep)}")
    if len(sight.candidates) < sight.grid.n and not torch.isin(keep, sight.candidates).all():
        raise AllocationError("expected cells among those that were encoded")
    for what, values, shape in (
        ("features", choice.features, None if sight.tokens is None else (len(keep), sight.tokens.shape[-1])),
        ("relevance", choice.relevance, (sight.grid.n,)),
    ):
        if values is None:
            continue
        if shape is not None and tuple(values.shape) != shape:
            raise AllocationError(f"expected {what} of shape {list(shape)}, got {list(values.shape)}")
        if not torch.isfinite(values).all():
            raise AllocationError(f"expected finite {what}, got NaN or infinity")
    return replace(choice, keep=keep)
