"""Measures the time of 1 to 50 questions about one image: encoded once and cached, or encoded for each question.

    python benchmarks/embedding_amortisation.py ENCODER PROJECTION [--out amortisation.jsonl] [--plot amortisation.png]

A grid of positions is scored for each question in one of four ways, named as in the output:
- "kept": `arr_coc.Embeddings` on a texture. The first question reads, hashes, encodes and compresses the image; each further one
  only encodes its text and multiplies. All questions are asked in sequence.
- "anew": the encoder runs on the whole image, in full dimensions, for every question.
- "crops": for every question, a crop around each position is encoded at the encoder's own size. Crops run in batches of AT_ONCE,
  which is as fast on a CPU and fits into memory.
- "crops kept": the crops are encoded once.
Without a cache every question costs the same, so these are run a few times and multiplied. The encoder counts its own runs; a
batch of crops counts as many.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.bench.timing import machine
from arr_coc.embedding.encoder import Encoder, Mode, open_encoder
from arr_coc.embedding.field import Field
from arr_coc.errors import ArrCocError
from arr_coc.training.projection.fit import THINGS

QUESTIONS = tuple(f"Where is the {thing}?" for thing in THINGS[:50])
SHOWN = (1, 2, 5, 10, 20, 50)
SIDES = (512, 1024, 2048, 4096)
POSITIONS = (64, 256, 1024, 4096)
SIDE, POSITION = 1024, 256  # where the other is varied
AT_ONCE = 64
CROP = 224  # pixels of a crop as the encoder sees it
REACH = 1 / 8  # of the picture's side: how much a crop shows


def picture(side: int) -> torch.Tensor:
    """`[3, side, side]`, a drawn street scene."""
    image = arr_coc.pictures.scene().resize((side, side))
    return arr_coc.TextureArray.from_image(image, max_side=None).pixels


def crops(pixels: torch.Tensor, grid: int) -> torch.Tensor:
    """A crop around the centre of each cell, `[grid * grid, 3, CROP, CROP]`."""
    centres = (torch.arange(grid) + 0.5) / grid * 2 - 1
    inside = torch.linspace(-REACH, REACH, CROP)
    y = (centres[:, None] + inside)[:, None, :, None].expand(grid, grid, CROP, CROP)
    x = (centres[:, None] + inside)[None, :, None, :].expand(grid, grid, CROP, CROP)
    places = torch.stack([x, y], -1).reshape(1, grid * grid * CROP, CROP, 2)
    seen = F.grid_sample(pixels[None], places, padding_mode="border", align_corners=False)
    return seen[0].reshape(3, grid * grid, CROP, CROP).transpose(0, 1)


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds, and what came of it."""
    start = time.perf_counter()
    made = task()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3, made


@contextmanager
def stopwatch(encoder: Encoder) -> Iterator[list[float]]:
    """The milliseconds of each of the encoder's text calls."""
    spent: list[float] = []
    text = encoder.text

    def watched(questions: Sequence[str]) -> torch.Tensor:
        milliseconds, vectors = timed(lambda: text(questions))
        spent.append(milliseconds)
        return vectors

    encoder.text = watched  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        del encoder.text


def typical(task: Callable[[], Any], rounds: int) -> float:
    return statistics.median(timed(task)[0] for _ in range(rounds))


def kept(embeddings: arr_coc.Embeddings, pixels: torch.Tensor, grid: int) -> dict[str, Any]:
    """All questions on one texture: cumulative milliseconds, and the cost of a further question without its text."""
    fresh = arr_coc.Embeddings(embeddings.encoder, embeddings.projection, mode=embeddings.mode)
    fresh.query(["to warm up"])
    texture = arr_coc.TextureArray.from_image(pixels, max_side=None, embeddings=fresh)
    spent, extra = [], []
    for question in QUESTIONS:
        with stopwatch(embeddings.encoder) as text:
            whole, _ = timed(lambda q=question: fresh.scores(texture, [q], grid=(grid, grid)))  # type: ignore[misc]
        spent.append(whole)
        extra.append(whole - sum(text))
    totals = torch.tensor(spent).cumsum(0).tolist()
    return {
        "total_ms": {str(count): totals[count - 1] for count in SHOWN},
        "first_ms": spent[0],
        "later_ms": statistics.median(spent[1:]),
        "later_beside_text_ms": statistics.median(extra[1:]),
        "encoder_runs": fresh.runs.pictures,
    }


def again(task: Callable[[], Any], rounds: int, runs: int) -> dict[str, Any]:
    """What each question costs again: totals are multiples."""
    each = typical(task, rounds)
    return {
        "total_ms": {str(count): each * count for count in SHOWN}, "each_ms": each, "encoder_runs": runs * max(SHOWN),
    }  # fmt: skip


def measure(
    encoder: Encoder, projection: arr_coc.Projection, mode: Mode, side: int, positions: int, rounds: int
) -> list[dict[str, Any]]:
    grid = round(positions**0.5)
    pixels = picture(side)
    embeddings = arr_coc.Embeddings(encoder, projection, mode=mode)
    encoder.dense(pixels, mode)  # to warm up

    def encode_again() -> torch.Tensor:
        dense = encoder.dense(pixels, mode).features.float()
        there = Field(dense, (side, side)).grid(grid, grid).flatten(1)
        return projection.full_scores(there.T, encoder.text(QUESTIONS[:1]))

    def cropped() -> torch.Tensor:
        seen = [batch_vectors(encoder, part) for part in torch.split(crops(pixels, grid), AT_ONCE)]
        return projection.full_scores(torch.cat(seen), encoder.text(QUESTIONS[:1]))

    head = {"mode": mode, "side": side, "positions": grid * grid}
    lines = [
        head | {"way": "kept"} | kept(embeddings, pixels, grid),
        head | {"way": "anew"} | again(encode_again, rounds, 1),
    ]
    if mode == "fast":  # crops have one size, whatever the mode
        text = typical(lambda: encoder.text(QUESTIONS[:1]), 5)
        found = again(cropped, 1 if positions > 256 else min(rounds, 2), grid * grid)
        lines.append(head | {"way": "crops"} | found)
        first = found["each_ms"]
        once = {str(count): first + (count - 1) * text for count in SHOWN}
        lines.append(head | {"way": "crops kept", "total_ms": once, "each_ms": first, "encoder_runs": grid * grid})
    return lines


def batch_vectors(encoder: Encoder, batch: torch.Tensor) -> torch.Tensor:
    """One vector for each picture of a batch `[B, 3, s, s]`: `[B, D]`, of length 1."""
    encode_batch = getattr(encoder, "encode_batch", None)
    if encode_batch is None:
        raise ArrCocError(f"{encoder!r} has no encode_batch(images), so it cannot take crops in one batch")
    with torch.inference_mode():
        return F.normalize(encode_batch(batch.to(encoder.device)).float().flatten(2).mean(2), dim=1).cpu()


def table(lines: Sequence[dict[str, Any]]) -> str:
    heads = [
        "mode",
        "px",
        "positions",
        "way",
        *(f"{count} question{'s' * (count > 1)}, ms" for count in SHOWN),
        "image encoder runs",
    ]
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for line in lines:
        totals = [f"{line['total_ms'][str(count)]:,.0f}" for count in SHOWN]
        first = [line["mode"], str(line["side"]), str(line["positions"]), line["way"]]
        rows.append("| " + " | ".join([*first, *totals, str(line["encoder_runs"])]) + " |")
    return "\n".join(rows)


def draw(lines: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    from arr_coc.evaluation.plots import figure_class

    figure = figure_class()(figsize=(13, 4), layout="constrained")
    questions, sides, positions = figure.subplots(1, 3, sharey=True)
    colours = {"kept": "tab:blue", "anew": "tab:orange", "crops": "tab:red", "crops kept": "tab:pink"}
    styles = {"fast": "-", "native": "--"}
    for way, colour in colours.items():
        for mode, style in styles.items():
            mine = [line for line in lines if line["way"] == way and line["mode"] == mode]
            if not mine:
                continue
            look: dict[str, Any] = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3}
            look["label"] = way if way.startswith("crops") else f"{way}, {mode}"
            for line in mine:
                if (line["side"], line["positions"]) == (SIDE, POSITION):
                    questions.plot(SHOWN, [line["total_ms"][str(count)] for count in SHOWN], **look)
            by_side = sorted((line["side"], line["total_ms"]["10"]) for line in mine if line["positions"] == POSITION)
            by_position = sorted((line["positions"], line["total_ms"]["10"]) for line in mine if line["side"] == SIDE)
            sides.plot(*zip(*by_side, strict=True), **look)
            positions.plot(*zip(*by_position, strict=True), **look)
    for axis, label, ticks in (
        (questions, f"questions ({SIDE} px, {POSITION} positions)", SHOWN),
        (sides, f"px (10 questions, {POSITION} positions)", SIDES),
        (positions, f"positions (10 questions, {SIDE} px)", POSITIONS),
    ):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    questions.set_ylabel("milliseconds in all")
    questions.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=144)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("projection", type=Path)
    parser.add_argument("--sides", type=int, nargs="+", default=list(SIDES))
    parser.add_argument("--positions", type=int, nargs="+", default=list(POSITIONS))
    parser.add_argument("--modes", nargs="+", choices=("fast", "native"), default=["fast", "native"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    encoder = open_encoder(arguments.encoder, arguments.device)
    projection = arr_coc.Projection.load(arguments.projection)
    wanted = list(dict.fromkeys([(s, POSITION) for s in arguments.sides] + [(SIDE, p) for p in arguments.positions]))
    said = {
        "encoder": encoder.identity,
        "dims": projection.dims,
        "machine": machine(),
        "date": date.today().isoformat(),
    }
    lines: list[dict[str, Any]] = []
    for mode in arguments.modes:
        for side, positions in wanted:
            found = measure(encoder, projection, mode, side, positions, arguments.rounds)
            lines += found
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.writelines(json.dumps(said | line) + "\n" for line in found)
    print(f"{encoder.identity}; {said['machine']}, {said['date']}\n\n{table(lines)}\n")
    later = [line for line in lines if line["way"] == "kept"]
    worst = max(later, key=lambda line: float(line["later_beside_text_ms"]))
    print(
        f"A later question costs its text and at most {worst['later_beside_text_ms']:.2f} ms "
        f"(median over 49 questions; {worst['mode']} mode, {worst['side']} px, {worst['positions']} positions)."
    )
    if arguments.plot is not None:
        draw(lines, arguments.plot, f"{encoder.identity}, {said['machine']}, {said['date']}")


if __name__ == "__main__":
    main()
