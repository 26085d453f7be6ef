"""Readers of data sets that lie on the disk, each in the layout it was published in. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, read_samples

FORMATS: dict[str, Callable[[Path, int | None], Data]] = {"samples": read_samples}


def read(folder: str | Path, format: str = "samples", limit: int | None = None) -> Data:
    """The questions in a folder; `limit`: at most so many pictures."""
    if format not in FORMATS:
        raise DataError(f"expected a format among {', '.join(FORMATS)}, got {format!r}")
    path = Path(folder)
    if not path.exists():
        raise DataError(f"there is no folder {str(path)!r}")
    if not path.is_dir():
        raise DataError(f"expected a folder, got the file {str(path)!r}")
    return FORMATS[format](path.resolve(), limit)


__all__ = ["FORMATS", "read"]
