"""All measurements of the GPU path in one command, on one GPU:

    python benchmarks/gpu_path.py FOLDER [--seconds 520]

Writes into FOLDER: the stages of `gpu_stages.py` for one picture and for batches of 16 and 32 with a picture of the first,
texture hardware against the kernel, memory layouts, scaling, and the largest difference of every kernel from its reference.
A step that fails is reported, and the rest goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=520, help="start nothing more after this long (520)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    bench = [sys.executable, str(HERE / "gpu_stages.py"), "--json"]
    folder = arguments.folder
    layout = [sys.executable, str(HERE / "memory_layout.py"), "--device", "cuda", "--json"]
    steps: list[tuple[str, list[str]]] = [
        ("bench_1", [*bench, "--bars", str(folder / "bench_1.png")]),
        ("bench_16", [*bench, "--batch", "16", "--alone"]),
        ("bench_32", [*bench, "--batch", "32", "--alone"]),
        ("texture_objects", [sys.executable, str(HERE / "texture_objects.py"), "--out", str(folder / "texture_objects.json")]),
        ("memory_layout_float32", layout),
        ("memory_layout_float16", [*layout, "--dtype", "float16"]),
        ("scaling", [sys.executable, str(HERE / "gpu_scaling.py"), "--out", str(folder / "scaling.json"), "--seconds", "120"]),
        ("differences", [sys.executable, str(HERE / "kernel_differences.py"), "--out", str(folder / "differences.json")]),
    ]  # fmt: skip
    start, failed = time.monotonic(), 0
    for name, command in steps:
        if time.monotonic() - start > arguments.seconds:
            print(f"{name}: no time left")
            failed += 1
            continue
        with (folder / f"{name}.log").open("w") as log, (folder / f"{name}.out").open("w") as out:
            code = subprocess.run(command, stdout=out, stderr=log, check=False).returncode
        failed += code != 0
        print(f"{time.monotonic() - start:5.0f} s  {name}: {'done' if code == 0 else f'exit code {code}'}", flush=True)
        if code:
            print((folder / f"{name}.log").read_text()[-1500:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
