"""Why these cells: a sheet with the kept cells, the relevance, each way of knowing, and the decision in words."""

from __future__ import annotations

import textwrap

import torch
from PIL import Image, ImageDraw

from arr_coc.draw.overlay import font, lit
from arr_coc.types.allocation import Allocation
from arr_coc.types.image import ImageLike, read_picture

PAPER, INK, FAINT = "#ffffff", "#1c2126", "#6b747d"
TILE = 560  # pixels of a tile's longer side, at most
GAP, LINE = 14, 20
MEANING = {
    "information": "is there anything to read or see",
    "salience": "does it stand out",
    "coupling": "what has it to do with the question",
}


def sheet(allocation: Allocation, image: ImageLike, question: str = "", answer: str = "") -> Image.Image:
    """What was kept of a still picture and why; scores that the selector did not return are left out."""
    picture = read_picture(image).pixels
    tiles = [(f"kept: {allocation.k} of {allocation.n} cells", "", allocation.overlay(image))]
    if allocation.relevance is not None:
        tiles.append(("relevance", "all ways together", _heat(allocation, image, allocation.relevance)))
    for name, values in allocation.scores.items():
        tiles.append((name, MEANING.get(name, ""), _heat(allocation, image, values)))
    height, width = picture.shape[-2:]
    scale = TILE / max(height, width)
    wide, high = max(1, round(width * scale)), max(1, round(height * scale))
    step = max(wide, 190) + GAP
    words = _words(allocation, question, answer, columns=max(40, step * len(tiles) // 8))
    made = Image.new("RGB", (GAP + step * len(tiles), GAP + 2 * LINE + high + GAP + LINE * len(words) + GAP), PAPER)
    pen = ImageDraw.Draw(made)
    for number, (title, meaning, shown) in enumerate(tiles):
        left = GAP + number * step
        pen.text((left, GAP - 4), title, fill=INK, font=font(16))
        pen.text((left, GAP + LINE - 4), meaning, fill=FAINT, font=font(12))
        made.paste(shown.resize((wide, high), Image.Resampling.LANCZOS), (left, GAP + 2 * LINE))
    for number, line in enumerate(words):
        pen.text((GAP, 2 * GAP + 2 * LINE + high + LINE * number), line, fill=INK, font=font(14))
    return made


def describe(allocation: Allocation) -> list[str]:
    """The decision in a few sentences."""
    name, _, why = allocation.strategy.partition(": ")
    lines = [f"{name}: {why}." if why else f"{name}."]
    tensions = [f"{way} {value:.2f}" for way, value in allocation.tensions.items() if not way.startswith("weight of ")]
    weights = [
        f"{way.removeprefix('weight of ')} {value:.2f}"
        for way, value in allocation.tensions.items()
        if way.startswith("weight of ")
    ]
    if tensions:
        lines.append(f"Tensions: {', '.join(tensions)}.")
    if weights:
        lines.append(f"Weights: {', '.join(weights)}.")
    lines += [f"Note: {note}." for note in allocation.notes]
    return lines + ([f"Fell back: {allocation.fallback}."] if allocation.fallback else [])


def _words(allocation: Allocation, question: str, answer: str, columns: int) -> list[str]:
    asked = [f"{question}  {answer}".strip()] if question or answer else []
    return [line for sentence in [*asked, *describe(allocation)] for line in textwrap.wrap(sentence, columns)]


def _heat(allocation: Allocation, image: ImageLike, values: torch.Tensor) -> Image.Image:
    """Cells bright by their values, over a dark picture: print stays readable where it counts."""
    shown = values.detach().float().cpu().clamp(0, 1)
    return lit(read_picture(image).pixels, allocation.pieces(0.12 + 0.88 * shown))
