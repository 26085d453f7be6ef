"""VQAv2, TextVQA, VizWiz and DocVQA: questions with the answers of several people.

VQAv2:   v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json, val2014/COCO_val2014_*.jpg
TextVQA: TextVQA_0.5.1_val.json, train_images/*.jpg
VizWiz:  Annotations/val.json, val/VizWiz_val_*.jpg
DocVQA:  val_v1.0.json (or val_v1.0_withQT.json), documents/*.png
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, Entry, collect
from arr_coc.evaluation.readers.files import find, finder, listed, load


def vqav2(folder: Path, limit: int | None = None) -> Data:
    asked = find(folder, ("v2_OpenEnded_*_questions.json", "OpenEnded_*_questions.json"), "VQAv2")
    split = re.sub(r"^(v2_)?OpenEnded_|_questions\.json$", "", asked.name)  # mscoco_val2014
    replies = find(folder, (f"*{split}_annotations.json",), "VQAv2")
    known = {reply.get("question_id"): reply for reply in listed(load(replies), "annotations", replies)}
    part = split.removeprefix("mscoco_")

    def entries() -> Iterator[Entry]:
        for number, question in enumerate(listed(load(asked), "questions", asked), start=1):
            reply = known.get(question.get("question_id"))
            if reply is None:
                yield Entry(number, None, f"question {question.get('question_id')} has no annotation")
                continue
            name = f"COCO_{part}_{int(question['image_id']):012d}.jpg"
            yield Entry(number, _fields(name, question.get("question"), reply, reply.get("answer_type", "question")))

    return collect("VQAv2", entries(), finder(folder), limit, metric="vqa", where="question")


def textvqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("TextVQA_*_val.json", "TextVQA_*_train.json"), "TextVQA")
    entries = (
        Entry(number, _fields(f"{one.get('image_id')}.jpg", one.get("question"), one, "text"))
        for number, one in enumerate(listed(load(path), "data", path), start=1)
    )
    return collect("TextVQA", entries, finder(folder), limit, metric="vqa", where="question")


def vizwiz(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("Annotations/val.json", "val.json", "Annotations/train.json", "train.json"), "VizWiz")
    found = load(path)
    if not isinstance(found, list):
        raise DataError(f"expected a list of questions in {str(path)!r}")
    entries = (
        Entry(number, _fields(one.get("image"), one.get("question"), one, str(one.get("answer_type", "question"))))
        for number, one in enumerate(found, start=1)
    )
    return collect("VizWiz", entries, finder(folder), limit, metric="vqa", where="question")


def docvqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("val_v1.0*.json", "train_v1.0*.json"), "DocVQA")

    def entries() -> Iterator[Entry]:
        for number, one in enumerate(listed(load(path), "data", path), start=1):
            kinds = one.get("question_types") or ["question"]
            yield Entry(number, _fields(one.get("image"), one.get("question"), one, str(kinds[0])))

    return collect("DocVQA", entries(), finder(folder), limit, metric="anls", where="question")


def _fields(image: Any, question: Any, reply: dict[str, Any], kind: str) -> dict[str, Any]:
    """`answers` come as texts, or as objects with a text and how sure somebody was of it."""
    answers = [one.get("answer") if isinstance(one, dict) else one for one in reply.get("answers") or []]
    return {"image": image, "question": question, "answers": answers, "kind": kind}
