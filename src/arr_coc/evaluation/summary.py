"""The comparison in a few sentences: who leads at each budget, by how much, and whether that is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arr_coc.evaluation.contestants import DENSE, ORACLE
from arr_coc.evaluation.table import p_value, share

if TYPE_CHECKING:
    from arr_coc.evaluation.report import Report

SURE = 0.05  # a smaller p-value counts as decided

Record = dict[str, Any]


def measure(report: Report) -> str:
    """What the comparison is decided by: accuracy, or evidence recall where nothing was answered."""
    return "accuracy" if any(record["accuracy"] is not None for record in report.records) else "evidence_recall"


def competing(report: Report, budget: str) -> list[Record]:
    """The rows of a budget that may win it, best first: not the dense model, not the oracle, none that is invalid."""
    what = measure(report)
    found = [
        record
        for record in report.records
        if record["budget"] == budget and record["selector"] not in (DENSE, ORACLE) and record[what] is not None
        if record["valid"] and not record["over_budget"]
    ]
    return sorted(found, key=lambda record: -record[what])


def sentences(report: Report) -> list[tuple[str, str]]:
    """For each budget its name and what was found."""
    what = measure(report)
    told = "right" if what == "accuracy" else "of the evidence"
    dense = next((record for record in report.records if record["selector"] == DENSE), None)
    out = []
    for budget in dict.fromkeys(record["budget"] for record in report.records if record["selector"] != DENSE):
        ranked = competing(report, budget)
        if not ranked:
            continue
        leader = ranked[0]
        if not leader[what]:
            out.append((budget, f"nobody gets any {'right' if what == 'accuracy' else 'of the evidence'}."))
            continue
        said = f"{leader['selector']} leads with {share(leader[what], leader[f'{what}_ci'])} {told}"
        if what == "accuracy" and dense is not None and dense[what]:
            said += f", {leader[what] / dense[what]:.0%} of the dense model's {share(dense[what])}"
        if leader["read"] > leader["kept"] + 0.5:
            said += f" (its layers read {leader['read'] / leader['tokens']['all']:.0%} of the cells on average)"
        versus = leader["versus"]
        if versus is not None:
            low, high = versus["ci"]
            if versus["difference"] == 0:
                said += f"; {versus['peer']} is level with it"
            else:
                sure = "" if versus["p"] < SURE else f", which {_size(report)} not decide"
                said += (
                    f"; {versus['difference']:+.2f} [{low:+.2f}, {high:+.2f}] to {versus['peer']} "
                    f"(p {p_value(versus['p'])}){sure}"
                )
        oracle = next((r for r in report.records if (r["selector"], r["budget"]) == (ORACLE, budget)), None)
        if oracle is not None and oracle[what] is not None:
            said += f". The oracle reaches {share(oracle[what])}"
        out.append((budget, said + "."))
    return out


def counted(count: int, thing: str) -> str:
    """
    >>> counted(1, "picture"), counted(12000, "picture")
    ('1 picture', '12,000 pictures')
    """
    return f"{count:,} {thing}{'s' if count != 1 else ''}"


def _size(report: Report) -> str:
    count = len(report.data.pictures)
    return "one picture does" if count == 1 else f"{count} pictures do"
