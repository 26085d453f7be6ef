"""From documents to batches: pictures, dense targets, and several questions per picture in one row of text.

Each question with its answer is a segment. Segments of a row do not attend to each other, and the positions of each start
right after the picture. So each question is trained as if it were asked alone, which is how the reader is used.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from arr_coc.training.documents.page import UNNAMED_COLOUR, Document, PageQuestion
from arr_coc.training.documents.questions import reading_questions
from recipes.reader import vocabulary
from recipes.reader.augment import STRAIGHT, random_warp, warp_points
from recipes.reader.recipe import Grid, StepKind
from recipes.reader.vocabulary import FIRST_CHARACTER, LAST_CHARACTER

NO_TARGET = -100
NO_SEGMENT = -1
SLOTS = 8  # character targets of a cell, in reading order; further characters are dropped


@dataclass(frozen=True)
class Batch:
    """Documents of one canvas shape. B pictures, N cells, T tokens of text."""

    kind: StepKind
    grid: Grid
    images: torch.Tensor  # [B, C, H, W] uint8, C = 1 or 3
    warps: torch.Tensor  # [B, 2, 3] page pixels -> shown pixels
    cells: torch.Tensor  # [B, N, SLOTS] uint8
    colours: torch.Tensor  # [B, N] uint8
    evidence: torch.Tensor  # [B, N] bool: cells that a question of the row needs
    caseless: torch.Tensor  # [B] bool
    tokens: torch.Tensor  # [B, T] long
    targets: torch.Tensor  # [B, T] long, the next token where it is an answer's
    segment: torch.Tensor  # [B, T] long, NO_SEGMENT for padding
    place: torch.Tensor  # [B, T] long, position within the segment
    weights: torch.Tensor  # [B, T] float, of the targets

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: change(value) for name, value in values.items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **changed)

    def to(self, device: torch.device | str) -> "Batch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        return self._map(torch.Tensor.pin_memory)


@dataclass(frozen=True)
class Row:
    """One document of a batch, as arrays."""

    image: np.ndarray
    warp: np.ndarray
    cells: np.ndarray
    colours: np.ndarray
    evidence: np.ndarray
    caseless: bool
    text: np.ndarray  # [4, T]: tokens, targets, segment, place
    weights: np.ndarray  # [T]


def pack(questions: list[PageQuestion], room: int) -> tuple[np.ndarray, np.ndarray, list[PageQuestion]]:
    """Pack segments into `room` tokens.

    Returns the text `[4, room]`, the targets' weights `[room]` and the questions that fit. A character of a long answer
    weighs less than one of a short answer: an address is no more important than a total.
    """
    weights = np.zeros(room, np.float32)
    text = np.empty((4, room), np.int64)
    text[0], text[1], text[2], text[3] = vocabulary.PAD, NO_TARGET, NO_SEGMENT, 0
    used = 0
    packed: list[PageQuestion] = []
    for question in questions:
        asked = [*vocabulary.encode(question.text), vocabulary.ASSISTANT]
        answer = [*vocabulary.encode(question.answer), vocabulary.END]
        length = len(asked) + len(answer)
        if used + length > room:
            continue
        text[0, used : used + length] = asked + answer
        text[1, used + len(asked) - 1 : used + length - 1] = answer
        weights[used + len(asked) - 1 : used + length - 1] = len(answer) ** -0.5
        text[2, used : used + length] = len(packed)
        text[3, used : used + length] = np.arange(length)
        packed.append(question)
        used += length
    return text, weights, packed


def cell_targets(codes: np.ndarray, points: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Characters per cell, `[rows * columns, SLOTS]` uint8, 0 for an empty slot.

    `codes` [n] are ASCII codes in reading order, `points` [n, 2] the characters' middles `(x, y)` counted in cells.
    """
    targets = np.zeros((rows * columns, SLOTS), np.uint8)
    column, row = np.floor(points).astype(np.int64).T
    inside = (
        (codes > FIRST_CHARACTER)
        & (codes <= LAST_CHARACTER)
        & (row >= 0)
        & (row < rows)
        & (column >= 0)
        & (column < columns)
    )
    cell, code = (row * columns + column)[inside], codes[inside]
    order = np.argsort(cell, kind="stable")
    cell, code = cell[order], code[order]
    first = np.searchsorted(cell, cell, side="left")
    slot = np.arange(len(cell)) - first
    kept = slot < SLOTS
    targets[cell[kept], slot[kept]] = code[kept]
    return targets


def cell_colours(colours: np.ndarray, points: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The number of the colour written in each cell, `[rows * columns]` uint8, `UNNAMED_COLOUR` where there is none.

    `colours` [n] and `points` [n, 2] belong to characters, as in `cell_targets`.
    """
    targets = np.full(rows * columns, UNNAMED_COLOUR, np.uint8)
    column, row = np.floor(points).astype(np.int64).T
    inside = (colours != UNNAMED_COLOUR) & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    targets[(row * columns + column)[inside]] = colours[inside]
    return targets


def _line_cells(points: np.ndarray, lengths: list[int], grid: Grid, wanted: set[int]) -> np.ndarray:
    """Cells with characters of the wanted lines, and the cells left and right of them: [N] bool."""
    columns, rows = grid
    mask = np.zeros((rows, columns), bool)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    chosen = points[np.isin(owner, list(wanted))]
    column, row = np.floor(chosen).astype(np.int64).T if len(chosen) else (np.empty(0, np.int64),) * 2
    for shift in (-1, 0, 1):
        moved = column + shift
        inside = (moved >= 0) & (moved < columns) & (row >= 0) & (row < rows)
        mask[row[inside], moved[inside]] = True
    return mask.reshape(-1)


def make_row(rng: random.Random, document: Document, grid: Grid, room: int, readings: int) -> Row:
    """One document as arrays: warped text places, dense targets, packed questions. The picture is `grid` cells of any size."""
    columns, rows = grid
    cell = document.image.shape[1] // columns
    warp = STRAIGHT if rng.random() < 0.25 else random_warp(rng, columns * cell, rows * cell)
    # Reading order within a cell: line by line from the top, left to right.
    lines = document.lines
    order = sorted(range(len(lines)), key=lambda index: lines[index].box[1])
    lengths = [len(line.text) for line in lines]
    xs = [line.middles for line in lines]
    ys = [np.full(len(line.text), (line.box[1] + line.box[3]) / 2) for line in lines]
    flat = np.stack([np.concatenate(xs), np.concatenate(ys)], 1) if lines else np.empty((0, 2))
    points = warp_points(warp, flat) / cell  # [characters, 2], in cells
    starts = np.cumsum([0, *lengths])
    sequence = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order]) if lines else np.empty(0, np.int64)
    codes = np.frombuffer("".join(line.text for line in lines).encode("ascii", "replace"), np.uint8).astype(np.int64)
    first_cells = [
        (int(points[starts[i], 1]), int(points[starts[i], 0])) if lengths[i] else (-1, -1) for i in range(len(lines))
    ]
    asked = list(document.questions)
    rng.shuffle(asked)
    asked = asked[: max(4, len(asked) - readings)] if len(asked) > 6 else asked
    reading = reading_questions(rng, document, first_cells, readings)
    # One reading question comes first: on a full page the others would take all of the room.
    text, weights, packed = pack(reading[:1] + asked + reading[1:], room)
    wanted = {index for question in packed for index in question.evidence}
    return Row(
        image=document.image,
        warp=warp,
        cells=cell_targets(codes[sequence], points[sequence], rows, columns),
        colours=cell_colours(np.repeat([line.colour for line in lines], lengths), points, rows, columns),
        evidence=_line_cells(points, lengths, grid, wanted),
        caseless=document.caseless,
        text=text,
        weights=weights,
    )


def as_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """[H, W] or [H, W, 3] -> [channels, H, W]."""
    if image.ndim == 3:
        return image.transpose(2, 0, 1)
    return np.broadcast_to(image, (channels, *image.shape))


def collate(kind: StepKind, grid: Grid, rows: list[Row]) -> Batch:
    channels = 3 if any(row.image.ndim == 3 for row in rows) else 1
    text = torch.from_numpy(np.stack([row.text for row in rows]))  # [B, 4, T]
    return Batch(
        kind=kind,
        grid=grid,
        images=torch.from_numpy(np.stack([as_channels(row.image, channels) for row in rows])),
        warps=torch.from_numpy(np.stack([row.warp for row in rows])),
        cells=torch.from_numpy(np.stack([row.cells for row in rows])).view(len(rows), -1, SLOTS),
        colours=torch.from_numpy(np.stack([row.colours for row in rows])),
        evidence=torch.from_numpy(np.stack([row.evidence for row in rows])),
        caseless=torch.tensor([row.caseless for row in rows]),
        tokens=text[:, 0].contiguous(),
        targets=text[:, 1].contiguous(),
        segment=text[:, 2].contiguous(),
        place=text[:, 3].contiguous(),
        weights=torch.from_numpy(np.stack([row.weights for row in rows])),
    )
