"""Selectors by name, and calling one. `register` adds your own; "module:Name" imports one from your code.

Where a selector fails, the answer still comes, and the result says why: under a count or a share, evenly spaced cells replace
the choice of the failing selector; under `auto` or a mass, all cells.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from arr_coc.errors import AllocationError, FallbackWarning, SelectorError, first_line, whole_number
from arr_coc.selectors.base import Choice, Downscale, FunctionSelector, SelectionInput, Selector
from arr_coc.selectors.cdpruner import CDPruner
from arr_coc.selectors.controls import All, Centre, Random, Resize, Uniform
from arr_coc.selectors.cues import Coupling, Ink, Saliency
from arr_coc.selectors.dart import DART
from arr_coc.selectors.divprune import DivPrune
from arr_coc.selectors.evs import EVS
from arr_coc.selectors.fastv import FastV
from arr_coc.selectors.hiprune import HiPrune
from arr_coc.selectors.idpruner import IDPruner
from arr_coc.selectors.mmr import MMR
from arr_coc.selectors.oracle import Oracle
from arr_coc.selectors.pixelprune import PixelPrune
from arr_coc.selectors.scope import Scope
from arr_coc.selectors.sparsevlm import SparseVLM
from arr_coc.selectors.tome import ToMe
from arr_coc.selectors.visionzip import VisionZip
from arr_coc.selectors.vispruner import VisPruner
from arr_coc.types.allocation import check_cells


def _deferred(module: str, name: str) -> Callable[[], Selector]:
    """A maker that imports its class on first use: ARR-COC's own selectors lie in a higher layer."""
    return lambda: getattr(importlib.import_module(module), name)()


_KNOWN: dict[str, Callable[[], Selector]] = {
    maker.name: maker
    for maker in (
        All, Random, Uniform, Centre, Resize, Saliency, Ink, Coupling, DivPrune, CDPruner, Scope, MMR, IDPruner, VisionZip,
        VisPruner, HiPrune, ToMe, PixelPrune, DART, FastV, SparseVLM, EVS, Oracle,
    )
}  # fmt: skip
_KNOWN |= {
    "arr-coc": _deferred("arr_coc.relevance.selector", "ArrCoc"),
    "arr-coc-universal": _deferred("arr_coc.relevance.selector", "Universal"),
    "arr-coc-untrained": _deferred("arr_coc.relevance.selector", "Untrained"),
}

SelectorLike = str | Selector | Callable[[SelectionInput], object]


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def register(maker: Callable[[], Selector], name: str) -> None:
    """Make a selector available by name. `maker` is called once per use."""
    if name in _KNOWN:
        raise SelectorError(f"a selector named {name!r} exists already: choose another name")
    _KNOWN[name] = maker


def selector(which: SelectorLike) -> Selector:
    """A selector from its name, "module:Name", a `Selector`, or a function of a `SelectionInput`."""
    if isinstance(which, Selector):
        return which
    if isinstance(which, str):
        if which in _KNOWN:
            return _KNOWN[which]()
        if ":" in which:
            return _imported(which)
        near = difflib.get_close_matches(which.lower(), _KNOWN, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SelectorError(f"expected a selector among {', '.join(_KNOWN)}, got {which!r}{hint}")
    if callable(which) and not isinstance(which, type):
        return FunctionSelector(which)  # type: ignore[arg-type]
    raise SelectorError(f"expected a selector's name, a Selector or a function of a SelectionInput, got {which!r}")


def _imported(path: str) -> Selector:
    """The Selector class (called without arguments), Selector or function at `path`.

    As with `python -m`, modules of the working directory are found, too.
    """
    module, _, name = path.partition(":")
    found = _attribute(module, name, path)
    if isinstance(found, type) and issubclass(found, Selector):
        try:
            made = found()
        except SelectorError:
            raise
        except Exception as error:
            raise SelectorError(
                f"selector {path!r} cannot be made without arguments ({type(error).__name__}: {first_line(error)})"
            ) from error
        return _named(made, name)
    if isinstance(found, Selector):
        return _named(found, name)
    if callable(found) and not isinstance(found, type):
        return FunctionSelector(found)
    raise SelectorError(
        f"expected {path!r} to be a Selector or a function of a SelectionInput, got {_kind(found)}: derive it from arr_coc's Selector"
    )


def _attribute(module: str, name: str, path: str) -> Any:
    if not module or not name:
        raise SelectorError(f'expected a selector of your own as "module:Name", got {path!r}')
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        if module in sys.modules:
            raise SelectorError(f"module {module!r} has no {name!r}: check the name in {path!r}") from error
        raise SelectorError(f"module {module!r} cannot be imported (AttributeError: {first_line(error)})") from error
    except Exception as error:
        raise SelectorError(
            f"module {module!r} cannot be imported ({type(error).__name__}: {first_line(error)})"
        ) from error
    finally:
        sys.path.remove(here)


def _named(made: Selector, name: str) -> Selector:
    """Results name their selector: one without a name gets the name it was requested by."""
    if not made.name:
        made.name = name
    return made


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__


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
