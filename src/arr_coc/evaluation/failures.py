"""Why answers are wrong: the selector lost what was needed, or had it and the model erred, or the dense model errs as well.

| outcome | the answer is |
|---|---|
| right | right, or counted as at least half right |
| lost | wrong, and less than 80% of the cells that show the answer were kept |
| misread | wrong although they were kept |
| unknown | wrong, and nobody knows where the answer stands |
| dense too | wrong, and so is the dense model's, whatever was kept |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arr_coc.evaluation.contestants import DENSE

OUTCOMES = ("right", "lost", "misread", "unknown", "dense too")
ENOUGH = 0.8  # of the best evidence group's cells
HALF = 0.5  # from here on an answer counts as right, where scores are shares

Row = Mapping[str, Any]


def dense_rows(rows: Sequence[Row]) -> dict[int, Row]:
    """The dense model's rows about one picture, by question."""
    return {row["question"]: row for row in rows if row["selector"] == DENSE}


def outcome(row: Row, dense: Row | None) -> str | None:
    """Which of `OUTCOMES` an answer is; None where there is nothing to compare it with."""
    if row.get("accuracy") is None:
        return None
    if row["accuracy"] >= HALF:
        return "right"
    if dense is not None and dense is not row and dense["accuracy"] < HALF:
        return "dense too"
    if row.get("recall") is None:
        return "unknown"
    return "misread" if row["recall"] >= ENOUGH else "lost"


def shares(rows: Mapping[str, Sequence[Row]], everyone: Mapping[str, Sequence[Row]]) -> dict[str, float] | None:
    """The share of each outcome in one selector's `rows`, beside the rows of `everyone` about the same pictures."""
    found = []
    for picture, some in rows.items():
        dense = dense_rows(everyone[picture])
        found += [outcome(row, dense.get(row["question"])) for row in some]
    judged = [one for one in found if one is not None]
    if not judged:
        return None
    return {name: round(judged.count(name) / len(judged), 4) for name in OUTCOMES if name in judged or name == "right"}
