"""GQA: questions about scenes, with the objects they are about where the scene graphs are there.

val_balanced_questions.json (or testdev, train), val_sceneGraphs.json, images/*.jpg
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, collect
from arr_coc.evaluation.readers.files import entries, find, finder, load


def gqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("*_balanced_questions.json", "*_all_questions.json"), "GQA")
    questions = load(path)
    if not isinstance(questions, dict):
        raise DataError(f"expected questions by their number in {str(path)!r}")
    split = path.name.split("_")[0]
    scenes: dict[str, Any] = {}
    for place in folder.rglob(f"{split}_sceneGraphs.json"):
        scenes = load(place)

    def convert(one: dict[str, Any]) -> dict[str, Any]:
        image = str(one["imageId"])
        return {
            "image": f"{image}.jpg",
            "question": one["question"],
            "answer": one.get("answer", ()),
            "kind": (one.get("types") or {}).get("structural", "question"),
            "evidence": _evidence(one.get("annotations") or {}, scenes.get(image, {}).get("objects", {})),
        }

    return collect("GQA", entries(questions.values(), convert), finder(folder), limit, metric="vqa", where="question")


def _evidence(said: dict[str, Any], objects: dict[str, Any]) -> list[list[list[float]]]:
    """The objects that question and answer name, all of them needed."""
    names = {name for part in ("question", "answer", "fullAnswer") for name in (said.get(part) or {}).values()}
    boxes = [
        [o["x"], o["y"], o["x"] + o["w"], o["y"] + o["h"]] for o in (objects[n] for n in sorted(names) if n in objects)
    ]
    return [boxes] if boxes else []
