"""Finding and reading the files of a published data set, wherever its archives were unpacked inside one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError, first_line
from arr_coc.evaluation.data import Entry
from arr_coc.evaluation.shown import Broken

PREFERRED = ("val", "test", "train")  # where several splits are there, the first of these is read
DEPTH = 4  # folders inside folders that pictures are looked for in


def find(folder: Path, patterns: Iterable[str], layout: str) -> Path:
    """The file that one of the patterns names; of several splits, validation first."""
    patterns = tuple(patterns)
    found = [path for pattern in patterns for path in sorted(folder.rglob(pattern)) if path.is_file()]
    if not found:
        raise DataError(f"expected {' or '.join(patterns)} of {layout} inside {str(folder)!r}, found none")

    def rank(path: Path) -> int:
        return next((i for i, split in enumerate(PREFERRED) if split in path.name.lower()), len(PREFERRED))

    return min(found, key=rank)


def load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"expected JSON in {str(path)!r} ({first_line(error)})") from None


def listed(value: Any, key: str, path: Path) -> list[Any]:
    """The list under `key`, or one sentence."""
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f"expected a list under {key!r} in {str(path)!r}")
    return found


def entries(raws: Iterable[Any], convert: Callable[[Any], dict[str, Any]]) -> Iterator[Entry]:
    """Raw entries in the plain format, numbered from 1; one that cannot be converted does not stop the others."""
    for number, raw in enumerate(raws, start=1):
        try:
            yield Entry(number, convert(raw))
        except Broken as why:
            yield Entry(number, None, str(why))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            yield Entry(number, None, f"this is not in the published layout ({type(error).__name__}: {error})")


def finder(folder: Path) -> Callable[[str], Path]:
    """From a picture's name to its path: below the folder itself, or in any folder inside it."""
    folders = [folder]
    level = [folder]
    for _ in range(DEPTH):
        level = [path for parent in level for path in sorted(parent.iterdir()) if path.is_dir()]
        folders += level

    def look_up(name: str) -> Path:
        for place in folders:
            if (place / name).is_file():
                return place / name
        return folder / name

    return look_up
