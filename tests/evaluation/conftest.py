"""Small folders of pictures and questions, runs with a tiny random model, and made-up rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from arr_coc.evaluation import Data, PictureQuestions, Report, Sample, evaluate
from arr_coc.evaluation.measure import EvalConfig, pack_cells, quantise
from arr_coc.evaluation.report import make_report
from tests.adapters.tiny_vlm import picture, wrapped

QUESTIONS = ("What?", "Who is it?")
FRAMES = [f"clip/{number}.png" for number in range(6)]
PICTURES = 20  # of a made-up report
EVIDENCE = (((0.0, 0.0, 20.0, 10.0),),)  # the first two of eight cells in a row
SAMPLE = Sample("What?", ("yes",), "kind", EVIDENCE)

Folder = Callable[[int], Path]


def write(folder: Path, lines: Sequence[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "samples.jsonl").write_text(text)
    return folder


def lines(names: Sequence[str]) -> list[dict[str, Any]]:
    """Two questions about each picture of 112 x 112 pixels, which tiny models see as 14 x 14 cells or so."""
    return [
        {"image": name, "question": question, "answer": "x", "kind": f"kind {number}",
         "width": 112, "height": 112, "evidence": [[[0, 0, 40, 40]], [[70, 70 - 30 * number, 110, 110]]]}
        for name in names for number, question in enumerate(QUESTIONS)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[int], Path]:
    """A folder of so many pictures with two questions each."""

    def make(count: int = 3) -> Path:
        names = [f"{number}.png" for number in range(count)]
        place = write(tmp_path / "data", lines(names))
        for number, name in enumerate(names):
            picture(112, 112, seed=number).save(place / name)
        return place

    return make


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder with a clip of six frames and a still picture."""
    (tmp_path / "clip").mkdir()
    for number, name in enumerate(FRAMES):
        picture(84, 56, seed=number).save(tmp_path / name)
    picture(84, 56).save(tmp_path / "still.png")
    return tmp_path


def run(
    data: Any,
    selectors: Any = ("all", "random", "uniform"),
    budgets: Any = ("25%",),
    family: str = "qwen2_vl",
    **options: Any,
) -> Report:
    return evaluate(wrapped(family), data, selectors, budgets, **({"tokens": 3, "seeds": 2} | options))


def untimed(report: Report) -> Any:
    """Everything that must be the same in every run."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items() if not k.endswith("ms") and k != "peak_mb"}
        return [clean(one) for one in value] if isinstance(value, list | tuple) else value

    return clean(report.to_dict()), clean(dict(report.rows))


def stop(done: int, total: int, what: str) -> None:
    """Interrupt a run in its second picture."""
    if done == 5:
        raise KeyboardInterrupt


def make_row(
    selector: str, right: float, keep: list[int], heat: list[float] | None = None, **more: Any
) -> dict[str, Any]:
    held = len({0, 1} & set(keep)) / 2
    ms = dict.fromkeys(("preprocess", "encode", "select", "prefill", "decode"), 1.0)
    made = {
        "selector": selector, "budget": "all" if selector == "all" else "25%", "seed": 0, "question": 0, "kind": "kind",
        "said": "yes" if right else "no", "kept": len(keep), "read": len(keep), "encoded": 8, "all": 8, "grid": [[1, 1, 8, 0, 0, 1, 1]],
        "over": False, "fallback": "", "notes": [], "exact": right, "anls": right, "vqa": right, "accuracy": right,
        "keep": pack_cells(torch.tensor(keep), 8), "recall": held, "any_hit": float(held > 0), "pointing": None,
        "chance": 0.25, "ms": ms, "peak_mb": None, "moved": None,
    }  # fmt: skip
    if heat is not None:
        made |= {"heat": quantise(torch.tensor(heat)), "heat_of": "relevance"}
    return made | more


def made_up(answers: dict[str, list[dict[str, Any]]]) -> Report:
    """`answers`: for each selector one row per picture."""
    image = Image.new("RGB", (80, 10), "white")
    pictures = tuple(PictureQuestions(f"{n}", image, (80, 10), (SAMPLE,)) for n in range(PICTURES))
    rows = {f"{n}": [some[n] for some in answers.values()] for n in range(PICTURES)}
    return make_report("model", Data("data", pictures), rows, EvalConfig(), list(answers))


def answering(selector: str, right: int, keep: list[int], **more: Any) -> list[dict[str, Any]]:
    return [make_row(selector, float(n < right), keep, **more) for n in range(PICTURES)]
