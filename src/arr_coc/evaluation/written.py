"""A comparison as a folder: a page to look at and `report.json` to go on working with; and two such folders beside each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation import statistics

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

PAGE, NUMBERS = "index.html", "report.json"
KEPT = ("question", "kind", "selector", "budget", "seed", "said", "accuracy", "recall", "kept")  # of every answer


@dataclass(frozen=True)
class Written:
    """What a folder holds: all numbers, and the page."""

    folder: Path
    numbers: Mapping[str, Any]
    page: str

    @property
    def title(self) -> str:
        return f"{self.numbers['model']} on {self.numbers['data']}"


@dataclass(frozen=True)
class Change:
    """One selector at one budget in two runs: means, the paired difference with its 95% interval, and a p-value."""

    selector: str
    budget: str
    on: str  # accuracy, or evidence recall where nothing was answered
    first: float | None
    second: float | None
    difference: float | None  # None: no picture is in both
    ci: tuple[float, float] | None
    p: float | None
    pictures: int  # that both have

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def write_numbers(report: Report, folder: Path) -> Path:
    """Write `report.json` into the folder, at once."""
    answers = {name: [{key: row.get(key) for key in KEPT} for row in rows] for name, rows in report.rows.items()}
    path = folder / NUMBERS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        spare = path.with_suffix(".new")
        spare.write_text(json.dumps(report.to_dict() | {"answers": answers}) + "\n", encoding="utf-8")
        spare.replace(path)
    except OSError as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    return path


def read(folder: str | Path) -> Written:
    """What `arr-coc eval --report` wrote into a folder."""
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"expected a folder that arr-coc eval --report wrote, and there is no folder {str(place)!r}")
    missing = [name for name in (PAGE, NUMBERS) if not (place / name).is_file()]
    if missing:
        raise DataError(
            f"expected a folder that arr-coc eval --report wrote, and {str(place)!r} has no {' and no '.join(missing)}"
        )
    try:
        numbers = json.loads((place / NUMBERS).read_text(encoding="utf-8"))
        page = (place / PAGE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the report in {str(place)!r}: {error}") from None
    known = isinstance(numbers, dict) and {"model", "data", "records", "answers"} <= numbers.keys()
    if not known:
        raise DataError(f"expected model, data, records and answers in {str(place / NUMBERS)!r}: write the report anew")
    return Written(place, numbers, page)


def beside(first: Written, second: Written, seed: int = 0) -> list[Change]:
    """What changed from the first run to the second, for every selector and budget that both have."""
    records = [{(r["selector"], r["budget"]): r for r in one.numbers["records"]} for one in (first, second)]
    both = [key for key in records[0] if key in records[1]]
    if not both:
        raise DataError(
            f"expected two reports with a selector and budget in common, got {first.title!r} and {second.title!r}"
        )
    answered = any(records[n][key]["accuracy"] is not None for key in both for n in (0, 1))
    on, shown = ("accuracy", "accuracy") if answered else ("recall", "evidence_recall")
    changes = []
    for key in both:
        old, new = (_scores(one.numbers["answers"], *key, on) for one in (first, second))
        found = statistics.difference(new, old, seed)
        shared = [name for name in new if name in old and len(old[name]) == len(new[name]) > 0]
        delta, bounds, p = (None, None, None) if found is None else found
        was, now = (some[key][shown] for some in records)
        changes.append(Change(*key, shown, was, now, delta, bounds, p, len(shared)))
    return changes


def turned(first: Written, second: Written) -> list[dict[str, Any]]:
    """The answers that are right in one run only."""
    found = []
    theirs = _by_question(first.numbers["answers"])
    for key, row in _by_question(second.numbers["answers"]).items():
        old = theirs.get(key)
        if (
            old is None
            or None in (old["accuracy"], row["accuracy"])
            or (old["accuracy"] >= 0.5) == (row["accuracy"] >= 0.5)
        ):
            continue
        picture, _, selector, budget = key
        found.append({
            "picture": picture, "kind": row["kind"], "selector": selector, "budget": budget, "first": old["said"],
            "second": row["said"], "better": row["accuracy"] >= 0.5,
        })  # fmt: skip
    return found


Answers = Mapping[str, Sequence[Mapping[str, Any]]]  # picture -> its rows


def _by_question(answers: Answers) -> dict[tuple[str, int, str, str], Mapping[str, Any]]:
    """Each question's answer by each selector; of several seeds the first."""
    found: dict[tuple[str, int, str, str], Mapping[str, Any]] = {}
    for picture, rows in answers.items():
        for row in rows:
            found.setdefault((picture, row["question"], row["selector"], row["budget"]), row)
    return found


def _scores(answers: Answers, selector: str, budget: str, on: str) -> dict[str, list[float]]:
    from arr_coc.evaluation.report import scores

    mine = {
        picture: [row for row in rows if (row["selector"], row["budget"]) == (selector, budget)]
        for picture, rows in answers.items()
    }
    return {picture: list(values) for picture, values in scores(mine, on).items()}
