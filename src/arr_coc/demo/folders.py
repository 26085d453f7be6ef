"""Folders that the page may open: those below one root, so that no visitor reads anything else of the host's."""

from __future__ import annotations

import os
from pathlib import Path

from arr_coc.errors import DataError
from arr_coc.evaluation.written import NUMBERS, PAGE

DEEPEST = 4  # folders below the root that are searched for reports
MOST = 50


def inside(root: Path, name: str, what: str) -> Path:
    """A folder by its name below the root, or one sentence."""
    expected = f"expected {what} below the folder that --files names"
    try:
        place = (root / name.strip()).resolve()
        there = place.is_dir()
    except (OSError, ValueError, RuntimeError):  # too long a name, a NUL in it, or links that go round
        raise DataError(f"{expected}, got {name[:80]!r}") from None
    if not place.is_relative_to(root.resolve()):
        raise DataError(f"{expected}, got {name[:80]!r} outside of it")
    if not there:
        raise DataError(f"{expected}, and there is no folder {name[:80]!r}")
    return place


def reports(root: Path) -> list[str]:
    """Names of the folders below the root that hold a report."""
    found: list[str] = []
    top = root.resolve()
    for place, folders, files in os.walk(top):
        depth = len(Path(place).relative_to(top).parts)
        folders[:] = (
            sorted(one for one in folders if not one.startswith((".", "node_modules"))) if depth < DEEPEST else []
        )
        if PAGE in files and NUMBERS in files:
            found.append(Path(place).relative_to(top).as_posix())
            if len(found) == MOST:
                break
    return found
