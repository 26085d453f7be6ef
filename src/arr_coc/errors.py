"""Errors caused by bad input, and the warning when a selector fails.

Each message is one sentence: what was expected, what was given, what to do. The command line prints it and exits with 2.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager


class ArrCocError(ValueError):
    """Base class of all errors caused by bad input."""


class ImageError(ArrCocError):
    """The image cannot be read, or is not an image."""


class VideoError(ArrCocError):
    """A clip or camera that cannot be read or written."""


class ChannelError(ArrCocError):
    """A channel, layout or supplied map is unknown or does not fit."""


class BudgetError(ArrCocError):
    """A budget that is not a count, a share, a mass, `auto` or `all`."""


class AllocationError(ArrCocError):
    """Kept cells that do not fit the picture they are for."""


class SelectorError(ArrCocError):
    """A selector that is unknown, or was asked for what it cannot do."""


class ModelError(ArrCocError):
    """A model or processor that cannot be wrapped or loaded."""


class PromptError(ArrCocError):
    """Images, videos and text that do not belong together."""


class EncoderError(ArrCocError):
    """An image-text encoder that is not there, or was asked for what it cannot do."""


class ProjectionError(ArrCocError):
    """A compression of embeddings that cannot be fitted, read, or used with this encoder."""


class FallbackWarning(UserWarning):
    """A selector failed and its choice was replaced."""


class LayerError(ArrCocError):
    """A learned layer that is damaged, or made for another model."""


class DataError(ArrCocError):
    """A data set that is not there or not in its layout."""


def whole_number(value: object, least: int = 1) -> int | None:
    """`value` as an int if it is a whole number of any integer type (numpy's too) and at least `least`; None if not."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if number >= least and not isinstance(value, bool) else None


@contextmanager
def raise_as(kind: type[ArrCocError], what: str) -> Iterator[None]:
    """Raise any other error inside the `with` as `kind`, with `what` before its first line; libraries raise many types."""
    try:
        yield
    except ArrCocError:
        raise
    except Exception as error:
        raise kind(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of another library's error message."""
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
