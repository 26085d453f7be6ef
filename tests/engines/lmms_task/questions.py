"""Functions of the task arr_coc_test."""

from __future__ import annotations

from typing import Any

from PIL import Image


def visual(doc: dict[str, Any]) -> list[Image.Image]:
    with Image.open(doc["image"]) as image:
        return [image.convert("RGB")]


def text(doc: dict[str, Any], lmms_eval_specific_kwargs: Any = None) -> str:
    return doc["question"]


def results(doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
    return {"exact": float(answers[0].strip() == doc["answer"])}
