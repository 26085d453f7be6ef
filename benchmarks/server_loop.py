"""A loop as a server runs it: different pictures and questions from JPEG files, sizes mixed, the stock model against ours.

    python benchmarks/server_loop.py --models Qwen2-VL-2B --out loop.jsonl    # true shapes and random weights: a GPU
    python benchmarks/server_loop.py --tiny                                   # the same loop on a small model, on a CPU
    python benchmarks/server_loop.py --table loop.jsonl

Every request is a file: decoding, resizing, choosing, encoding and 16 tokens are counted. The ways take turns on each request, in
changing order: `stock` is the model's own processor and `generate`; `plain` is `vlm.generate` with a layer; `recorded` is the
same after `vlm.record`. Weights are random, because only the answer depends on them. No picture or question comes twice.
First token: all of the request but decoding after the first token. The medians and 99th percentiles are over requests.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import arr_coc
from arr_coc.adapters.loading import without_video
from arr_coc.adapters.processor import user_message
from arr_coc.bench.timing import machine
from arr_coc.devices import Stopwatch
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.training.documents.drawing import draw_any
from arr_coc.vlm.generation import timed_generate
from arr_coc.vlm.model import VLM
from gpu_speed import MODELS
from recipes.reader import folder, vocabulary

SIDES = (640, 768, 896, 1024, 1280, 1536, 1792, 2048)  # px of the longer side
RATIOS = (1.0, 0.75, 0.66, 1.33)
NEW = 16  # tokens of an answer
PROCESSORS = {
    "Qwen2-VL-2B": "Qwen2VLProcessor",
    "Qwen2.5-VL-7B": "Qwen2_5_VLProcessor",
    "Qwen3-VL-8B": "Qwen3VLProcessor",
}
IDS = {
    "image_token_id": vocabulary.IMAGE, "video_token_id": vocabulary.VIDEO,
    "vision_start_token_id": vocabulary.VISION_START, "vision_end_token_id": vocabulary.VISION_END,
}  # fmt: skip
WAYS = ("stock", "plain", "recorded")


@dataclass(frozen=True)
class Request:
    """One picture on disk, and what is asked about it."""

    path: Path
    question: str
    side: int


def write_requests(place: Path, count: int, sides: Sequence[int]) -> list[Request]:
    """Drawn documents and scenes with a question each, as JPEG files of mixed sizes."""
    found, dice = [], random.Random(0)
    for number in range(count):
        drawn = draw_any(number)
        side, ratio = sides[number % len(sides)], dice.choice(RATIOS)
        size = (round(side * min(1.0, ratio)), round(side * min(1.0, 1 / ratio)))
        path = place / f"{number}.jpg"
        Image.fromarray(drawn.image).convert("RGB").resize(size, Image.Resampling.BICUBIC).save(
            path, "JPEG", quality=90
        )
        found.append(Request(path, f"{drawn.questions[0].text} ({number})", side))
    dice.shuffle(found)
    return found


def processor_of(name: str, patch: int) -> Any:
    """The model's kind of processor, with the reader's tokens: one for each character."""
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=folder.tokenizer(), pad_token="<|pad|>", eos_token="<|end|>", unk_token="<|unknown|>"
    )
    images = Qwen2VLImageProcessorPil(patch_size=patch, size={"shortest_edge": 3136, "longest_edge": 12_845_056})
    base = without_video(getattr(transformers, PROCESSORS[name]))
    return base(images, words, chat_template=vocabulary.CHAT_TEMPLATE)


def build(name: str, tiny: bool, device: str) -> VLM:
    """The model at its true shapes, or a small one, with a layer that is sure, so that nothing else is asked."""
    config = MODELS[name]()
    for key, value in IDS.items():
        setattr(config, key, value)
    if tiny:
        _shrink(config)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForImageTextToText.from_config(
            config, dtype=torch.float32 if device == "cpu" else torch.bfloat16, attn_implementation="sdpa"
        )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = vocabulary.PAD
    made = VLM(model.eval(), processor_of(name, config.vision_config.patch_size), layer=None)
    layer = ArrCocLayer(config_for(made.adapter))
    torch.nn.init.constant_(layer.coupling.own.bias, 6.0)
    return VLM(made.model, made.processor, layer=layer)


def _shrink(config: Any) -> None:
    text, vision = config.text_config, config.vision_config
    for name, value in {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 32,
        "num_key_value_heads": 1, "vocab_size": vocabulary.VOCABULARY_SIZE,
    }.items():  # fmt: skip
        setattr(text, name, value)
    text.layer_types = ["full_attention"] * 4
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [6, 5, 5]}
    for name, value in {"depth": 4, "num_heads": 2, "intermediate_size": 96}.items():
        setattr(vision, name, value)
    wide = "embed_dim" if hasattr(vision, "embed_dim") else "hidden_size"  # Qwen2-VL's hidden_size is the output's
    setattr(vision, wide, 64)
    setattr(vision, "hidden_size" if wide == "embed_dim" else "out_hidden_size", 64)
    for name, blocks in {"fullatt_block_indexes": [3], "deepstack_visual_indexes": [1, 2]}.items():
        if hasattr(vision, name):
            setattr(vision, name, blocks)


def by_stock(vlm: VLM, requests: Sequence[Request]) -> tuple[float, list[list[int]]]:
    """The model's own processor and `generate`: milliseconds of decoding after the first token, and the tokens."""
    pictures = [Image.open(one.path).convert("RGB") for one in requests]
    texts = [vlm.prompter.render([user_message(one.question, 1, 0)]) for one in requests]
    inputs = vlm.processor(text=texts, images=pictures, padding=True, padding_side="left", return_tensors="pt")
    inputs = {name: value.to(vlm.device) for name, value in inputs.items()}
    watch = Stopwatch(vlm.device)
    with torch.no_grad():
        made = timed_generate(vlm.model, inputs, watch, {"max_new_tokens": NEW, "do_sample": False})
    return watch["decode"], made.sequences[:, -NEW:].tolist()


def by_ours(vlm: VLM, requests: Sequence[Request], options: dict[str, Any]) -> tuple[float, list[list[int]]]:
    answers = vlm.generate(
        [one.path for one in requests], [one.question for one in requests], detail="off", max_new_tokens=NEW,
        do_sample=False, **options,
    )  # fmt: skip
    return answers[0].timings["decode"], [one.ids.tolist() for one in answers]


def run(
    name: str,
    vlm: VLM,
    requests: Sequence[Request],
    batch: int,
    options: dict[str, Any],
    warm: int,
    texts: Sequence[int],
) -> list[dict[str, Any]]:
    """Every batch of requests by every way in turn; the first `warm` batches are not kept."""
    cost = vlm.record(
        budget=options["budget"], glance=options["glance"], texts=texts, batches=(batch,), new_tokens=NEW, most=8
    )
    recordings = vlm.recordings
    ways: dict[str, Callable[[Sequence[Request]], tuple[float, list[list[int]]]]] = {
        "stock": lambda some: by_stock(vlm, some),
        "plain": lambda some: by_ours(vlm, some, options),
        "recorded": lambda some: by_ours(vlm, some, options),
    }
    found: list[dict[str, Any]] = []
    order = list(WAYS)
    for number in range(0, len(requests) - batch + 1, batch):
        some = requests[number : number + batch]
        record: dict[str, Any] = {"model": name, "batch": batch, "sides": [one.side for one in some]}
        said = {}
        for way in order:
            vlm.recordings = recordings if way == "recorded" else None
            if vlm.device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            decode, said[way] = ways[way](some)
            if vlm.device.type == "cuda":
                torch.cuda.synchronize()
            whole = 1000 * (time.perf_counter() - start)
            record[way] = {"first": whole - decode, "whole": whole}
        record["same"] = said["plain"] == said["recorded"]
        order.append(order.pop(0))
        if number >= warm * batch:
            found.append(record)
    assert recordings is not None
    note = {
        "recording": {"seconds": cost.seconds, "MB": cost.nbytes / 1e6, "graphs": cost.graphs},
        "used": int(recordings.used.total()), "skipped": dict(recordings.skipped),
        "machine": machine(), "date": date.today().isoformat(), "options": options,
    }  # fmt: skip
    vlm.recordings = None
    recordings.clear()
    return [{**one, **note} for one in found]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Medians and 99th percentiles by model and batch."""
    lines = [
        "| model | batch | requests | way | first token ms | 99% | whole answer ms | 99% | against stock: first, whole |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = sorted({(one["model"], one["batch"]) for one in records})
    for model, batch in groups:
        some = [one for one in records if (one["model"], one["batch"]) == (model, batch)]
        for way in WAYS:
            cells, gains = [], []
            for what in ("first", "whole"):
                times = sorted(one[way][what] for one in some)
                cells += [
                    f"{statistics.median(times):.1f}",
                    f"{times[min(len(times) - 1, int(0.99 * len(times)))]:.1f}",
                ]
                gains.append(f"{statistics.median(one['stock'][what] / one[way][what] for one in some):.2f} x")
            lines.append(
                f"| {model} | {batch} | {len(some) * batch} | {way} | {' | '.join(cells)} | {', '.join(gains)} |"
            )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(PROCESSORS), default=list(PROCESSORS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--warm", type=int, default=4, help="batches before the first that counts")
    parser.add_argument("--budget", type=int, default=168, help="cells that are read: an eighth of those of 1024 px")
    parser.add_argument("--glance", type=int, default=344, help="cells that are encoded: a quarter")
    parser.add_argument("--out", type=Path, help="write one line for each batch of requests")
    parser.add_argument("--tiny", action="store_true", help="a small model and small pictures, for a CPU")
    parser.add_argument("--table", type=Path, help="print measurements as Markdown")
    arguments = parser.parse_args(given)
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    device = "cpu" if arguments.tiny or not torch.cuda.is_available() else "cuda"
    if device == "cpu" and not arguments.tiny:
        parser.error("expected a GPU for the true shapes, got none: pass --tiny")
    options: dict[str, Any] = {"budget": arguments.budget, "glance": arguments.glance, "selector": "arr-coc"}
    sides: Sequence[int] = SIDES
    texts: Sequence[int] = (64, 96, 128)  # a question has a token for each character here
    if arguments.tiny:
        options |= {"budget": 4, "glance": 8}
        texts = (16, 32, 64, 128)
        sides = tuple(side // 8 for side in SIDES)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        requests = write_requests(Path(place), arguments.pictures, sides)
        for name in arguments.models:
            vlm = build(name, arguments.tiny, device)
            for batch in arguments.batches:
                recorded = run(name, vlm, requests, batch, options, arguments.warm, texts)
                records += recorded
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.writelines(json.dumps(one) + "\n" for one in recorded)
            del vlm
    last = records[-1]
    print(f"{last['machine']}, {last['date']}, arr_coc {arr_coc.__version__}")
    print(table(records))
    print(
        f"recorded: {last['used']} uses, {last['skipped']}; answers other than unrecorded ones: {sum(not r['same'] for r in records)}"
    )


if __name__ == "__main__":
    main()
