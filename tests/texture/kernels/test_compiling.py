"""The interpreter forgives what the compiler does not: every kernel compiles for a GPU, also where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SHARED = 99 * 1024  # bytes of shared memory that a program may take on every GPU from compute capability 8.6 on


def test_every_kernel_compiles_for_a_gpu() -> None:
    script = Path(__file__).parent / "compiling.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert {
        "_points",
        "_sideways",
        "_downward",
        "_across_rows",
        "_halve",
        "_sample",
        "_assign",
        "_unite",
        "_grow",
        "_warp",
    } <= compiled.keys()
    assert max(compiled.values()) <= SHARED
