"""Compare all selectors: answers about receipts, and evidence recall on photos, as in docs/results.md.

    python benchmarks/results.py RECEIPTS OBJECTS -o docs/results.md

Both are folders with samples.jsonl; needs the extra `labels` for `coupling`. Two processes share the work: set OMP_NUM_THREADS
so that they do not compete for cores. The same command continues an interrupted run. Times are left out, because they depend on
the load of the machine; benchmarks/selector_speed.py measures how long selecting takes.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from arr_coc.bench.timing import machine
from arr_coc.evaluation import Report, evaluate
from arr_coc.evaluation.records import cache_folder
from arr_coc.evaluation.report import format_selector, format_share, format_tokens, format_versus
from arr_coc.selectors import names

BUDGETS = ("25%", "12.5%", "6.25%")
KINDS = ("total", "date", "company")
PHOTOS_AT = ("25%", "12.5%")


def still_selectors() -> list[str]:
    """All selectors for still pictures."""
    return [name for name in names() if name != "evs"]


def measure(model: str, folder: Path, **options: Any) -> Report:
    shown = {"done": -1}

    def tick(done: int, total: int, what: str) -> None:
        if total and done * 100 // total != shown["done"]:
            shown["done"] = done * 100 // total
            print(f"{folder.name}: {shown['done']}%", flush=True)

    kept = cache_folder() / f"results-{folder.name}"
    return evaluate(model, folder, still_selectors(), embeddings="labels", run=kept, tick=tick, **options)


def answers(report: Report) -> str:
    """Accuracy, evidence and the comparison with the best peer."""
    lines = [
        "| selector | budget | tokens | accuracy [95%] | ANLS | evidence recall | any hit | lift | pointing "
        "| moves with the question | to the best peer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in report.records:
        spread = f" ± {format_share(r['spread'])}" if r["spread"] is not None else ""
        lift = "" if r["lift"] is None else f"{r['lift']:.2f}"
        lines.append(
            f"| {format_selector(r)} | {r['budget']} | {format_tokens(r)} "
            f"| {format_share(r['accuracy'], r['accuracy_ci'])}{spread} | {format_share(r['anls'])} | {format_share(r['evidence_recall'])} "
            f"| {format_share(r['any_hit'])} | {lift} | {format_share(r['pointing'])} | {format_share(r['sensitivity'])} | {format_versus(r)} |"
        )
    return "\n".join(lines) + "\n"


def evidence(report: Report) -> str:
    lines = [
        "| selector | budget | tokens | evidence recall [95%] | any hit | lift | pointing | moves with the question |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in report.records:
        if r["evidence_recall"] is None:
            continue
        lift = "" if r["lift"] is None else f"{r['lift']:.2f}"
        lines.append(
            f"| {format_selector(r)} | {r['budget']} | {format_tokens(r)} "
            f"| {format_share(r['evidence_recall'], r['evidence_recall_ci'])} | {format_share(r['any_hit'])} | {lift} "
            f"| {format_share(r['pointing'])} | {format_share(r['sensitivity'])} |"
        )
    return "\n".join(lines) + "\n"


def document(receipts: Report, photos: Report, model: str) -> str:
    short = "\n".join(f"- {budget}: {said}" for budget, said in receipts.summary())
    ids = ", ".join(picture.name.removesuffix(".jpg") for picture in receipts.data.pictures)
    photo_ids = ", ".join(str(int(picture.name.removesuffix(".jpg"))) for picture in photos.data.pictures)
    return f"""# Results

All selectors, the same model, the same questions, one run. Columns are explained in [comparing](comparing.md#what-is-measured). Made by

```
OMP_NUM_THREADS=1 python benchmarks/results.py RECEIPTS OBJECTS -o docs/results.md
```

on {datetime.date.today().isoformat()} ({machine()}; model `{model}`).

## Receipts

{receipts.data.questions} questions about {len(receipts.data.pictures)} scanned receipts that were not in the reader's
training. Exact match, intervals over receipts.

- `random`: the mean over three seeds and their spread. `oracle`: an upper bound that knows where the answer is.
- `resize` reads a smaller image and has no evidence recall. A merged token (`tome`, `visionzip`) counts for the cell whose place it takes.
- `pixelprune` encodes only the cells that it keeps. `fastv`, `sparsevlm` and `dart` drop cells inside the language model. "a layer": how many cells a language layer reads on average.
- `coupling` uses `labels`, an encoder of photographs.

{short}

{answers(receipts)}
By kind of question: accuracy, and in brackets evidence recall:

{receipts.table(kinds=True)}
Receipts: {ids}.

## Photos

Where things are on {len(photos.data.pictures)} photos ({photos.data.questions} questions "Where is the ...?"): the share of an
object's cells that is kept. The reader was not trained on photos, so nothing is answered: this tests the choice of cells alone.

{evidence(photos)}
Photos: {photo_ids}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipts", type=Path)
    parser.add_argument("objects", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/results.md"))
    parser.add_argument("--model", default="reader")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    limit = arguments.limit
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:  # receipts take longer than photos
        asked = pool.submit(measure, arguments.model, arguments.receipts, budgets=BUDGETS, kinds=KINDS, limit=limit)
        looked = pool.submit(measure, arguments.model, arguments.objects, budgets=PHOTOS_AT, answers=False, limit=limit)
        receipts, photos = asked.result(), looked.result()
    arguments.out.write_text(document(receipts, photos, arguments.model))


if __name__ == "__main__":
    main()
