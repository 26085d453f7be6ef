"""RefCOCO, RefCOCO+ and RefCOCOg: a thing described in words, and its box. There is nothing to answer: the box is evidence.

refcoco/refs(unc).p, refcoco/instances.json, COCO_train2014_*.jpg
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, collect
from arr_coc.evaluation.readers.files import PREFERRED, entries, find, finder, listed, load
from arr_coc.evaluation.shown import Broken


class _Plain(pickle.Unpickler):
    """Only lists, dicts, texts and numbers: a pickle that wants more could run anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants to import {module}.{name}")


def refcoco(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("refs(unc).p", "refs(umd).p", "refs(google).p", "refs*.p"), "RefCOCO")
    place = path.parent / "instances.json"
    instances = load(place if place.is_file() else find(folder, ("instances.json",), "RefCOCO"))
    try:
        with path.open("rb") as file:
            refs = _Plain(file, encoding="latin1").load()  # they were written by Python 2
        splits = {ref["split"] for ref in refs}
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(f"expected the pickled references of RefCOCO in {str(path)!r} ({error})") from None
    split = next((one for one in PREFERRED if one in splits), None)
    names = {one["id"]: one["file_name"] for one in listed(instances, "images", place)}
    boxes = {one["id"]: one["bbox"] for one in listed(instances, "annotations", place)}

    def convert(pair: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
        ref, sentence = pair
        if ref["ann_id"] not in boxes or ref["image_id"] not in names:
            raise Broken(f"reference {ref.get('ref_id')} has no box or picture in instances.json")
        x, y, wide, high = boxes[ref["ann_id"]]
        return {
            "image": names[ref["image_id"]],
            "question": sentence.get("raw") or sentence["sent"],
            "kind": "reference",
            "evidence": [[[x, y, x + wide, y + high]]],
        }

    pairs = ((ref, one) for ref in refs if ref["split"] == split or split is None for one in ref.get("sentences", ()))
    return collect("RefCOCO", entries(pairs, convert), finder(folder), limit, where="sentence")
