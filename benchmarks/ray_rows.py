"""Rows a second of `arr_coc.ray.Ask` with one and with two worker processes.

python benchmarks/ray_rows.py [--rows 64] [--rounds 2]

A Ray Data job asks for the total of drawn receipts. Every answer and the order of the rows are checked. The rate counts from
the first finished batch on, so that starting the workers and loading the model are not part of it; `seconds` is the whole job.
Rounds with one and with two workers alternate, and the best of each counts.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from typing import Any

import numpy as np

from arr_coc.ray import Ask
from arr_coc.ray.workers import cluster
from page_load import draw_receipt

BATCH = 4


class TimedAsk(Ask):
    """Notes when each batch was finished."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        made = super().__call__(batch)
        return made | {"finished": np.full(len(batch["total"]), time.time())}


def make_rows(count: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        image, total = draw_receipt(number % 12)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        rows.append({"image": buffer.getvalue(), "question": "What is the total amount?", "total": total})
    return rows


def measure(data: Any, rows: list[dict[str, Any]], workers: int) -> dict[str, float]:
    start = time.time()
    found = (
        data.from_items(rows, override_num_blocks=len(rows) // BATCH)
        .map_batches(
            TimedAsk,
            fn_constructor_kwargs={"budget": "25%", "glance": "50%"},
            batch_size=BATCH,
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )
        .take_all()
    )
    wrong = [row["answer"] for row, asked in zip(found, rows, strict=True) if row["answer"] != asked["total"]]
    if wrong:
        raise SystemExit(f"expected the totals in order, got {wrong[:5]}")
    times = sorted(row["finished"] for row in found)
    rate = (len(times) - BATCH * workers) / (times[-1] - times[BATCH * workers - 1])
    return {"rows_per_s": round(rate, 2), "seconds": round(time.time() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    rows = make_rows(arguments.rows)
    rounds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with cluster(2):
        import ray.data as data

        context = data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        for _ in range(arguments.rounds):
            for workers, found in rounds.items():
                found.append(measure(data, rows, workers))
    best = {f"{workers} workers": max(found, key=lambda one: one["rows_per_s"]) for workers, found in rounds.items()}
    print(json.dumps({"rows": len(rows), "best": best, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
