"""SROIE: scanned receipts with four fields, and the boxes of all their lines.

img/*.jpg, box/*.csv (x1,y1,...,x4,y4,text) and key/*.json, also as entities/*.txt, or all beside each other as in the
challenge's own archives (task1: pictures and boxes, task2: fields).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, Entry, collect

QUESTIONS = {
    "company": "What is the name of the company?",
    "date": "What is the date on the receipt?",
    "address": "What is the address of the company?",
    "total": "What is the total amount?",
}
Line = tuple[list[float], str]  # box and text


def sroie(folder: Path, limit: int | None = None) -> Data:
    pictures = {path.stem: path for path in sorted(folder.rglob("*.jpg")) if "(" not in path.stem}  # (1): double files
    beside = sorted(path for ending in ("json", "txt", "csv") for path in folder.rglob(f"*.{ending}"))
    fields: dict[str, dict[str, Any]] = {}
    lines: dict[str, list[Line]] = {}
    for path in beside:
        if path.stem not in pictures:
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        if text.lstrip().startswith("{"):
            try:
                fields[path.stem] = json.loads(text)
            except ValueError:
                fields[path.stem] = {}
        else:
            lines[path.stem] = [line for line in map(_line, text.splitlines()) if line is not None]
    if not fields:
        raise DataError(f"expected receipts of SROIE (img, box and key folders) inside {str(folder)!r}, found none")

    def entries() -> Iterator[Entry]:
        number = 0
        for name in sorted(fields):
            if not fields[name]:
                number += 1
                yield Entry(number, None, f"the fields of {name} are not JSON")
            for kind, question in QUESTIONS.items():
                answer = fields[name].get(kind)
                if answer:
                    number += 1
                    evidence = find_evidence(kind, str(answer), lines.get(name, []))
                    shown = str(pictures[name].relative_to(folder))
                    yield Entry(number, {
                        "image": shown, "question": question, "answer": str(answer), "kind": kind, "evidence": evidence,
                    })  # fmt: skip

    return collect("SROIE", entries(), lambda name: folder / name, limit, where="field")


def find_evidence(kind: str, answer: str, lines: list[Line]) -> list[list[list[float]]]:
    """Each line that shows a total or a date suffices; a company or an address needs every line it is spread over."""
    flat = "".join(answer.split())
    if kind in ("total", "date"):
        return [[box] for box, text in lines if flat in "".join(text.split())]
    whole = [box for box, text in lines if len(text) > 3 and "".join(text.split()).strip(",.") in flat]
    return [whole] if whole else [[box] for box, text in lines if flat in "".join(text.split())]


def _line(row: str) -> Line | None:
    """`x1,y1,x2,y2,x3,y3,x4,y4,text`: the text may hold commas."""
    parts = row.split(",", 8)
    try:
        sides = [float(part) for part in parts[:8]]
    except ValueError:
        return None
    if len(parts) < 9:
        return None
    xs, ys = sides[0::2], sides[1::2]
    return [min(xs), min(ys), max(xs), max(ys)], parts[8]
