"""The result of a comparison: one record for each selector and budget, as tables, sentences, JSON, a plot or a page.

Each answer has one of these outcomes:

| outcome | the answer is |
|---|---|
| right | right, or scored at least 0.5 |
| lost | wrong, and less than 80% of the cells that show the answer were kept |
| misread | wrong although they were kept |
| unknown | wrong, and there is no evidence to compare with |
| dense too | wrong, and so is the dense model's answer |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from arr_coc.evaluation import statistics
from arr_coc.evaluation.data import Data
from arr_coc.evaluation.entries import DENSE, ORACLE
from arr_coc.evaluation.measure import STAGES, EvalConfig
from arr_coc.evaluation.statistics import Scores

MAX_FALLBACKS = 0.01  # a row with a larger share of fallbacks is not a result of its selector
SIGNIFICANT = 0.05  # a smaller p-value counts as decided
OUTCOMES = ("right", "lost", "misread", "unknown", "dense too")
ENOUGH_EVIDENCE = 0.8  # of the best evidence group's cells
RIGHT = 0.5  # from here on an answer counts as right, where scores are not 0 or 1
SCORES = ("accuracy", "exact", "anls", "vqa", "recall", "any_hit", "pointing", "chance", "kept", "read", "encoded")

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]  # picture -> one row for each trial and question
Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]


@dataclass(frozen=True, eq=False)
class Report:
    """`records` has a dict for each selector and budget, `rows` every single answer by picture."""

    model: str
    data: Data
    records: tuple[Record, ...]
    rows: Rows = field(repr=False)
    config: EvalConfig = field(repr=False, default=EvalConfig())
    resumed: int = 0  # pictures that an interrupted run had finished

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines of the data that could not be used."""
        return self.data.problems

    @property
    def main_metric(self) -> str:
        """The metric that ranks selectors: accuracy, or evidence recall if nothing was answered."""
        return "accuracy" if any(record["accuracy"] is not None for record in self.records) else "evidence_recall"

    @property
    def budgets(self) -> list[str]:
        """The budgets of all selectors but the dense model."""
        return list(dict.fromkeys(record["budget"] for record in self.records if record["selector"] != DENSE))

    @property
    def kinds(self) -> list[str]:
        """The kinds of questions."""
        return sorted({kind for record in self.records for kind in record["by_kind"]})

    @property
    def dense(self) -> Record | None:
        """The dense model's record."""
        return next((record for record in self.records if record["selector"] == DENSE), None)

    def at_budget(self, budget: str) -> list[Record]:
        """The records of a budget, except the dense model's."""
        return [record for record in self.records if record["budget"] == budget and record["selector"] != DENSE]

    def rank(self, budget: str) -> list[Record]:
        """The records that can win a budget, best first."""
        competing = [record for record in self.at_budget(budget) if _competes(record, self.main_metric)]
        return sorted(competing, key=lambda record: -record[self.main_metric])

    def record(self, selector: str, budget: str | int) -> Record:
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
            "glance": str(self.config.glance),
            "seed": self.config.seed,
            "records": [dict(one) for one in self.records],
            "problems": list(self.data.problems),
            "notes": list(self.data.notes),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def table(self, kinds: bool = False) -> str:
        """Markdown: all measures, or (`kinds`) accuracy and evidence recall by kind of question."""
        headings, cells = zip(*self.columns(kinds), strict=True)
        table = markdown_table(headings, list(zip(*cells, strict=True)))
        return table + "".join(f"\n{line}\n" for line in self.remarks() if not kinds)

    def columns(self, kinds: bool = False) -> list[tuple[str, list[str]]]:
        """Headings and cells of a table, without empty columns and without the metric that is shown as accuracy already."""
        duplicate = {"exact": "exact", "anls": "ANLS", "vqa": "VQA"}.get(self.data.metric)
        columns = _kind_columns(self) if kinds else [column for column in COLUMNS if column[0] != duplicate]
        filled = [(heading, [show(record) for record in self.records]) for heading, show in columns]
        return [(heading, cells) for heading, cells in filled if any(cells)]

    def summary(self) -> list[tuple[str, str]]:
        """For each budget a sentence: who leads, by how much, and whether that is decided."""
        metric = self.main_metric
        unit = "right" if metric == "accuracy" else "of the evidence"
        dense = self.dense
        sentences = []
        for budget in self.budgets:
            ranked = self.rank(budget)
            if not ranked:
                continue
            leader = ranked[0]
            if not leader[metric]:
                sentences.append((budget, f"no selector gets any {unit}."))
                continue
            text = f"{leader['selector']} leads with {format_share(leader[metric], leader[f'{metric}_ci'])} {unit}"
            if metric == "accuracy" and dense is not None and dense[metric]:
                text += f", {leader[metric] / dense[metric]:.0%} of the dense model's {format_share(dense[metric])}"
            if _reads_more(leader):
                text += f" (its layers read {leader['read'] / leader['tokens']['all']:.0%} of the cells on average)"
            text += _describe_lead(leader["versus"], len(self.data.pictures))
            oracle = next((r for r in self.records if (r["selector"], r["budget"]) == (ORACLE, budget)), None)
            if oracle is not None and oracle[metric] is not None:
                text += f". The oracle reaches {format_share(oracle[metric])}"
            sentences.append((budget, text + "."))
        return sentences

    def remarks(self) -> list[str]:
        """What a reader must know about single rows."""
        records, lines = self.records, []
        for r in records:
            if r["fallbacks"]:
                row = f"{r['selector']} at {r['budget']} fell back for {r['fallbacks']:.1%} of the questions"
                allowed = "within the 1% that is allowed"
                verdict = allowed if r["valid"] else "so the row is not a result of this selector"
                lines.append(f"{row}, {verdict}: {r['fallback_reason']}.")
        for r in records:
            if r["over_budget"]:
                notes = r["notes"] or ["it did not say why"]
                example = notes[0] if len(notes) == 1 else f"for example: {notes[0]}"
                lines.append(f"{r['selector']} at {r['budget']} read more than its budget ({example}).")
        lines += [
            f"{name} lets language layers read more cells than it keeps: it drops them there, or probes attention first."
            for name in dict.fromkeys(r["selector"] for r in records if _reads_more(r))
        ]
        if any(r["evidence_recall"] is not None for r in records):
            smaller = dict.fromkeys(r["selector"] for r in records if r["evidence_recall"] is None)
            lines += [f"{name} shows the whole picture smaller, so it has no evidence recall." for name in smaller]
        return lines

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Accuracy against tokens read and against time, with intervals; needs matplotlib."""
        from arr_coc.evaluation.plots import save_plot

        save_plot(self, Path(path))

    def page(self, folder: str | os.PathLike[str]) -> Path:
        """One self-contained HTML page: who leads, plots, all measures, the worst and best cases with their heat maps.

        `report.json` in the same folder has all numbers and every answer; `arr_coc.evaluation.export` reads both.
        """
        from arr_coc.evaluation.export import write_report
        from arr_coc.evaluation.page import render_report

        return write_report(self, render_report(self), Path(folder))


def make_report(
    model: str, data: Data, rows: Rows, config: EvalConfig, names: Iterable[str], resumed: int = 0
) -> Report:
    """Aggregate all rows; pictures in the order of the data, selectors in the order of `names`."""
    ordered = {picture.name: rows[picture.name] for picture in data.pictures}
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for picture, some in ordered.items():
        for row in some:
            groups.setdefault((row["selector"], row["budget"]), {}).setdefault(picture, []).append(row)
    budgets = list(dict.fromkeys(budget for _, budget in groups))
    order = [
        (name, budget) for budget in budgets for name in dict.fromkeys((DENSE, *names)) if (name, budget) in groups
    ]
    records = {key: _make_record(*key, groups[key], config) for key in order}
    for key in order:
        records[key]["versus"] = _compare_with_best(key, records, groups, config.seed)
        records[key]["outcomes"] = _outcome_shares(groups[key], ordered)
    if not config.answers:  # nothing was generated, so there is no time of an answer
        for record in records.values():
            record |= dict.fromkeys(("prefill_ms", "decode_ms", "answer_ms"))
    return Report(model, data, tuple(records.values()), ordered, config, resumed)


def _make_record(selector: str, budget: str, rows: Rows, config: EvalConfig) -> Record:
    seed = config.seed
    flat = [row for some in rows.values() for row in some]
    record: Record = {"selector": selector, "budget": budget, **_mean_scores(rows, seed)}
    seeds = sorted({row["seed"] for row in flat})
    by_seed = [filter_rows(rows, seed=one) for one in seeds]
    fallbacks = [row["fallback"] for row in flat if row["fallback"]]
    # Times belong to a picture and are the same in all of its rows of one seed. Not every picture is timed.
    firsts = [row for some in rows.values() for row in some if row["question"] == some[0]["question"]]
    times = [row["ms"] for row in firsts if row["ms"] is not None]
    moved = [row["moved"] for some in rows.values() for row in some[:1] if row["moved"] is not None]
    peaks = [row["peak_mb"] for row in flat if row["peak_mb"] is not None]
    kinds = sorted({row["kind"] for row in flat})
    return record | {
        "images": len(rows),
        "seeds": len(seeds),
        "spread": _seed_spread(by_seed, "accuracy"),
        "evidence_recall_spread": _seed_spread(by_seed, "recall"),
        "sensitivity": _round(fmean(moved)) if moved else None,
        "fallbacks": _round(len(fallbacks) / len(flat)),
        "fallback_reason": fallbacks[0] if fallbacks else "",
        "valid": len(fallbacks) <= MAX_FALLBACKS * len(flat),
        "over_budget": any(row["over"] for row in flat),
        "tokens": {"all": _round(fmean(row["all"] for row in flat))}
        | {name: record[name] for name in ("encoded", "kept", "read")},
        **{f"{stage}_ms": _round(median(one[stage] for one in times), 2) if times else None for stage in STAGES},
        "answer_ms": _round(median(sum(one.values()) for one in times), 2) if times else None,
        "timed": len(times),
        "peak_mb": _round(median(peaks), 1) if peaks else None,
        "notes": sorted({note for row in flat for note in row["notes"]})[:5],
        "by_kind": {kind: _mean_scores(filter_rows(rows, kind=kind), seed) for kind in kinds},
    }


def _seed_spread(by_seed: Sequence[Rows], name: str) -> float | None:
    """The standard deviation of the seeds' means; None for a single seed."""
    means = [statistics.mean(scores_of(rows, name)) for rows in by_seed]
    known = [mean for mean in means if mean is not None]
    return _round(stdev(known)) if len(known) > 1 else None


def _mean_scores(rows: Rows, seed: int) -> Record:
    """Means over questions, with intervals over pictures."""
    means = {name: statistics.mean(scores_of(rows, name)) for name in SCORES}
    recall, chance = means["recall"], means["chance"]
    return {
        "n": sum(len({row["question"] for row in some}) for some in rows.values()),
        **{name: _round(means[name], 2) for name in ("kept", "read", "encoded")},
        "accuracy": _round(means["accuracy"]),
        "accuracy_ci": _round_pair(statistics.interval(scores_of(rows, "accuracy"), seed)),
        **{name: _round(means[name]) for name in ("exact", "anls", "vqa")},
        "evidence_recall": _round(recall),
        "evidence_recall_ci": _round_pair(statistics.interval(scores_of(rows, "recall"), seed)),
        "any_hit": _round(means["any_hit"]),
        "pointing": _round(means["pointing"]),
        "lift": _round(recall / chance) if recall is not None and chance else None,
    }


def filter_rows(rows: Rows, **fields: Any) -> Rows:
    """The rows of each picture whose fields have these values."""
    return {
        picture: [row for row in some if all(row[name] == value for name, value in fields.items())]
        for picture, some in rows.items()
    }


def scores_of(rows: Rows, name: str) -> Scores:
    """One score per question of each picture, averaged over seeds; questions without that score are left out."""
    found: dict[str, list[float]] = {}
    for picture, some in rows.items():
        by_question: dict[int, list[float]] = {}
        for row in some:
            if row.get(name) is not None:
                by_question.setdefault(row["question"], []).append(row[name])
        found[picture] = [fmean(values) for values in by_question.values()]
    return found


def _compare_with_best(
    key: tuple[str, str],
    records: Mapping[tuple[str, str], Record],
    groups: Mapping[tuple[str, str], Rows],
    seed: int,
) -> Record | None:
    """A paired comparison with the best other selector that can win the same budget."""
    if key[0] in (DENSE, ORACLE):
        return None
    score, shown = ("accuracy", "accuracy") if records[key]["accuracy"] is not None else ("recall", "evidence_recall")
    peers = [other for other in records if other != key and other[1] == key[1] and _competes(records[other], shown)]
    if not peers or records[key][shown] is None:
        return None
    best = max(peers, key=lambda other: records[other][shown])
    found = statistics.difference(scores_of(groups[key], score), scores_of(groups[best], score), seed)
    if found is None:
        return None
    delta, bounds, p = found
    return {"peer": best[0], "on": shown, "difference": _round(delta), "ci": _round_pair(bounds), "p": _round(p)}


def _competes(record: Record, metric: str) -> bool:
    """Whether a record can win its budget."""
    fair = record["valid"] and not record["over_budget"] and record["selector"] not in (DENSE, ORACLE)
    return bool(fair and record[metric] is not None)


def dense_rows(rows: Sequence[Row]) -> dict[int, Row]:
    """The dense model's rows about one picture, by question."""
    return {row["question"]: row for row in rows if row["selector"] == DENSE}


def classify_outcome(row: Row, dense: Row | None) -> str | None:
    """Which of `OUTCOMES` an answer is; None if it was not scored."""
    if row.get("accuracy") is None:
        return None
    if row["accuracy"] >= RIGHT:
        return "right"
    if dense is not None and dense is not row and dense["accuracy"] < RIGHT:
        return "dense too"
    if row.get("recall") is None:
        return "unknown"
    return "misread" if row["recall"] >= ENOUGH_EVIDENCE else "lost"


def _outcome_shares(rows: Rows, all_rows: Rows) -> dict[str, float] | None:
    """The share of each outcome in one selector's `rows`; `all_rows` hold the dense model's."""
    outcomes: list[str | None] = []
    for picture, some in rows.items():
        dense = dense_rows(all_rows[picture])
        outcomes += [classify_outcome(row, dense.get(row["question"])) for row in some]
    judged = [one for one in outcomes if one is not None]
    if not judged:
        return None
    return {name: round(judged.count(name) / len(judged), 4) for name in OUTCOMES if name in judged or name == "right"}


def _kind_columns(report: Report) -> list[Column]:
    """Accuracy, and the evidence recall where there is evidence, for each kind of question."""
    answered = report.main_metric == "accuracy"

    def show(kind: str, record: Record) -> str:
        found = record["by_kind"].get(kind, {})
        recall = format_share(found.get("evidence_recall"))
        if not answered:
            return recall
        return f"{format_share(found.get('accuracy'))} {f'({recall})' if recall else ''}".strip()

    counts = {kind: max(r["by_kind"].get(kind, {}).get("n", 0) for r in report.records) for kind in report.kinds}
    return [*COLUMNS[:3], *((f"{kind}, n = {count}", partial(show, kind)) for kind, count in counts.items())]


def _describe_lead(versus: Record | None, pictures: int) -> str:
    if versus is None:
        return ""
    if versus["difference"] == 0:
        return f"; {versus['peer']} is level with it"
    low, high = versus["ci"]
    count = "one picture does" if pictures == 1 else f"{pictures} pictures do"
    undecided = "" if versus["p"] < SIGNIFICANT else f", which {count} not decide"
    lead = f"{versus['difference']:+.2f} [{low:+.2f}, {high:+.2f}] to {versus['peer']}"
    return f"; {lead} (p {format_p(versus['p'])}){undecided}"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    lines.insert(1, "|" + "---|" * len(headings))
    return "\n".join(lines) + "\n"


def format_share(value: float | None, bounds: Sequence[float] | None = None) -> str:
    """A share as `.85`, followed by its interval.

    >>> format_share(0.853, (0.8, 1.0))
    '.85 [.80, 1.00]'
    """
    if value is None:
        return ""
    text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
    return text if bounds is None else f"{text} [{format_share(bounds[0])}, {format_share(bounds[1])}]"


def format_p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def format_count(count: int, noun: str) -> str:
    """
    >>> format_count(1, "picture"), format_count(12000, "picture")
    ('1 picture', '12,000 pictures')
    """
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def format_tokens(record: Record) -> str:
    """Cells kept of all; and how many a language layer reads on average, where that is more."""
    layers = f", {record['read']:.0f} a layer" if _reads_more(record) else ""
    return f"{record['kept']:.0f} of {record['tokens']['all']:.0f}{layers}"


def format_selector(record: Record) -> str:
    """The selector's name, marked if the row broke its budget or is invalid."""
    return record["selector"] + (" (over)" if record["over_budget"] else "" if record["valid"] else " (invalid)")


def format_versus(record: Record) -> str:
    """The difference to the best peer, with its p-value."""
    versus = record["versus"]
    return "" if versus is None else f"{versus['difference']:+.2f} to {versus['peer']} (p {format_p(versus['p'])})"


def _reads_more(record: Record) -> bool:
    return bool(record["read"] > record["kept"] + 0.5)


def _format_mean(record: Record, metric: str, spread: str) -> str:
    """A mean with its interval and its standard deviation over seeds."""
    if record[metric] is None:
        return ""
    seeds = f" ± {format_share(record[spread])} over {record['seeds']} seeds" if record[spread] is not None else ""
    return format_share(record[metric], record[f"{metric}_ci"]) + seeds


def _number(name: str, spec: str) -> Callable[[Record], str]:
    return lambda record: "" if record[name] is None else format(record[name], spec)


COLUMNS: tuple[Column, ...] = (
    ("selector", format_selector),
    ("budget", lambda r: r["budget"]),
    ("tokens", format_tokens),
    ("accuracy [95%]", lambda r: _format_mean(r, "accuracy", "spread")),
    ("exact", lambda r: format_share(r["exact"])),
    ("ANLS", lambda r: format_share(r["anls"])),
    ("VQA", lambda r: format_share(r["vqa"])),
    ("evidence recall [95%]", lambda r: _format_mean(r, "evidence_recall", "evidence_recall_spread")),
    ("any hit", lambda r: format_share(r["any_hit"])),
    ("lift", _number("lift", ".2f")),
    ("pointing", lambda r: format_share(r["pointing"])),
    ("moves with the question", lambda r: format_share(r["sensitivity"])),
    ("to the best peer", format_versus),
    ("fell back", lambda r: f"{r['fallbacks']:.1%}{'' if r['valid'] else ', invalid'}" if r["fallbacks"] else "0"),
    ("select ms", _number("select_ms", ".1f")),
    *((f"{stage} ms", _number(f"{stage}_ms", ".0f")) for stage in ("encode", "prefill", "decode", "answer")),
    ("peak MB", _number("peak_mb", ".0f")),
)


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def _round_pair(bounds: Iterable[float] | None) -> list[float] | None:
    return None if bounds is None else [round(side, 4) for side in bounds]
