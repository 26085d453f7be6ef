"""A comparison as a folder: `index.html` to look at and `report.json` to work with; and the changes between two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation import statistics
from arr_coc.evaluation.report import RIGHT, Report, Row, Rows, filter_rows, scores_of
from arr_coc.files import replacing

PAGE, NUMBERS = "index.html", "report.json"
ANSWER_KEYS = ("question", "kind", "selector", "budget", "seed", "said", "accuracy", "recall", "kept")


@dataclass(frozen=True)
class SavedReport:
    """The content of a report's folder: all numbers, and the page."""

    folder: Path
    numbers: Mapping[str, Any]
    page: str

    @property
    def title(self) -> str:
        return f"{self.numbers['model']} on {self.numbers['data']}"


@dataclass(frozen=True)
class ReportChange:
    """One selector at one budget in two runs: means, the paired difference with its 95% interval, and a p-value."""

    selector: str
    budget: str
    on: str  # accuracy, or evidence recall if nothing was answered
    first: float | None
    second: float | None
    difference: float | None  # None: no picture is in both
    ci: tuple[float, float] | None
    p: float | None
    pictures: int  # in both

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_report(report: Report, page: str, folder: Path) -> Path:
    """Write `index.html` and `report.json`; each file is replaced at once. Returns the page's path."""
    answers = {name: [{key: row.get(key) for key in ANSWER_KEYS} for row in rows] for name, rows in report.rows.items()}
    numbers = json.dumps(report.to_dict() | {"answers": answers}) + "\n"
    for name, text in ((PAGE, page), (NUMBERS, numbers)):
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ArrCocError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    return folder / PAGE


def read_report(folder: str | Path) -> SavedReport:
    """Read what `arr-coc eval --report` wrote into a folder."""
    place = Path(folder)
    expected = "expected a folder that arr-coc eval --report wrote"
    if not place.is_dir():
        raise DataError(f"{expected}, and there is no folder {str(place)!r}")
    missing = [name for name in (PAGE, NUMBERS) if not (place / name).is_file()]
    if missing:
        raise DataError(f"{expected}, and {str(place)!r} has no {' and no '.join(missing)}")
    try:
        numbers = json.loads((place / NUMBERS).read_text(encoding="utf-8"))
        page = (place / PAGE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the report in {str(place)!r}: {error}") from None
    if not isinstance(numbers, dict) or not {"model", "data", "records", "answers"} <= numbers.keys():
        raise DataError(
            f"expected model, data, records and answers in {str(place / NUMBERS)!r}: write the report again"
        )
    return SavedReport(place, numbers, page)


def compare_reports(first: SavedReport, second: SavedReport, seed: int = 0) -> list[ReportChange]:
    """What changed from the first run to the second, for every selector and budget that both have."""
    records = [{(r["selector"], r["budget"]): r for r in one.numbers["records"]} for one in (first, second)]
    both = [key for key in records[0] if key in records[1]]
    if not both:
        raise DataError(
            f"expected two reports with a selector and budget in common, got {first.title!r} and {second.title!r}"
        )
    answered = any(some[key]["accuracy"] is not None for key in both for some in records)
    score, shown = ("accuracy", "accuracy") if answered else ("recall", "evidence_recall")
    changes = []
    for key in both:
        old, new = (
            scores_of(filter_rows(one.numbers["answers"], selector=key[0], budget=key[1]), score)
            for one in (first, second)
        )
        delta, bounds, p = statistics.difference(new, old, seed) or (None, None, None)
        shared = [name for name in new if name in old and len(old[name]) == len(new[name]) > 0]
        was, now = (some[key][shown] for some in records)
        changes.append(ReportChange(*key, shown, was, now, delta, bounds, p, len(shared)))
    return changes


def changed_answers(first: SavedReport, second: SavedReport) -> list[dict[str, Any]]:
    """The answers that are right in only one of two runs."""
    found = []
    before = _first_seed(first.numbers["answers"])
    for key, row in _first_seed(second.numbers["answers"]).items():
        old = before.get(key)
        if old is None or old["accuracy"] is None or row["accuracy"] is None:
            continue
        better = row["accuracy"] >= RIGHT
        if better != (old["accuracy"] >= RIGHT):
            picture, _, selector, budget = key
            where = {"picture": picture, "kind": row["kind"], "selector": selector, "budget": budget}
            found.append(where | {"first": old["said"], "second": row["said"], "better": better})
    return found


def _first_seed(answers: Rows) -> dict[tuple[str, int, str, str], Row]:
    """Each question's answer by each selector; of several seeds the first."""
    found: dict[tuple[str, int, str, str], Row] = {}
    for picture, rows in answers.items():
        for row in rows:
            found.setdefault((picture, row["question"], row["selector"], row["budget"]), row)
    return found
