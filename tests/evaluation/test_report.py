"""The page's sentences, on made-up answers: who leads, whether that is decided, and why a case failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from arr_coc.evaluation import Report, page
from arr_coc.evaluation.data import Data, PictureQuestions, Sample
from arr_coc.evaluation.measure import EvalConfig, pack_cells, quantise
from arr_coc.evaluation.report import make_report, rank_records, summarise

PICTURES = 20
EVIDENCE = (((0.0, 0.0, 20.0, 10.0),),)  # the first two of eight cells in a row
SAMPLE = Sample("What?", ("yes",), "kind", EVIDENCE)


def row(selector: str, right: float, keep: list[int], heat: list[float] | None = None, **more: Any) -> dict[str, Any]:
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
    """`answers`: for each selector one row a picture."""
    image = Image.new("RGB", (80, 10), "white")
    pictures = tuple(PictureQuestions(f"{n}", image, (80, 10), (SAMPLE,)) for n in range(PICTURES))
    rows = {f"{n}": [some[n] for some in answers.values()] for n in range(PICTURES)}
    return make_report("model", Data("data", pictures), rows, EvalConfig(), list(answers))


def answering(selector: str, right: int, keep: list[int], **more: Any) -> list[dict[str, Any]]:
    return [row(selector, float(n < right), keep, **more) for n in range(PICTURES)]


def test_who_leads_and_whether_it_is_decided() -> None:
    found = made_up({
        "all": answering("all", 20, list(range(8))), "good": answering("good", 16, [0, 1]),
        "poor": answering("poor", 2, [6, 7]), "oracle": answering("oracle", 19, [0, 1]),
        "shaky": answering("shaky", 20, [0, 1], fallback="RuntimeError: no"),
    })  # fmt: skip
    assert [record["selector"] for record in rank_records(found, "25%")] == ["good", "poor"]  # none that is invalid
    ((budget, said),) = summarise(found)
    assert budget == "25%"
    for words in (
        "good leads with .80 [",
        "80% of the dense model's 1.00",
        "+0.70 [",
        "to poor (p < .001)",
        "reaches .95",
    ):
        assert words in said
    assert "decide" not in said


@pytest.mark.parametrize(
    ("others", "words"), [(15, "which 20 pictures do not decide"), (16, "other is level with it"), (0, "+0.80 [")]
)
def test_what_is_not_decided_is_said(others: int, words: str) -> None:
    found = made_up({"one": answering("one", 16, [0, 1]), "other": answering("other", others, [0, 1])})
    assert words in summarise(found)[0][1]


def test_nobody() -> None:
    found = made_up({"one": answering("one", 0, [6]), "other": answering("other", 0, [7])})
    assert summarise(found) == [("25%", "no selector gets any right.")]


PICTURE = PictureQuestions("p", Path("p"), (80, 10), (SAMPLE,))
DENSE = row("all", 1.0, list(range(8)))


@pytest.mark.parametrize(
    ("answer", "dense", "words"),
    [
        (row("x", 0.0, [6, 7]), DENSE, "None of the 2 cells that show the answer was kept. The dense model is right."),
        (row("x", 0.0, [1, 7]), None, "1 of the 2 cells that show the answer was kept."),
        (row("x", 0.0, [0, 1]), DENSE, "All 2 cells that show the answer were kept. Enough to read from: the dense"),
        (row("x", 0.0, [0, 1]), DENSE | {"accuracy": 0.0, "said": "nay"}, "The dense model errs as well: 'nay'."),
        (row("x", 1.0, [0, 1]), DENSE, "All 2 cells that show the answer were kept."),
        (row("x", 0.0, [6], fallback="RuntimeError: no"), DENSE, "The selector failed, and evenly spaced cells"),
        (row("x", 0.0, [6], [0.2, 0.1, 0.9, 0.8, 0, 0, 1, 0]), DENSE, "the best of them is number 4 of 8."),
        (row("x", 0.0, [6], [0.5, 0, 0.5, 0.5, 0, 0, 1, 0]), DENSE, "the best of them is number 2 to 4 of 8."),
    ],
)
def test_why_a_case_failed(answer: dict[str, Any], dense: dict[str, Any] | None, words: str) -> None:
    assert words in page.explain_case((PICTURE, answer, dense))


def test_the_worst_are_those_that_the_dense_model_gets_right() -> None:
    answers = answering("x", 10, [6, 7])
    dense = [row("all", float(n in (12, 15)), list(range(8))) for n in range(PICTURES)]
    found = made_up({"all": dense, "x": answers})
    order = [picture.name for picture, _, _ in page.rank_cases(found, "x", "25%")]
    assert set(order[:2]) == {"12", "15"}
    assert set(order[10:]) == {str(n) for n in range(10)}
    record = found.record("x", "25%")
    assert record["outcomes"] == {"right": 0.5, "lost": 0.1, "dense too": 0.4}
