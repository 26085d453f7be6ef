"""POPE: is a thing there or not; coco_pope_random.json, _popular and _adversarial (JSON lines), val2014/COCO_val2014_*.jpg"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, Entry, collect, json_lines
from arr_coc.evaluation.readers.files import finder


def pope(folder: Path, limit: int | None = None) -> Data:
    paths = sorted(folder.rglob("*_pope_*.json"))
    if not paths:
        raise DataError(f"expected coco_pope_random.json and the like inside {str(folder)!r}, found none")

    def entries() -> Iterator[Entry]:
        before = 0  # lines are numbered through all files, in the order of their names
        for path in paths:
            number = 0
            for number, one, problem in json_lines(path):
                if problem or not isinstance(one, dict):
                    yield Entry(before + number, None, problem or "expected an object in braces")
                    continue
                kind = path.stem.rsplit("_", 1)[-1]
                fields = {
                    "image": one.get("image"),
                    "question": one.get("text"),
                    "answer": one.get("label", ()),
                    "kind": kind,
                }
                yield Entry(before + number, fields)
            before += number

    return collect("POPE", entries(), finder(folder), limit, metric="yes_no", where="line")
