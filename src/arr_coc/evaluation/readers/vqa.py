"""VQAv2, TextVQA, VizWiz and DocVQA: questions with the answers of several people.

VQAv2:   v2_OpenEnded_mscoco_val2014_questions.json, v2_mscoco_val2014_annotations.json, val2014/COCO_val2014_*.jpg
TextVQA: TextVQA_0.5.1_val.json, train_images/*.jpg
VizWiz:  Annotations/val.json, val/VizWiz_val_*.jpg
DocVQA:  val_v1.0.json (or val_v1.0_withQT.json), documents/*.png
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.evaluation.data import Data, collect
from arr_coc.evaluation.readers.files import entries, find, finder, listed, load
from arr_coc.evaluation.shown import Broken


def vqav2(folder: Path, limit: int | None = None) -> Data:
    asked = find(folder, ("v2_OpenEnded_*_questions.json", "OpenEnded_*_questions.json"), "VQAv2")
    split = re.sub(r"^(v2_)?OpenEnded_|_questions\.json$", "", asked.name)  # mscoco_val2014
    replies = find(folder, (f"*{split}_annotations.json",), "VQAv2")
    known = {reply.get("question_id"): reply for reply in listed(load(replies), "annotations", replies)}
    part = split.removeprefix("mscoco_")

    def convert(question: dict[str, Any]) -> dict[str, Any]:
        reply = known.get(question["question_id"])
        if reply is None:
            raise Broken(f"question {question['question_id']} has no annotation")
        name = f"COCO_{part}_{int(question['image_id']):012d}.jpg"
        return _fields(name, question, reply, reply.get("answer_type"))

    found = entries(listed(load(asked), "questions", asked), convert)
    return collect("VQAv2", found, finder(folder), limit, metric="vqa", where="question")


def textvqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("TextVQA_*_val.json", "TextVQA_*_train.json"), "TextVQA")
    found = entries(listed(load(path), "data", path), lambda one: _fields(f"{one['image_id']}.jpg", one, one, "text"))
    return collect("TextVQA", found, finder(folder), limit, metric="vqa", where="question")


def vizwiz(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("Annotations/val.json", "val.json", "Annotations/train.json", "train.json"), "VizWiz")
    raws = load(path)
    if not isinstance(raws, list):
        raise DataError(f"expected a list of questions in {str(path)!r}")
    found = entries(raws, lambda one: _fields(one["image"], one, one, one.get("answer_type")))
    return collect("VizWiz", found, finder(folder), limit, metric="vqa", where="question")


def docvqa(folder: Path, limit: int | None = None) -> Data:
    path = find(folder, ("val_v1.0*.json", "train_v1.0*.json"), "DocVQA")
    found = entries(
        listed(load(path), "data", path),
        lambda one: _fields(one["image"], one, one, (one.get("question_types") or [None])[0]),
    )
    return collect("DocVQA", found, finder(folder), limit, metric="anls", where="question")


def _fields(image: str, asked: dict[str, Any], reply: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """`answers` come as texts, or as objects with a text and how sure somebody was of it."""
    answers = [one["answer"] if isinstance(one, dict) else one for one in reply.get("answers") or []]
    return {"image": image, "question": asked["question"], "answers": answers, "kind": kind or "question"}
