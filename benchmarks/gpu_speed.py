"""Time to the first token at the true shapes of real models, dense against glance and gaze, on one GPU.

Weights are random: only the answer depends on them, not the time. Inputs lie on the GPU already, so preprocessing, which
is the same for all, is left out; choosing (evenly spaced cells), dropping and packing are counted. With `--sees`, cells are
chosen by arr-coc with a layer (of random weights, too) from the picture, which lies on the GPU, and from the question:
texture, glance and gaze are counted.

    python benchmarks/gpu_speed.py --out speed.jsonl      # one line a case, written as soon as it is measured
    python benchmarks/gpu_speed.py --table speed.jsonl    # the tables of docs/measurements/speed.md
    python benchmarks/gpu_speed.py --picture speed.jsonl -o gains.png    # of measurements with --sees: docs/speed.md
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from arr_coc.bench.answers import CONFIGS, BudgetConfig, compare_budgets, random_prompt
from arr_coc.bench.timing import Timing, machine
from arr_coc.draw import samples as pictures
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.vlm.model import VLM

BATCHED = BudgetConfig("all, segments batched", {"budget": "all", "glance": "all"}, batched=True)
SEEN = tuple(BudgetConfig(f"arr-coc: {one.name}", one.options) for one in CONFIGS[3:])  # with picture and question
SHOWN = {CONFIGS[-1].name: "cells evenly spaced", SEEN[-1].name: "cells chosen by a layer"}  # in the picture
TOKENS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}


def qwen2_5_vl_7b() -> Any:
    return transformers.Qwen2_5_VLConfig(
        vision_config={
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
            "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        },
        text_config={
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        **TOKENS,
    )  # fmt: skip


def qwen3_vl_8b() -> Any:
    return transformers.Qwen3VLConfig(
        vision_config={
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
            "patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
        },
        text_config={
            "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
        },
        **TOKENS,
    )  # fmt: skip


def qwen2_vl_2b() -> Any:
    return transformers.Qwen2VLConfig(
        vision_config={"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 1536},
        text_config={
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        **TOKENS,
    )  # fmt: skip


MODELS = {"Qwen2.5-VL-7B": qwen2_5_vl_7b, "Qwen3-VL-8B": qwen3_vl_8b, "Qwen2-VL-2B": qwen2_vl_2b}
CASES = ((2048, 1), (1024, 1), (1024, 8), (2048, 8))  # pixels, batch


def build(name: str) -> VLM:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForImageTextToText.from_config(
            MODELS[name](), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return VLM(model.eval())


def with_layer(vlm: VLM) -> VLM:
    """A layer with random weights and high confidence, so that no other source of coupling is used."""
    torch.manual_seed(1)
    layer = ArrCocLayer(config_for(vlm.adapter))
    torch.nn.init.constant_(layer.coupling.own.bias, 6.0)
    return VLM(vlm.model, vlm.processor, layer=layer)


def page(pixels: int) -> torch.Tensor:
    """A picture with something in it, `[3, pixels, pixels]` on the GPU."""
    whole = torch.from_numpy(np.array(pictures.receipt())).permute(2, 0, 1)[None].float() / 255
    return torch.nn.functional.interpolate(whole, (pixels, pixels), mode="bilinear")[0].cuda()


def measure(out: Path, seconds: float, models: list[str], batches: list[int], sees: bool) -> None:
    start = time.monotonic()
    for name in models:
        vlm = with_layer(build(name)) if sees else build(name)
        cell = vlm.model.config.vision_config.patch_size * vlm.model.config.vision_config.spatial_merge_size
        for pixels, batch in (case for case in CASES if case[1] in batches):
            if time.monotonic() - start > seconds:
                print("out of time before", name, pixels, batch)
                return
            side = round(pixels / cell)
            settings = [*CONFIGS[:2], BATCHED, *CONFIGS[2:]]
            if sees:
                asked = {"originals": [page(pixels)] * batch, "text": ["What is the total?"] * batch}
                settings = [*CONFIGS[:2], BATCHED, *CONFIGS[3:]]
                settings += [replace(one, options={**one.options, **asked}) for one in SEEN]
            found = compare_budgets(
                vlm, random_prompt(vlm, side, batch), settings, rounds=5 if batch == 1 else 2, new_tokens=1
            )  # fmt: skip
            record = {
                "model": name, "pixels": pixels, "batch": batch, "cells": side * side, "machine": machine(),
                "transformers": transformers.__version__, "date": date.today().isoformat(),
                "settings": {setting: _record(measured) for setting, measured in found.items()},
            }  # fmt: skip
            with out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(f"{time.monotonic() - start:5.0f} s", name, pixels, batch, _line(record), flush=True)
        del vlm
        torch.cuda.empty_cache()


def _record(measured: dict[str, Timing]) -> dict[str, Any]:
    stages = {stage: round(measured[stage].median, 2) for stage in ("encode", "prefill", "overhead", "first")}
    return stages | {
        "best": round(measured["first"].best, 2),
        "peak_gb": round(max(measured["peak"].runs) / 1e9, 2),
    }


def _line(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {found['first']:.0f}" for name, found in record["settings"].items())


def table(records: list[dict[str, Any]]) -> str:
    lines = []
    for record in records:
        found = record["settings"]
        stock, batched = found["stock"]["first"], found[BATCHED.name]["first"]
        lines += [
            f"**{record['model']}, {record['pixels']} px ({record['cells']:,} cells), batch {record['batch']}**", "",
            "| kept | encoder | choose, pack | prefill | first token | faster than stock | than batched | peak GB |",
            "|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name, one in found.items():
            lines.append(
                f"| {name} | {one['encode']:.0f} | {one['overhead']:.1f} | {one['prefill']:.0f} | {one['first']:.0f} "
                f"| {stock / one['first']:.2f} x | {batched / one['first']:.2f} x | {one['peak_gb']:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def summary(records: list[dict[str, Any]]) -> str:
    """One row per case: time to the first token, with evenly spaced cells and with cells chosen by arr-coc."""
    names = ["stock", "all", *(one.name for one in (*CONFIGS[3:], *SEEN))]
    lines = [f"| model | px | batch | {' | '.join(names)} | against stock |", "|---" * (len(names) + 4) + "|"]
    for record in sorted(records, key=lambda one: (one["model"], one["pixels"], one["batch"])):
        first = [record["settings"][name]["first"] for name in names]
        times = " | ".join(f"{one:.0f}" for one in first)
        lines.append(
            f"| {record['model']} | {record['pixels']} | {record['batch']} | {times} | {first[0] / first[-1]:.1f} x |"
        )
    return "\n".join(lines)


def picture(records: list[dict[str, Any]], out: Path) -> None:
    """How much sooner the first token comes than stock's, by model, size and batch: bars from 1, where nothing is gained."""
    from matplotlib import pyplot as plt

    records = sorted(records, key=lambda one: (one["model"], one["pixels"], one["batch"]))
    gains = [[one["settings"]["stock"]["first"] / one["settings"][name]["first"] for one in records] for name in SHOWN]
    figure, axes = plt.subplots(figsize=(7, 0.55 * len(records) + 1.1), layout="constrained")
    for number, (values, label, colour) in enumerate(zip(gains, SHOWN.values(), ("#9db4c0", "#1d6f8f"), strict=True)):
        places = [place + 0.36 * (number - 0.5) for place in range(len(records))]
        axes.barh(places, [value - 1 for value in values], 0.34, 1, label=label, color=colour)
        for place, value in zip(places, values, strict=True):
            axes.text(max(value, 1) + 0.04, place, f"{value:.1f} x", va="center", fontsize=8)
    names = [f"{one['model']}, {one['pixels']} px, batch {one['batch']}" for one in records]
    axes.set(yticks=range(len(records)), yticklabels=names, xlabel="first token, times as fast as the stock model")
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the measurements")
    parser.add_argument("--seconds", type=float, default=540, help="start no further case after this long")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, choices=[1, 8], default=[1, 8])
    parser.add_argument("--sees", action="store_true", help="also choose by arr-coc, with a layer, from a picture")
    parser.add_argument("--table", type=Path, help="print measurements as Markdown")
    parser.add_argument("--summary", type=Path, help="print measurements with --sees as one table")
    parser.add_argument("--picture", type=Path, help="draw measurements with --sees")
    parser.add_argument("-o", type=Path, default=Path("gains.png"), help="where to draw them")
    arguments = parser.parse_args()
    if arguments.picture:
        picture([json.loads(line) for line in arguments.picture.read_text().splitlines()], arguments.o)
    if arguments.out:
        measure(arguments.out, arguments.seconds, arguments.models, arguments.batches, arguments.sees)
    if arguments.summary:
        print(summary([json.loads(line) for line in arguments.summary.read_text().splitlines()]))
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))


if __name__ == "__main__":
    main()
