"""Results by kind of question, and their tables."""

import json
from pathlib import Path
from typing import Any

from arr_coc.evaluation.report import format_share
from recipes.reader import exam
from recipes.reader.export_exam import kind_of
from recipes.reader.validation import ValidationAnswer

DENSE = "dense"
CASES = {"pca": "PCA only", "lift": "lift trained", "language": "language model adapted"}
TOTALS = ("receipts: all", "drawings: all")

Report = dict[str, dict[str, Any]]  # kind of question -> exact, interval, similarity, count


def case(name: str, dims: int) -> str:
    """The key of a result, for `name` out of `CASES`."""
    return f"{dims} {name}"


def report(answers: list[ValidationAnswer]) -> Report:
    """Exact match with its 95% interval, for scanned receipts and for drawings: over all, then by kind."""
    scans: list[exam.Row] = []
    drawn: list[exam.Row] = []
    for one in answers:
        row: exam.Row = {"image": one.picture, "exact": one.right, "similarity": one.similarity}
        row["kind"] = f"{one.sheet}: {kind_of(one.question)}"
        (scans if one.sheet.startswith("receipts") else drawn).append(row)
    found: Report = {}
    for total, rows in zip(TOTALS, (scans, drawn), strict=True):
        kinds = exam.report(rows) if rows else {}
        if rows:
            found[total] = kinds.pop(exam.ALL)
        found |= kinds
    return found


def markdown(about: dict[str, Any], results: dict[str, Report]) -> str:
    """The results so far as tables: an overview, then every kind of question for each number of dimensions."""
    variance: dict[str, float] = about["variance"]
    totals = [total for total in TOTALS if total in results.get(DENSE, {})]
    lines = ["| dimensions | variance kept | read by | " + " | ".join(f"{t} [95%]" for t in totals) + " |"]
    lines.append("|" + "---|" * (3 + len(totals)))
    shown = [("all", "1", "the reader as it is", results.get(DENSE))]
    for dims, part in variance.items():
        shown += [(dims, f"{part:.3f}", title, results.get(case(name, int(dims)))) for name, title in CASES.items()]
    for dims, part_kept, title, found in shown:
        if found is not None:
            cells = [_exact(found.get(total)) for total in totals]
            lines.append(f"| {dims} | {part_kept} | {title} | " + " | ".join(cells) + " |")
    for dims, part in variance.items():
        columns = {"dense": results.get(DENSE)} | {t: results.get(case(n, int(dims))) for n, t in CASES.items()}
        there = {title: found for title, found in columns.items() if found is not None}
        if len(there) < 2:
            continue
        lines += ["", f"{dims} dimensions, {part:.3f} of the variance:", ""]
        lines += ["| question | of | " + " | ".join(there) + " |", "|" + "---|" * (2 + len(there))]
        for kind, first in next(iter(there.values())).items():
            cells = [_exact(found.get(kind)) for found in there.values()]
            lines.append(f"| {kind} | {first['count']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(folder: Path, about: dict[str, Any], results: dict[str, Report]) -> None:
    """Write `table.md` and `table.json` with the results so far."""
    (folder / "table.json").write_text(json.dumps(about | {"results": results}, indent=2) + "\n")
    (folder / "table.md").write_text(markdown(about, results))


def _exact(row: dict[str, Any] | None) -> str:
    return "" if row is None else format_share(row["exact"], row["interval"])
