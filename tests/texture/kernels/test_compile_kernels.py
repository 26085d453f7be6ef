"""Every kernel compiles for a GPU: Triton's interpreter accepts code that its compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MAX_SHARED = 99 * 1024  # bytes of shared memory of a program on every GPU from compute capability 8.6 on
SCRIPTS = {
    Path(__file__).parent / "compile_kernels.py": {
        "_points", "_sideways", "_downward", "_across_rows", "_halve", "_small_cells", "_columns", "_sample", "_assign",
        "_unite", "_grow", "_stretch", "_lab", "_write", "_warp",
    },
    Path(__file__).parents[2] / "benchmarks" / "compile_graphs.py": {"_enlarge", "_weigh", "_rank", "_list", "_along", "_step"},
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_kernel_compiles_for_a_gpu(script: Path) -> None:
    root = Path(__file__).parents[3]
    paths = [str(root), str(root / "src"), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout.splitlines()[-1])
    assert SCRIPTS[script] <= compiled.keys()
    assert max(compiled.values()) <= MAX_SHARED
