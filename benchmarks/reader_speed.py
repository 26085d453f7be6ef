"""Latency of the shipped reader on this machine's CPU: from process start to an answer, one answer, eight answers.

    python benchmarks/reader_speed.py

The picture is the bundled receipt, scaled to a full page of about 900 tokens. "From process start" is a new process each time:
import, load, one dense answer.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any
from unittest import mock

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.bench.timing import interleave, machine
from arr_coc.draw.samples import receipt as bundled_receipt

PAGE = (560, 1232)
QUESTION = "What is the total amount?"
QUESTIONS = [
    QUESTION, "What is the date on the receipt?", "What is the name of the company?", "What is the address?",
    "How much was paid?", "When was it printed?", "Which company is it from?", "Where is the shop?",
]  # fmt: skip
DENSE: dict[str, Any] = {"budget": "all", "glance": "all"}
FRESH = f"""
import time
start = time.perf_counter()
import arr_coc
from arr_coc.draw.samples import receipt
vlm = arr_coc.load("reader")
loaded = time.perf_counter()
vlm.ask(receipt().resize({PAGE}), {QUESTION!r}, budget="all", glance="all")
print(loaded - start, time.perf_counter() - start)
"""


def fresh() -> tuple[float, float]:
    """Seconds until loaded and until answered, in a new process."""
    output = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True).stdout
    loaded, answered = map(float, output.split())
    return loaded, answered


def encodings(vlm: Any, image: Any) -> int:
    """How often the vision encoder runs for eight questions about one page."""
    visual = vlm.model.model.visual
    with mock.patch.object(visual, "forward", wraps=visual.forward) as seen:
        vlm.ask(image, QUESTIONS, budget="all")
    return seen.call_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    keep_quiet()
    print(machine(), time.strftime("%Y-%m-%d"))
    loaded, answered = zip(*(fresh() for _ in range(rounds)), strict=True)
    vlm, image = arr_coc.load("reader"), bundled_receipt().resize(PAGE)
    tokens = vlm.ask(image, QUESTION, **DENSE).tokens
    tasks = {
        "one dense answer": lambda: vlm.ask(image, QUESTION, **DENSE),
        "one answer from a quarter of the tokens": lambda: vlm.ask(
            image, QUESTION, budget="25%", glance="all", selector="uniform"
        ),
        "eight dense answers about one page": lambda: vlm.ask(image, QUESTIONS, **DENSE),
    }
    found = interleave(tasks, rounds)
    print(f"{tokens} tokens; median (minimum) of {rounds} rounds\n\n| | s |\n|---|---|")
    for name, seconds in (("imported and loaded", loaded), ("from process start to an answer", answered)):
        print(f"| {name} | {statistics.median(seconds):.1f} ({min(seconds):.1f}) |")
    for name, timing in found.items():
        print(f"| {name} | {timing.median / 1000:.2f} ({timing.best / 1000:.2f}) |")
    print(f"\nvision encoder runs for eight questions about one page: {encodings(vlm, image)}")


if __name__ == "__main__":
    main()
