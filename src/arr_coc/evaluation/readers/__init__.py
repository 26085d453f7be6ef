"""Readers of data sets that lie on the disk, each in the layout it was published in. Nothing is downloaded."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, read_samples
from arr_coc.evaluation.readers.gqa import gqa
from arr_coc.evaluation.readers.pope import pope
from arr_coc.evaluation.readers.refcoco import refcoco
from arr_coc.evaluation.readers.sroie import sroie
from arr_coc.evaluation.readers.vqa import docvqa, textvqa, vizwiz, vqav2

FORMATS: dict[str, Callable[[Path, int | None], Data]] = {
    "samples": read_samples,
    "vqav2": vqav2,
    "gqa": gqa,
    "textvqa": textvqa,
    "docvqa": docvqa,
    "vizwiz": vizwiz,
    "sroie": sroie,
    "refcoco": refcoco,
    "pope": pope,
}


def read(folder: str | Path, format: str = "samples", limit: int | None = None) -> Data:
    """The questions in a folder; `limit`: at most so many pictures."""
    if format not in FORMATS:
        near = difflib.get_close_matches(str(format).lower(), FORMATS, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"expected a format among {', '.join(FORMATS)}, got {format!r}{hint}")
    path = Path(folder)
    if not path.exists():
        raise DataError(f"there is no folder {str(path)!r}")
    if not path.is_dir():
        raise DataError(f"expected a folder, got the file {str(path)!r}")
    return FORMATS[format](path.resolve(), limit)


__all__ = ["FORMATS", "read"]
