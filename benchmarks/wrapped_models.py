"""The reader inside wrappers, on the disk, and with smaller weights, compared with the plain reader.

    python benchmarks/wrapped_models.py [--json FILE]

Of the upper quarter of the bundled receipt, for each way to hold the model:

- all: the largest difference of the next token's logits between keeping all cells and the held model's own dense prompt;
- some: the same between dropping all cells but those of a budget of 50% and masking them at every layer;
- cells: how many of the kept cells the plain reader keeps, too;
- answers: how many of the questions get the plain reader's answer from that budget;
- state: milliseconds to compute the state of the encoder's weights, which an answer pays (the fastest of 50).

A library that is not installed leaves its rows out.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import arr_coc
from arr_coc.vlm.model import VLM

QUESTIONS = ("What is the name of the company?", "What is the date of the receipt?")
BUDGET = "50%"
TOKENS = 16

Way = Callable[[Any, Path], Any]  # the plain model and a folder to the model that is wrapped


def lora(model: Any, folder: Path) -> Any:
    import peft

    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj", "qkv"], init_lora_weights=False)
    tuned = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, weights in tuned.named_parameters():
            if "lora_B" in name:
                weights.mul_(0.01)  # a small change, as after some training
    return tuned


def merged(model: Any, folder: Path) -> Any:
    return lora(model, folder).merge_and_unload()


def compiled(model: Any, folder: Path) -> Any:
    return torch.compile(model)


def on_disk(model: Any, folder: Path) -> Any:
    accelerate: Any = import_module("accelerate")

    placed = {"model": "disk", "lm_head": "disk"}
    return accelerate.dispatch_model(model, placed, main_device="cpu", offload_dir=folder, force_hooks=True)


def torchao(config: str) -> Way:
    def quantised(model: Any, folder: Path) -> Any:
        quantization = import_module("torchao.quantization")
        quantization.quantize_(model, getattr(quantization, config)())
        return model

    return quantised


def bitsandbytes(**options: Any) -> Way:
    def quantised(model: Any, folder: Path) -> Any:
        transformers: Any = import_module("transformers")
        model.save_pretrained(folder)
        config = transformers.BitsAndBytesConfig(**options)
        load = transformers.AutoModelForImageTextToText.from_pretrained
        return load(folder, quantization_config=config, device_map="cpu").eval()

    return quantised


# Name -> the library that it needs, and how the model is held.
WAYS: dict[str, tuple[str, Way]] = {
    "plain, float32": ("torch", lambda model, _: model),
    "torch.compile(model)": ("torch", compiled),
    "LoRA in encoder and language model": ("peft", lora),
    "the same LoRA, merged": ("peft", merged),
    "offloaded to the disk": ("accelerate", on_disk),
    "bfloat16": ("torch", lambda model, _: model.bfloat16()),
    "torchao, int8 weights": ("torchao", torchao("Int8WeightOnlyConfig")),
    "torchao, float8 weights": ("torchao", torchao("Float8WeightOnlyConfig")),
    "torchao, int8 weights and activations": ("torchao", torchao("Int8DynamicActivationInt8WeightConfig")),
    "bitsandbytes, int8": ("bitsandbytes", bitsandbytes(load_in_8bit=True)),
    "bitsandbytes, 4 bits (nf4)": ("bitsandbytes", bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
}


def picture() -> Image.Image:
    receipt = arr_coc.pictures.receipt()
    return receipt.crop((0, 0, receipt.width, receipt.height // 4))


@torch.no_grad()
def differences(vlm: VLM) -> tuple[float, float]:
    """`all` and `some` of the module's docstring, the largest over the questions."""
    model, receipt = vlm.adapter.model, picture()
    found = []
    for question in QUESTIONS:
        message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text = vlm.processor.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        inputs = vlm.processor(text=[text], images=[receipt], return_tensors="pt")
        dense = model(**inputs).logits[0, -1]
        whole = vlm.prepare(receipt, question)
        everything = model(**whole.make()).logits[0, -1]
        pruned = vlm.prepare(receipt, question, budget=BUDGET, selector="uniform")
        hidden = whole.make()
        hidden["attention_mask"] = torch.zeros_like(hidden["attention_mask"])
        hidden["attention_mask"][0, pruned.source[0]] = 1
        masked, kept = model(**hidden).logits[0, -1], model(**pruned.make()).logits[0, -1]
        found.append(((everything - dense).abs().max().item(), (kept - masked).abs().max().item()))
    every, some = zip(*found, strict=True)
    return max(every), max(some)


def answers(vlm: VLM) -> list[tuple[str, list[int]]]:
    """Text and kept cells of each question."""
    look = vlm.look(picture())
    given = [vlm.ask(look, question, budget=BUDGET, max_new_tokens=TOKENS) for question in QUESTIONS]
    return [(answer.text, answer.allocation.keep.tolist()) for answer in given]


def state_ms(vlm: VLM) -> float:
    times = []
    for _ in range(50):
        start = time.perf_counter()
        vlm.adapter.encoder_state()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def measure(name: str, plain: VLM, expected: list[tuple[str, list[int]]]) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        vlm = arr_coc.wrap(WAYS[name][1](copy.deepcopy(plain.model), folder), plain.processor)
        every, some = differences(vlm)
        given = answers(vlm)
        shared = sum(len(set(ours) & set(theirs)) for (_, ours), (_, theirs) in zip(given, expected, strict=True))
        return {
            "model": name,
            "all": every,
            "some": some,
            "cells": [shared, sum(len(keep) for _, keep in given)],
            "answers": [
                sum(ours == theirs for (ours, _), (theirs, _) in zip(given, expected, strict=True)),
                len(given),
            ],
            "state_ms": round(state_ms(vlm), 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    plain = arr_coc.load("reader", layer=None)
    expected = answers(plain)
    rows = []
    print("| model | all | some | cells | answers | state, ms |\n|---|---|---|---|---|---|")
    for name, (library, _) in WAYS.items():
        if find_spec(library) is None:
            print(f"| {name} | {library} is not installed |||||")
            continue
        row = measure(name, plain, expected)
        rows.append(row)
        cells, same = (f"{part} of {whole}" for part, whole in (row["cells"], row["answers"]))
        print(f"| {name} | {row['all']:.2g} | {row['some']:.2g} | {cells} | {same} | {row['state_ms']} |", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
