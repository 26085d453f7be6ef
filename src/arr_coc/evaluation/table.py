"""Records as markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]


def main(report: Report) -> str:
    """One line for each selector and budget; columns that nobody has a value for are left out."""
    return _markdown(columns(report), report.records) + "".join(f"\n{line}\n" for line in remarks(report.records))


def columns(report: Report) -> list[Column]:
    """All columns but those that would say again what the accuracy says."""
    again = {"exact": "exact", "anls": "ANLS", "vqa": "VQA"}.get(report.data.metric)
    return [column for column in COLUMNS if column[0] != again]


def by_kind(report: Report) -> str:
    """Accuracy, and the evidence recall where there is evidence, by kind of question."""
    kinds = sorted({kind for record in report.records for kind in record["by_kind"]})
    answered = any(record["accuracy"] is not None for record in report.records)

    def cell(kind: str) -> Callable[[Record], str]:
        def show(record: Record) -> str:
            found = record["by_kind"].get(kind, {})
            parts = [share(found.get("accuracy"))] if answered else []
            if found.get("evidence_recall") is not None:
                parts.append(f"({share(found['evidence_recall'])})" if answered else share(found["evidence_recall"]))
            return " ".join(part for part in parts if part)

        return show

    counts = {kind: max(record["by_kind"].get(kind, {}).get("n", 0) for record in report.records) for kind in kinds}
    shown: list[Column] = [*COLUMNS[:3], *((f"{kind}, n = {counts[kind]}", cell(kind)) for kind in kinds)]
    return _markdown(shown, report.records)


def share(value: float | None, bounds: Sequence[float] | None = None) -> str:
    """A share as `.85`, with its interval behind it.

    >>> share(0.853, (0.8, 1.0))
    '.85 [.80, 1.00]'
    """
    if value is None:
        return ""
    text = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
    return text if bounds is None else f"{text} [{share(bounds[0])}, {share(bounds[1])}]"


def tokens(record: Record) -> str:
    """Cells kept of all; and how many a language layer reads on average, where the first ones read more."""
    inside = f", {record['read']:.0f} a layer" if record["read"] > record["kept"] + 0.5 else ""
    return f"{record['kept']:.0f} of {record['tokens']['all']:.0f}{inside}"


def named(record: Record) -> str:
    """The selector, with a word where the row is not what it seems."""
    return record["selector"] + (" (over)" if record["over_budget"] else "" if record["valid"] else " (invalid)")


def _spread(record: Record, what: str) -> str:
    """A mean with its interval, and how far apart the seeds are."""
    if record[what] is None:
        return ""
    apart = record["spread"] if what == "accuracy" else record["evidence_recall_spread"]
    seeds = f" ± {share(apart)} over {record['seeds']} seeds" if apart is not None else ""
    return share(record[what], record[f"{what}_ci"]) + seeds


def _versus(record: Record) -> str:
    found = record["versus"]
    if found is None:
        return ""
    return f"{found['difference']:+.2f} to {found['peer']} (p {p_value(found['p'])})"


def p_value(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _fallbacks(record: Record) -> str:
    if not record["fallbacks"]:
        return "0"
    return f"{record['fallbacks']:.1%}" + ("" if record["valid"] else ", invalid")


def _number(name: str, form: str) -> Callable[[Record], str]:
    return lambda record: "" if record[name] is None else format(record[name], form)


COLUMNS: tuple[Column, ...] = (
    ("selector", lambda r: named(r)),
    ("budget", lambda r: r["budget"]),
    ("tokens", lambda r: tokens(r)),
    ("accuracy [95%]", lambda r: _spread(r, "accuracy")),
    ("exact", lambda r: share(r["exact"])),
    ("ANLS", lambda r: share(r["anls"])),
    ("VQA", lambda r: share(r["vqa"])),
    ("evidence recall [95%]", lambda r: _spread(r, "evidence_recall")),
    ("any hit", lambda r: share(r["any_hit"])),
    ("lift", _number("lift", ".2f")),
    ("pointing", lambda r: share(r["pointing"])),
    ("moves with the question", lambda r: share(r["sensitivity"])),
    ("to the best peer", _versus),
    ("fell back", _fallbacks),
    ("select ms", _number("select_ms", ".1f")),
    ("encode ms", _number("encode_ms", ".0f")),
    ("prefill ms", _number("prefill_ms", ".0f")),
    ("decode ms", _number("decode_ms", ".0f")),
    ("answer ms", _number("answer_ms", ".0f")),
    ("peak MB", _number("peak_mb", ".0f")),
)


def filled(columns: Sequence[Column], records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Each column's heading and cells; a column that nobody has a value for is left out."""
    shown = [(heading, [show(record) for record in records]) for heading, show in columns]
    return [(heading, cells) for heading, cells in shown if any(cells)]


def _markdown(columns: Sequence[Column], records: Sequence[Record]) -> str:
    shown = filled(columns, records)
    lines = ["| " + " | ".join(heading for heading, _ in shown) + " |", "|" + "---|" * len(shown)]
    lines += ["| " + " | ".join(cells[i] for _, cells in shown) + " |" for i in range(len(records))]
    return "\n".join(lines) + "\n"


def _example(notes: Sequence[str]) -> str:
    if not notes:
        return "it did not say why"
    return notes[0] if len(notes) == 1 else f"for example: {notes[0]}"


def remarks(records: Sequence[Record]) -> list[str]:
    """What a reader must know about single rows."""
    said = [
        f"{r['selector']} at {r['budget']} fell back for {r['fallbacks']:.1%} of the questions, "
        f"{'so the row is not a result of this selector' if not r['valid'] else 'within the 1% that is allowed'}: "
        f"{r['fallback_reason']}."
        for r in records
        if r["fallbacks"]
    ]
    said += [
        f"{r['selector']} at {r['budget']} read more than its budget ({_example(r['notes'])})."
        for r in records
        if r["over_budget"]
    ]
    inside = dict.fromkeys(r["selector"] for r in records if r["read"] > r["kept"] + 0.5)
    said += [
        f"{name} lets language layers read more cells than it keeps: it drops them there, or scouts first."
        for name in inside
    ]
    smaller = dict.fromkeys(
        r["selector"]
        for r in records
        if r["evidence_recall"] is None and any(o["evidence_recall"] is not None for o in records)
    )
    said += [f"{name} shows the whole picture smaller, so it has no evidence recall." for name in smaller]
    return said
