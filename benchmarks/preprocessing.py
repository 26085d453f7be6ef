"""From a JPEG file to the patches that are encoded: the model's processor against patches made after the glance.

    python benchmarks/preprocessing.py             # processor time on a CPU, 25% of the patches encoded

The processor is that of Qwen2-VL as released (up to 12.8 million pixels). The two ways take turns; both decode the file. The
patches are the same bit for bit, which is checked each time.
"""

from __future__ import annotations

import argparse
import copy
import io
import itertools
import statistics
import time
from datetime import date
from typing import Any

import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import arr_coc
from arr_coc.adapters.processor import PromptProcessor, read_patches
from arr_coc.bench.timing import machine
from arr_coc.draw import samples
from arr_coc.types.image import rgb_image

SIDES = (640, 1024, 2048)
MOST = 12_845_056  # px, as Qwen2-VL's own settings say
CPU = torch.device("cpu")


def jpeg(side: int) -> bytes:
    file = io.BytesIO()
    samples.receipt().resize((side * 3 // 4, side)).save(file, "JPEG", quality=90)
    return file.getvalue()


def prompter(late: bool) -> PromptProcessor:
    """The reader's prompts with Qwen2-VL's image processor."""
    made = copy.copy(arr_coc.load("reader").prompter)
    made.processor = copy.copy(made.processor)
    made.processor.image_processor = Qwen2VLImageProcessorPil(
        size={"shortest_edge": 3136, "longest_edge": MOST}, patch_size=14
    )
    made.late_patches = late
    return made


def patches(process: PromptProcessor, data: bytes, share: float) -> tuple[dict[str, float], torch.Tensor]:
    """Milliseconds of each step, and the patches."""
    from PIL import Image

    marks = [time.process_time()]
    picture, _ = rgb_image(Image.open(io.BytesIO(data)))
    picture.load()
    marks.append(time.process_time())
    tensors: dict[str, Any] = process.process([[picture]], [[]], 1.0).tensors
    count = int(tensors["image_grid_thw"].prod())
    rows = torch.arange(count).view(-1, 4)[:: round(1 / share)].flatten()  # whole cells, evenly spaced
    made = read_patches(tensors["pixel_values"], rows, CPU, torch.bfloat16)
    marks.append(time.process_time())
    decode, rest = (1000 * (b - a) for a, b in itertools.pairwise(marks))
    return {"decode": decode, "resize and patches": rest, "all": decode + rest}, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="of the patches that is encoded")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    ways = {"stock": prompter(False), "late": prompter(True)}
    print(f"{machine()}, {date.today()}, {arguments.share:.0%} encoded")
    print("| JPEG | decode ms | stock: resize, normalise, patch ms | ours ms | ours, decoding included |")
    print("|---|---|---|---|---|")
    for side in SIDES:
        data = jpeg(side)
        times: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            found = {name: patches(process, data, arguments.share) for name, process in ways.items()}
            assert torch.equal(found["stock"][1], found["late"][1])
            if number:
                for name, (spent, _) in found.items():
                    times[name].append(spent)

        def median(name: str, step: str, times: dict[str, list[dict[str, float]]] = times) -> float:
            return statistics.median(one[step] for one in times[name])

        ratio = statistics.median(a["all"] / b["all"] for a, b in zip(times["stock"], times["late"], strict=True))
        print(
            f"| {side * 3 // 4} x {side} | {median('late', 'decode'):.1f} | {median('stock', 'resize and patches'):.1f} "
            f"| {median('late', 'resize and patches'):.1f} | {ratio:.1f} x faster |"
        )


if __name__ == "__main__":
    main()
