"""Two processes on one embedding cache: every value is right, and the folder keeps its limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from soak.conftest import ROOT, write_figures

MEGABYTES = 4
SECONDS = 60
WORK = """
import json, random, sys, time
import torch
from arr_coc.embedding.cache import EmbeddingCache

folder, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
cache = EmbeddingCache(memory=1 << 20, folder=folder, disk={megabytes} << 20)
draw, made, asked, end = random.Random(seed), 0, 0, time.monotonic() + seconds
while time.monotonic() < end:
    number = draw.randrange(200)

    def make():
        global made
        made += 1
        return torch.full((64, 16, 16), float(number))

    value = cache.get(f"{{number:064x}}", make)
    assert torch.equal(value, torch.full((64, 16, 16), float(number))), number
    asked += 1
print(json.dumps({{"asked": asked, "made": made}}))
"""


def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    code = WORK.format(megabytes=MEGABYTES)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(folder), str(seed), str(SECONDS)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    largest = 0
    while any(one.poll() is None for one in both):
        sizes = []
        for path in folder.rglob("*"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:  # evicted meanwhile
                continue
        largest = max(largest, sum(sizes))
        time.sleep(0.2)
    for one in both:
        out, said = one.communicate()
        assert one.returncode == 0, said
        write_figures("cache", json.loads(out) | {"seconds": SECONDS, "largest_mb": round(largest / 1e6, 2)})
    assert largest < 1.5 * (MEGABYTES << 20)
