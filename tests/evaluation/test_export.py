"""A report as a folder: written, read, and compared with another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from arr_coc.errors import DataError
from arr_coc.evaluation import Report, evaluate
from arr_coc.evaluation.export import NUMBERS, changed_answers, compare_reports, read_report
from tests.adapters.tiny_vlm import wrapped


@pytest.fixture
def report(folder: Callable[[int], Path]) -> Report:
    return evaluate(wrapped("qwen2_vl"), folder(3), ["uniform", "random"], ["50%", "25%"], tokens=3, seeds=1)


def test_a_folder_holds_the_page_and_all_numbers(report: Report, tmp_path: Path) -> None:
    report.page(tmp_path / "out")
    found = read_report(tmp_path / "out")
    assert found.title == f"{report.model} on data"
    assert found.numbers["records"] == json.loads(json.dumps(report.to_dict()))["records"]
    assert sum(len(rows) for rows in found.numbers["answers"].values()) == sum(len(r) for r in report.rows.values())
    assert found.page.startswith("<!doctype html>")


def test_a_run_compared_with_itself_and_with_a_better_one(report: Report, tmp_path: Path) -> None:
    report.page(tmp_path / "old")
    better = {
        name: [dict(row) | {"accuracy": 1.0, "said": "x"} if row["selector"] == "uniform" else row for row in rows]
        for name, rows in report.rows.items()
    }
    replace(report, rows=better).page(tmp_path / "new")
    old, new = read_report(tmp_path / "old"), read_report(tmp_path / "new")
    assert all(one.difference == 0 and one.pictures == 3 for one in compare_reports(old, old))
    assert changed_answers(old, old) == []
    changes = {(one.selector, one.budget): one for one in compare_reports(old, new)}
    assert changes["uniform", "50%"].difference == 1
    assert changes["uniform", "50%"].ci == (1, 1)
    assert changes["random", "25%"].difference == 0
    assert len(changed_answers(old, new)) == 12  # two questions about each of three pictures, at two budgets
    assert all(one["better"] for one in changed_answers(old, new))


def test_folders_without_a_report_are_refused(report: Report, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        read_report(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no index\.html and no report\.json"):
        read_report(tmp_path)
    report.page(tmp_path / "out")
    for text, said in (("{", "cannot read"), ("[]", "expected model, data")):
        (tmp_path / "out" / NUMBERS).write_text(text)
        with pytest.raises(DataError, match=said):
            read_report(tmp_path / "out")


def test_reports_without_a_common_selector_are_refused(report: Report, tmp_path: Path) -> None:
    report.page(tmp_path / "old")
    others = tuple(dict(record) | {"budget": "1%"} for record in report.records)
    replace(report, records=others).page(tmp_path / "new")
    with pytest.raises(DataError, match="in common"):
        compare_reports(read_report(tmp_path / "old"), read_report(tmp_path / "new"))
