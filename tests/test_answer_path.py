"""One answer stays readable: how many files of the package it runs through, and how often it switches between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "answer_path.py"


def test_an_answer_runs_through_few_files() -> None:
    # A process of its own: earlier tests leave textures, layers and imports behind that an answer would not compute again.
    done = subprocess.run([sys.executable, str(SCRIPT), "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert 20 < found["files"] <= 40
    assert 100 < found["switches"] <= 355
