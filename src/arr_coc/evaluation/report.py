"""The outcome of a comparison: one record for each selector and budget, as a table, a plot, JSON or a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from arr_coc.evaluation import failures, statistics
from arr_coc.evaluation.contestants import DENSE, ORACLE
from arr_coc.evaluation.data import Data
from arr_coc.evaluation.measuring import STAGES, Rules
from arr_coc.evaluation.statistics import Scores

MOST_FALLBACKS = 0.01  # a row with a larger share is not a result of its selector
SCORES = ("accuracy", "exact", "anls", "vqa", "recall", "any_hit", "pointing", "chance", "kept", "read", "encoded")

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]  # picture -> one row for each setting and question


@dataclass(frozen=True, eq=False)
class Report:
    """What was found. `records` has a dict for each selector and budget, `rows` every single answer by picture."""

    model: str
    data: Data
    records: tuple[dict[str, Any], ...]
    rows: Rows = field(repr=False)
    rules: Rules = field(repr=False, default=Rules())
    resumed: int = 0  # pictures that an interrupted run had done

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines of the data that could not be used."""
        return self.data.problems

    def record(self, selector: str, budget: str | int) -> dict[str, Any]:
        for one in self.records:
            if (one["selector"], one["budget"]) == (selector, str(budget)):
                return one
        raise KeyError(f"{selector} at {budget}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data.name,
            "metric": self.data.metric,
            "images": [picture.name for picture in self.data.pictures],
            "questions": self.data.questions,
            "glance": str(self.rules.glance),
            "seed": self.rules.seed,
            "records": [dict(one) for one in self.records],
            "problems": list(self.data.problems),
            "notes": list(self.data.notes),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def table(self, kinds: bool = False) -> str:
        """Markdown: all measures, or (`kinds`) accuracy and evidence recall by kind of question."""
        from arr_coc.evaluation.table import by_kind, main

        return by_kind(self) if kinds else main(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Accuracy against tokens read and against time, with intervals; needs matplotlib."""
        from arr_coc.evaluation.plots import save

        save(self, Path(path))

    def page(self, folder: str | os.PathLike[str]) -> Path:
        """One self-contained HTML page: who leads, plots, all measures, the worst and best cases with their heat.

        Beside it goes `report.json`: all numbers and every answer, for `arr_coc.evaluation.written`.
        """
        from arr_coc.evaluation.page import page, write
        from arr_coc.evaluation.written import write_numbers

        path = write(page(self), Path(folder))
        write_numbers(self, Path(folder))
        return path


def report(model: str, data: Data, rows: Rows, rules: Rules, names: Sequence[str], resumed: int = 0) -> Report:
    """Every row's answers put together; pictures in the order of the data, selectors in the order they were named."""
    ordered = {picture.name: rows[picture.name] for picture in data.pictures}
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for picture, some in ordered.items():
        for row in some:
            groups.setdefault((row["selector"], row["budget"]), {}).setdefault(picture, []).append(row)
    budgets = list(dict.fromkeys(budget for _, budget in groups))
    order = [
        (name, budget) for budget in budgets for name in dict.fromkeys((DENSE, *names)) if (name, budget) in groups
    ]
    records = {key: _record(*key, groups[key], rules) for key in order}
    for key in order:
        records[key]["versus"] = _versus(key, records, groups, rules.seed)
        records[key]["outcomes"] = failures.shares(groups[key], ordered)
    if not rules.answers:  # nothing was answered, so that part of the time is not an answer's
        for record in records.values():
            record |= dict.fromkeys(("prefill_ms", "decode_ms", "answer_ms"))
    return Report(model, data, tuple(records.values()), ordered, rules, resumed)


def _record(selector: str, budget: str, rows: Rows, rules: Rules) -> dict[str, Any]:
    seed = rules.seed
    flat = [row for some in rows.values() for row in some]
    found: dict[str, Any] = {"selector": selector, "budget": budget, **_scores(rows, seed)}
    seeds = sorted({row["seed"] for row in flat})
    by_seed = [{name: [r for r in some if r["seed"] == one] for name, some in rows.items()} for one in seeds]
    wrong = [row["fallback"] for row in flat if row["fallback"]]
    # Times are a picture's, the same in all of its rows of one seed; not every picture is timed.
    firsts = [row for some in rows.values() for row in some if row["question"] == some[0]["question"]]
    times = [row["ms"] for row in firsts if row["ms"] is not None]
    moved = [row["moved"] for some in rows.values() for row in some[:1] if row["moved"] is not None]
    peaks = [row["peak_mb"] for row in flat if row["peak_mb"] is not None]
    kinds = sorted({row["kind"] for row in flat})
    return found | {
        "images": len(rows),
        "seeds": len(seeds),
        "spread": _spread(by_seed, "accuracy"),
        "evidence_recall_spread": _spread(by_seed, "recall"),
        "sensitivity": _round(fmean(moved)) if moved else None,
        "fallbacks": _round(len(wrong) / len(flat)),
        "fallback_reason": wrong[0] if wrong else "",
        "valid": len(wrong) <= MOST_FALLBACKS * len(flat),
        "over_budget": any(row["over"] for row in flat),
        "tokens": {
            "all": _round(fmean(row["all"] for row in flat)),
            "encoded": found["encoded"],
            "kept": found["kept"],
            "read": found["read"],
        },
        **{f"{stage}_ms": _round(median(one[stage] for one in times), 2) if times else None for stage in STAGES},
        "answer_ms": _round(median(sum(one.values()) for one in times), 2) if times else None,
        "timed": len(times),
        "peak_mb": _round(median(peaks), 1) if peaks else None,
        "notes": sorted({note for row in flat for note in row["notes"]})[:5],
        "by_kind": {
            kind: _scores({name: [r for r in some if r["kind"] == kind] for name, some in rows.items()}, seed)
            for kind in kinds
        },
    }


def _spread(by_seed: Sequence[Rows], name: str) -> float | None:
    """The standard deviation of the seeds' means; None for a single seed."""
    means = [statistics.mean(scores(rows, name)) for rows in by_seed]
    known = [mean for mean in means if mean is not None]
    return _round(stdev(known)) if len(known) > 1 else None


def _scores(rows: Rows, seed: int) -> dict[str, Any]:
    """Means over questions, with intervals over pictures where they are reported."""
    means = {name: statistics.mean(scores(rows, name)) for name in SCORES}
    chance = means["chance"]
    recall = means["recall"]
    return {
        "n": sum(len({row["question"] for row in some}) for some in rows.values()),
        "kept": _round(means["kept"], 2),
        "read": _round(means["read"], 2),
        "encoded": _round(means["encoded"], 2),
        "accuracy": _round(means["accuracy"]),
        "accuracy_ci": _pair(statistics.interval(scores(rows, "accuracy"), seed)),
        **{name: _round(means[name]) for name in ("exact", "anls", "vqa")},
        "evidence_recall": _round(recall),
        "evidence_recall_ci": _pair(statistics.interval(scores(rows, "recall"), seed)),
        "any_hit": _round(means["any_hit"]),
        "pointing": _round(means["pointing"]),
        "lift": _round(recall / chance) if recall is not None and chance else None,
    }


def scores(rows: Rows, name: str) -> Scores:
    """Each picture's questions' scores, averaged over seeds; questions without that score are left out."""
    found: dict[str, list[float]] = {}
    for picture, some in rows.items():
        by_question: dict[int, list[float]] = {}
        for row in some:
            if row.get(name) is not None:
                by_question.setdefault(row["question"], []).append(row[name])
        found[picture] = [fmean(values) for values in by_question.values()]
    return found


def _versus(
    key: tuple[str, str], records: Mapping[tuple[str, str], dict[str, Any]], groups: Mapping[tuple[str, str], Rows], seed: int
) -> dict[str, Any] | None:  # fmt: skip
    """A paired comparison with the best other selector at the same budget.

    Nobody competes with the oracle, nor with a row that broke its budget or is not its selector's own.
    """
    if key[0] in (DENSE, ORACLE):
        return None
    on, shown = ("accuracy", "accuracy") if records[key]["accuracy"] is not None else ("recall", "evidence_recall")
    peers = [
        other
        for other, record in records.items()
        if other[1] == key[1] and other != key and other[0] not in (DENSE, ORACLE) and record[shown] is not None
        if record["valid"] and not record["over_budget"]
    ]
    if not peers or records[key][shown] is None:
        return None
    best = max(peers, key=lambda other: records[other][shown])
    found = statistics.difference(scores(groups[key], on), scores(groups[best], on), seed)
    if found is None:
        return None
    delta, bounds, p = found
    return {"peer": best[0], "on": shown, "difference": _round(delta), "ci": _pair(bounds), "p": _round(p)}


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def _pair(bounds: Iterable[float] | None) -> list[float] | None:
    return None if bounds is None else [round(side, 4) for side in bounds]
