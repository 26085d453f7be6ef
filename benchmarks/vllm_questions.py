"""What questions about one picture cost in vLLM with the plugin: the first, a second one, and the second once more.

    PYTHONPATH=tests/engines/vllm_cpu .venv/vllm/bin/python benchmarks/vllm_questions.py [--pictures 9] [--json FILE]

The environment is the one of `make test-vllm`. The shipped reader runs in vLLM on the CPU. Every picture is the bundled receipt with
other noise, so that no cache knows it. A request ends with its first token. Times on a CPU say nothing about those on a GPU; the
counts hold on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

import arr_coc
from arr_coc import reader
from arr_coc.engines.glance import Glance

QUESTIONS = ("What is the total amount?", "What is the date?", "What is the date?")
NAMES = ("first", "second", "again")
SETTINGS: dict[str, dict[str, Any]] = {
    "all cells": {"budget": "all"},
    "12.5% by texture": {"budget": "12.5%", "layer": None},
    "12.5% by the layer": {"budget": "12.5%"},
}


def pictures(count: int) -> list[Image.Image]:
    """Receipts that differ in faint noise."""
    plain = np.asarray(arr_coc.pictures.receipt()).astype(int)
    noise = [np.random.default_rng(seed).integers(-2, 3, plain.shape) for seed in range(count)]
    return [Image.fromarray((plain + one).clip(0, 255).astype(np.uint8)) for one in noise]


@contextmanager
def engine(options: dict[str, Any]) -> Iterator[Any]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    made = LLM(
        str(reader.WEIGHTS), dtype="float32", max_model_len=1536, enforce_eager=True, block_size=32, max_num_seqs=4,
        limit_mm_per_prompt={"image": 1, "video": 0}, gpu_memory_utilization=0.1, kv_cache_memory_bytes=2**28,
        mm_processor_kwargs={"arr_coc": options},
    )  # fmt: skip
    yield made
    del made
    gc.collect()
    cleanup_dist_env_and_memory()


def measure(options: dict[str, Any], count: int) -> dict[str, dict[str, float]]:
    """Medians over the pictures, by question."""
    from vllm import SamplingParams

    rows: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    chosen: list[float] = []
    plain_choose = Glance.choose

    def timed_choose(self: Glance, *given: Any) -> Any:
        start = time.perf_counter()
        result = plain_choose(self, *given)
        chosen.append(1e3 * (time.perf_counter() - start))
        return result

    Glance.choose = timed_choose  # type: ignore[assignment, method-assign]
    try:
        with engine(options) as running:
            model = running.llm_engine.model_executor.driver_worker.worker.model_runner.model
            patches: list[int] = []
            model.visual.register_forward_pre_hook(lambda _, given: patches.append(len(given[0])))
            for number, picture in enumerate(pictures(count + 1)):
                for name, question in zip(NAMES, QUESTIONS, strict=True):
                    patches.clear()
                    chosen.clear()
                    prompt = f"<|user|><|vision_start|><|image_pad|><|vision_end|>{question}<|assistant|>"
                    start = time.perf_counter()
                    (output,) = running.generate(
                        [{"prompt": prompt, "multi_modal_data": {"image": picture}}],
                        SamplingParams(temperature=0, max_tokens=1),
                        use_tqdm=False,
                    )
                    took = 1e3 * (time.perf_counter() - start)
                    if number:  # the first picture warms up
                        rows[name].append({
                            "prompt tokens": len(output.prompt_token_ids), "cached tokens": output.num_cached_tokens,
                            "patches encoded": sum(patches), "choice ms": sum(chosen), "first token ms": took,
                        })  # fmt: skip
    finally:
        Glance.choose = plain_choose  # type: ignore[method-assign]
    return {
        name: {key: statistics.median(row[key] for row in found) for key in found[0]} for name, found in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=9, help="number of pictures (9)")
    parser.add_argument("--json", help="write the results to this file, too")
    arguments = parser.parse_args()
    results = {name: measure(options, arguments.pictures) for name, options in SETTINGS.items()}
    print("| cells | question | prompt tokens | of them cached | patches encoded | choice | first token |")
    print("|---|---|---|---|---|---|---|")
    for setting, found in results.items():
        for name, row in found.items():
            print(
                f"| {setting} | {name} | {row['prompt tokens']:.0f} | {row['cached tokens']:.0f} "
                f"| {row['patches encoded']:.0f} | {row['choice ms']:.0f} ms | {row['first token ms']:.0f} ms |"
            )
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
