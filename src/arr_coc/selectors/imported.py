"""A selector from the user's own code, named as "module:Name"."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from arr_coc.errors import SelectorError, first_line
from arr_coc.selectors.base import Function, Selector


def imported(path: str) -> Selector:
    """The Selector class (made without arguments), Selector or function that `path` names.

    Modules are found as in `python -m`: beside the installed ones, those of the folder that one stands in.
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
        return Function(found)
    raise SelectorError(
        f"expected {path!r} to be a Selector or a function of a sight, got {_kind(found)}: derive it from arr_coc's Selector"
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
    """Results say who chose, so a selector that forgot its name gets the one it was asked for by."""
    if not made.name:
        made.name = name
    return made


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
