"""The errors a user can cause.

Each message is one sentence: what was expected, what came, what to do. The command line prints it and exits with code 2.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex


class ArrCocError(ValueError):
    """Base of every error that bad input can cause."""


class ImageError(ArrCocError):
    """The image cannot be read, or is not an image."""


class ChannelError(ArrCocError):
    """A channel, layout or supplied map is unknown or does not fit."""


def whole_number(value: object, least: int = 1) -> int | None:
    """`value` as an int if it is a whole number of any integer type (numpy's too) and at least `least`; None if not."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    number = operator.index(value)
    return number if number >= least else None
