"""How far one answer reaches: the project's files, functions and switches between files in one `ask` of the bundled receipt.

    python benchmarks/answer_path.py [--list]

Counted with `sys.setprofile` in the calling thread. A switch is a call of a project function in another file than that of the
project function called before it. Functions of libraries in between do not count, nor do returns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import arr_coc

PACKAGE = Path(arr_coc.__file__).parent


class Trace:
    """Counts what runs inside the package."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: set[tuple[str, str]] = set()
        self.switches = 0
        self.order: list[str] = []  # files in the order in which they are first entered
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        name = str(Path(code.co_filename).relative_to(PACKAGE))
        if name not in self.files:
            self.order.append(name)
        self.files[name] += 1
        self.functions.add((name, code.co_qualname))
        self.switches += name != self._last
        self._last = name


def traced(work: Callable[[], Any]) -> Trace:
    """What `work` runs through."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        work()
    finally:
        sys.setprofile(None)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also print every file, with its number of calls")
    parser.add_argument("--budget", default="12.5%")
    parser.add_argument("--glance", default="all")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    vlm, receipt = arr_coc.load("reader"), arr_coc.pictures.receipt()
    trace = traced(lambda: vlm.ask(receipt, "What is the total amount?", budget=given.budget, glance=given.glance))
    found = {"files": len(trace.files), "functions": len(trace.functions), "switches": trace.switches}
    print(json.dumps(found) if given.json else ", ".join(f"{count} {name}" for name, count in found.items()))
    if given.list:
        for name in trace.order:
            print(f"{trace.files[name]:6} {name}")


if __name__ == "__main__":
    main()
