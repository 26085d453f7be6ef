"""A loop as a server runs it: different pictures and questions from JPEG files, sizes mixed, the stock model against ours.

    python benchmarks/server_loop.py --quick --out goals.jsonl                # the cases of the goals, in eight minutes on a GPU
    python benchmarks/server_loop.py --models Qwen2-VL-2B --out loop.jsonl    # 200 pictures of mixed sizes
    python benchmarks/server_loop.py --tiny                                   # the same loop on a small model, on a CPU
    python benchmarks/server_loop.py --table loop.jsonl

`--quick`: pictures of 1024 px one by one and in batches of eight, and of 2048 px one by one; a quarter of the cells is encoded, an
eighth is read. Every round is written as soon as it is measured; stopped early (Ctrl-C, `timeout`), the table shows what there is.

Every request is a file: decoding, resizing, choosing, encoding and 16 tokens are counted. The ways take turns on each request, in
changing order: `stock` is the model's own processor and `generate`; `plain` is `vlm.generate` with a layer; `recorded` is the
same after `vlm.record`. Weights are random, because only the answer depends on them. No picture or question comes twice.
First token: all of the request but decoding after the first token. The medians and 99th percentiles are over requests.
Choosing: texture, glance, layer and gaze, for each picture. Memory: the most that was allocated beyond what lay there before, and for
the recorded way all that its recordings hold.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
CHOOSING = ("texture", "embed", "glance", "layer", "probe", "gaze")  # stages of an answer
QUICK = ((1024, 1), (1024, 8), (2048, 1))  # px, batch
QUICK_PICTURES = 24  # of each size; they come again with other questions
Spent = dict[str, float]


@dataclass(frozen=True)
class Request:
    """One picture on disk, and what is asked about it."""

    path: Path
    question: str
    side: int


def write_requests(place: Path, count: int, sides: Sequence[int], square: bool = False) -> list[Request]:
    """Drawn documents and scenes with a question each, as JPEG files of mixed sizes."""
    found, dice = [], random.Random(0)
    for number in range(count):
        drawn = draw_any(number)
        side, ratio = sides[number % len(sides)], 1.0 if square else dice.choice(RATIOS)
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


def by_stock(vlm: VLM, requests: Sequence[Request]) -> tuple[Spent, list[list[int]]]:
    """The model's own processor and `generate`: milliseconds of decoding after the first token, and the tokens."""
    pictures = [Image.open(one.path).convert("RGB") for one in requests]
    texts = [vlm.prompter.render([user_message(one.question, 1, 0)]) for one in requests]
    inputs = vlm.processor(text=texts, images=pictures, padding=True, padding_side="left", return_tensors="pt")
    inputs = {name: value.to(vlm.device) for name, value in inputs.items()}
    watch = Stopwatch(vlm.device)
    with torch.no_grad():
        made = timed_generate(vlm.model, inputs, watch, {"max_new_tokens": NEW, "do_sample": False})
    return {"decode": watch["decode"]}, made.sequences[:, -NEW:].tolist()


def by_ours(vlm: VLM, requests: Sequence[Request], options: dict[str, Any]) -> tuple[Spent, list[list[int]]]:
    answers = vlm.generate(
        [one.path for one in requests], [one.question for one in requests], detail="off", max_new_tokens=NEW,
        do_sample=False, **options,
    )  # fmt: skip
    timings = answers[0].timings
    chosen = sum(timings.get(stage, 0.0) for stage in CHOOSING) / len(requests)
    return {"decode": timings["decode"], "choosing": chosen}, [one.ids.tolist() for one in answers]


def timed(
    vlm: VLM, way: Callable[[Sequence[Request]], tuple[Spent, list[list[int]]]], some: Sequence[Request]
) -> tuple[Spent, list[list[int]]]:
    on_gpu = vlm.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    spent, said = way(some)
    if on_gpu:
        torch.cuda.synchronize()
    whole = 1000 * (time.perf_counter() - start)
    found = {"first": whole - spent.pop("decode"), "whole": whole, **spent}
    if on_gpu:
        found["MB"] = (torch.cuda.max_memory_allocated() - before) / 1e6
    return found, said


def run(
    name: str, vlm: VLM, requests: Sequence[Request], batch: int, options: dict[str, Any], warm: int,
    texts: Sequence[int], until: float = float("inf"),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Every batch of requests by every way in turn, until that time; the first `warm` batches are not kept."""
    cost = vlm.record(
        budget=options["budget"], glance=options["glance"], texts=texts, batches=(batch,), new_tokens=NEW, most=8
    )
    say(f"{name}, batch {batch}: recorded {cost}")
    recordings = vlm.recordings
    assert recordings is not None
    note = {
        "recording": {"seconds": cost.seconds, "MB": cost.nbytes / 1e6, "graphs": cost.graphs},
        "machine": machine(), "date": date.today().isoformat(), "options": options,
    }  # fmt: skip
    ways: dict[str, Callable[[Sequence[Request]], tuple[Spent, list[list[int]]]]] = {
        "stock": lambda some: by_stock(vlm, some),
        "plain": lambda some: by_ours(vlm, some, options),
        "recorded": lambda some: by_ours(vlm, some, options),
    }
    order = list(WAYS)
    try:
        for number in range(0, len(requests) - batch + 1, batch):
            if number > warm * batch and time.monotonic() > until:
                break
            some = requests[number : number + batch]
            record: dict[str, Any] = {"model": name, "batch": batch, "sides": [one.side for one in some]}
            said = {}
            for way in order:
                vlm.recordings = recordings if way == "recorded" else None
                record[way], said[way] = timed(vlm, ways[way], some)
            record["same"] = said["plain"] == said["recorded"]
            order.append(order.pop(0))
            if number >= warm * batch:
                yield {**record, **note, "used": int(recordings.used.total()), "skipped": dict(recordings.skipped)}
    finally:
        vlm.recordings = None
        recordings.clear()


def say(text: str) -> None:
    """Progress."""
    print(f"{time.monotonic() - STARTED:5.0f} s  {text}", file=sys.stderr, flush=True)


STARTED = time.monotonic()


def table(records: Sequence[dict[str, Any]]) -> str:
    """Medians and 99th percentiles by model, size and batch."""
    lines = [
        "| model | px | batch | requests | way | first token ms | 99% | whole answer ms | 99% | against stock: first, whole "
        "| choosing ms a picture | memory MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in sorted({_group(one) for one in records}):
        some = [one for one in records if _group(one) == group]
        for way in WAYS:
            cells, gains = [], []
            for what in ("first", "whole"):
                times = sorted(one[way][what] for one in some)
                cells += [
                    f"{statistics.median(times):.1f}",
                    f"{times[min(len(times) - 1, int(0.99 * len(times)))]:.1f}",
                ]
                gains.append(f"{statistics.median(one['stock'][what] / one[way][what] for one in some):.2f} x")
            chosen = [one[way]["choosing"] for one in some if "choosing" in one[way]]
            held = [one[way]["MB"] for one in some if "MB" in one[way]]
            more = some[0]["recording"]["MB"] if way == "recorded" else 0.0
            shown = [f"{statistics.median(chosen):.1f}" if chosen else "", f"{max(held) + more:.0f}" if held else ""]
            model, side, batch = group
            cells += [", ".join(gains), *shown]
            lines.append(f"| {model} | {side} | {batch} | {len(some) * batch} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _group(record: dict[str, Any]) -> tuple[str, str, int]:
    return record["model"], str(record.get("px", "mixed")), record["batch"]


def cases(
    arguments: argparse.Namespace, vlm: VLM, place: Path
) -> Iterator[tuple[int | None, int, list[Request], dict[str, Any]]]:
    """Sizes (None: mixed), batches, requests and options."""
    options: dict[str, Any] = {"budget": arguments.budget, "glance": arguments.glance, "selector": "arr-coc"}
    if not arguments.quick:
        if arguments.tiny:
            options |= {"budget": 4, "glance": 8}
        for batch in arguments.batches:
            yield (
                None,
                batch,
                requests_in(place, arguments.pictures, [side // (8 if arguments.tiny else 1) for side in SIDES]),
                options,
            )
        return
    vision = vlm.model.config.vision_config
    cell = vision.patch_size * vision.spatial_merge_size
    for side, batch in QUICK:
        size = side // 8 if arguments.tiny else side
        drawn = requests_in(place, min(arguments.pictures, QUICK_PICTURES), [size], square=True)
        again = [
            Request(one.path, f"{one.question[:40]} {number}", one.side)
            for number in range(arguments.pictures)
            for one in [drawn[number % len(drawn)]]
        ]
        count = round(size / cell) ** 2
        yield side, batch, again, options | {"budget": max(1, round(count / 8)), "glance": max(2, round(count / 4))}


def requests_in(place: Path, count: int, sides: Sequence[int], square: bool = False) -> list[Request]:
    """The requests of a folder; they are drawn once."""
    key = f"{count} {min(sides)} {max(sides)} {square}"
    if key not in DRAWN:
        folder_ = place / key.replace(" ", "-")
        folder_.mkdir(parents=True)
        say(f"drawing {count} pictures of {min(sides)} to {max(sides)} px")
        DRAWN[key] = write_requests(folder_, count, sides, square)
    return DRAWN[key]


DRAWN: dict[str, list[Request]] = {}


def measure(arguments: argparse.Namespace, device: str, records: list[dict[str, Any]]) -> None:
    """Fill `records`, and write each to the file as it comes."""
    texts: Sequence[int] = (96, 128) if arguments.quick else (64, 96, 128)  # a question has a token for each character
    texts = (16, 32, 64, 128) if arguments.tiny else texts
    DRAWN.clear()
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(arguments.models):
            say(f"{name}: making its weights")
            vlm = build(name, arguments.tiny, device)
            ends = STARTED + arguments.seconds * (number + 1) / len(arguments.models)
            todo = len(QUICK) if arguments.quick else len(arguments.batches)
            for side, batch, requests, options in cases(arguments, vlm, Path(place)):
                until = time.monotonic() + max(0.0, ends - time.monotonic()) / todo
                todo -= 1
                shown = 0.0
                for record in run(name, vlm, requests, batch, options, arguments.warm, texts, until):
                    records.append(record if side is None else {**record, "px": side})
                    if arguments.out:
                        with arguments.out.open("a") as file:
                            file.write(json.dumps(records[-1]) + "\n")
                    if time.monotonic() - shown > 5:
                        shown = time.monotonic()
                        spent = ", ".join(f"{way} {record[way]['whole']:.0f}" for way in WAYS)
                        say(f"{name}, {side or 'mixed'} px, batch {batch}: ms of an answer: {spent}")
            del vlm
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


def main(given: Sequence[str] | None = None) -> None:
    global STARTED
    STARTED = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(PROCESSORS), default=list(PROCESSORS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--warm", type=int, default=4, help="batches before the first that counts")
    parser.add_argument("--budget", type=int, default=168, help="cells that are read: an eighth of those of 1024 px")
    parser.add_argument("--glance", type=int, default=344, help="cells that are encoded: a quarter")
    parser.add_argument("--quick", action="store_true", help="the cases of the goals instead of mixed sizes")
    parser.add_argument(
        "--seconds", type=float, help="time for all, shared by the models (--quick: 420; else no limit)"
    )
    parser.add_argument("--out", type=Path, help="write one line for each batch of requests, as it is measured")
    parser.add_argument("--tiny", action="store_true", help="a small model and small pictures, for a CPU")
    parser.add_argument("--table", type=Path, help="print measurements as Markdown")
    arguments = parser.parse_args(given)
    if arguments.table:
        print(table([json.loads(line) for line in arguments.table.read_text().splitlines()]))
        return
    device = "cpu" if arguments.tiny or not torch.cuda.is_available() else "cuda"
    if device == "cpu" and not arguments.tiny:
        parser.error("expected a GPU for the true shapes, got none: pass --tiny")
    if arguments.seconds is None:
        arguments.seconds = 420.0 if arguments.quick else float("inf")
    records: list[dict[str, Any]] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` sends it
    try:
        measure(arguments, device, records)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        signal.signal(signal.SIGTERM, before)
    if not records:
        print("nothing was measured")
        return
    last = records[-1]
    print(f"{last['machine']}, {last['date']}, arr_coc {arr_coc.__version__}")
    print(table(records))
    print(
        f"recorded: {last['used']} uses, {last['skipped']}; answers other than unrecorded ones: {sum(not r['same'] for r in records)}"
    )


if __name__ == "__main__":
    main()
