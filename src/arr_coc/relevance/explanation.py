"""An image that explains a selection: the kept cells, the relevance, every score, and the decision in sentences."""

from __future__ import annotations

import textwrap

import torch
from PIL import Image, ImageDraw

from arr_coc.draw.overlay import font, lit
from arr_coc.types.allocation import Allocation
from arr_coc.types.image import ImageLike, read_picture

PAPER, INK, FAINT = "#ffffff", "#1c2126", "#6b747d"
TILE = 560  # length of a tile's longer side, in pixels
GAP, LINE = 14, 20
MEANING = {
    "information": "anything to read or see",
    "salience": "what stands out",
    "coupling": "how it relates to the question",
}


def sheet(allocation: Allocation, image: ImageLike, question: str = "", answer: str = "") -> Image.Image:
    """Tiles with the kept cells, the relevance and the scores that the selector returned, and sentences below them."""
    picture = read_picture(image).pixels
    tiles = [(f"kept: {allocation.k} of {allocation.n} cells", "", allocation.overlay(image))]
    if allocation.relevance is not None:
        tiles.append(("relevance", "the scores, weighed", _heat(allocation, image, allocation.relevance)))
    for name, values in allocation.scores.items():
        tiles.append((name, MEANING.get(name, ""), _heat(allocation, image, values)))
    height, width = picture.shape[-2:]
    scale = TILE / max(height, width)
    tile_width, tile_height = max(1, round(width * scale)), max(1, round(height * scale))
    step = max(tile_width, 190) + GAP
    lines = _wrap(allocation, question, answer, columns=max(40, step * len(tiles) // 8))
    canvas = Image.new(
        "RGB", (GAP + step * len(tiles), GAP + 2 * LINE + tile_height + GAP + LINE * len(lines) + GAP), PAPER
    )
    pen = ImageDraw.Draw(canvas)
    for number, (title, meaning, tile) in enumerate(tiles):
        left = GAP + number * step
        pen.text((left, GAP - 4), title, fill=INK, font=font(16))
        pen.text((left, GAP + LINE - 4), meaning, fill=FAINT, font=font(12))
        canvas.paste(tile.resize((tile_width, tile_height), Image.Resampling.LANCZOS), (left, GAP + 2 * LINE))
    for number, line in enumerate(lines):
        pen.text((GAP, 2 * GAP + 2 * LINE + tile_height + LINE * number), line, fill=INK, font=font(14))
    return canvas


def describe(allocation: Allocation) -> list[str]:
    """The strategy, tensions, weights, notes and fallback of a selection, one sentence each."""
    strategy, _, why = allocation.strategy.partition(": ")
    lines = [f"{strategy}: {why}." if why else f"{strategy}."]
    tensions = [
        f"{name} {value:.2f}" for name, value in allocation.tensions.items() if not name.startswith("weight of ")
    ]
    weights = [
        f"{name.removeprefix('weight of ')} {value:.2f}"
        for name, value in allocation.tensions.items()
        if name.startswith("weight of ")
    ]
    if tensions:
        lines.append(f"Tensions: {', '.join(tensions)}.")
    if weights:
        lines.append(f"Weights: {', '.join(weights)}.")
    lines += [f"Note: {note}." for note in allocation.notes]
    return lines + ([f"Fell back: {allocation.fallback}."] if allocation.fallback else [])


def _wrap(allocation: Allocation, question: str, answer: str, columns: int) -> list[str]:
    first = [f"{question}  {answer}".strip()] if question or answer else []
    return [line for sentence in [*first, *describe(allocation)] for line in textwrap.wrap(sentence, columns)]


def _heat(allocation: Allocation, image: ImageLike, values: torch.Tensor) -> Image.Image:
    """The image with each cell as bright as its value, so that text stays readable in relevant cells."""
    brightness = values.detach().float().cpu().clamp(0, 1)
    return lit(read_picture(image).pixels, allocation.pieces(0.12 + 0.88 * brightness), allocation.region)
