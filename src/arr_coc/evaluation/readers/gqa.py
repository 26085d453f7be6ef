"""GQA: questions about scenes, with the objects they are about where the scene graphs are there.

val_balanced_questions.json (or testdev, train), val_sceneGraphs.json, images/*.jpg
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, Entry, collect
from arr_coc.evaluation.readers.files import find, finder, load


def gqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("*_balanced_questions.json", "*_all_questions.json"), "GQA")
    questions = load(path)
    if not isinstance(questions, dict):
        raise DataError(f"expected questions by their number in {str(path)!r}")
    split = path.name.split("_")[0]
    scenes: dict[str, Any] = {}
    for place in folder.rglob(f"{split}_sceneGraphs.json"):
        scenes = load(place)

    def entries() -> Iterator[Entry]:
        for number, one in enumerate(questions.values(), start=1):
            image = str(one.get("imageId"))
            evidence = _evidence(one.get("annotations") or {}, scenes.get(image, {}).get("objects", {}))
            kind = (one.get("types") or {}).get("structural", "question")
            yield Entry(number, {
                "image": f"{image}.jpg", "question": one.get("question"), "answer": one.get("answer", ()), "kind": kind,
                "evidence": evidence,
            })  # fmt: skip

    return collect("GQA", entries(), finder(folder), limit, metric="vqa", where="question")


def _evidence(said: dict[str, Any], objects: dict[str, Any]) -> list[list[list[float]]]:
    """The objects that question and answer name, all of them needed."""
    names = {name for part in ("question", "answer", "fullAnswer") for name in (said.get(part) or {}).values()}
    boxes = [
        [o["x"], o["y"], o["x"] + o["w"], o["y"] + o["h"]] for o in (objects[n] for n in sorted(names) if n in objects)
    ]
    return [boxes] if boxes else []
