"""Training pages of the universal layer: a document is drawn, printed, photographed, and cut into cells of any size.

A `TrainingPage` holds what the layer sees (pixels and channels of each cell), what it is asked, which cells show the answer,
and which letters lie in which cell. Nothing in it comes from a vision-language model.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.layer.inference import texture_features
from arr_coc.layer.model import LayerConfig
from arr_coc.texture import TextureArray
from arr_coc.training.documents.drawing import Drawing
from arr_coc.types.grid import Grid

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LETTER = {letter: number for number, letter in enumerate(LETTERS)} | {
    letter.upper(): number for number, letter in enumerate(LETTERS)
}
PIECE = 3.0  # a box is cut into pieces of at most this width over height, so that a tilted line has tight boxes
USUAL_CELLS = (28.0, 32.0)  # pixels of a cell in the families that people use most
MAX_CELLS = 1300
BY_COLOUR = frozenset(("scene", "notice", "chart"))  # kinds that are asked about by colour, or by what is above what


@dataclass(frozen=True)
class Asked:
    """A question. `groups`: cells that show the answer, any one group suffices; empty for an absent or a whole one."""

    text: str
    kind: str
    groups: tuple[np.ndarray, ...] = ()
    intent: str = "find"  # one of arr_coc.layer.universal.INTENTS


@dataclass(frozen=True)
class TrainingPage:
    pixels: np.ndarray  # uint8 [3 p^2, h, w]
    channels: np.ndarray  # float16 [C, h, w]
    letters: np.ndarray  # int32 [L, 2] cell, letter
    questions: tuple[Asked, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]


def photograph(
    rng: random.Random, image: np.ndarray, strength: float, as_seen: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The page as a scan or a photo of it: RGB uint8 `[H, W, 3]`, and the map of its points, a 3 x 3 homography.

    `strength` (0 to 1): how far it is tilted, lit and degraded. `as_seen`: it is neither turned nor inverted.
    """
    high, wide = image.shape[:2]
    move = np.eye(3)
    if rng.random() < 0.6 * strength:
        image, move = _on_table(rng, image, strength)
    elif rng.random() < 0.06 * strength and not as_seen:
        turns = rng.choice((1, 2, 3))
        image = np.ascontiguousarray(np.rot90(image, turns))
        move = {
            1: np.array([[0, 1, 0], [-1, 0, wide], [0, 0, 1.0]]),
            2: np.array([[-1, 0, wide], [0, -1, high], [0, 0, 1.0]]),
            3: np.array([[0, -1, high], [1, 0, 0], [0, 0, 1.0]]),
        }[turns]
    return _degrade(rng, image, strength, as_seen), move


def _on_table(rng: random.Random, image: np.ndarray, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """The page tilted and in perspective, on a surface around it."""
    high, wide = image.shape[:2]
    angle = np.deg2rad(rng.gauss(0, 5 * strength))
    margin = rng.uniform(0, 0.25 * strength)
    out_wide, out_high = round(wide * (1 + margin)), round(high * (1 + margin * rng.uniform(0.3, 1)))
    corners = np.array([[0, 0], [wide, 0], [wide, high], [0, high]], dtype=np.float32)
    spin = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array([wide, high]) / 2
    moved = (corners - middle) @ spin.T * rng.uniform(0.92, 1.0) + np.array([out_wide, out_high]) / 2
    jitter = 0.03 * strength * min(wide, high)
    moved += np.array([[rng.gauss(0, jitter), rng.gauss(0, jitter)] for _ in range(4)])
    move = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    surface = _surface(rng, out_high, out_wide)
    paper = cv2.warpPerspective(image, move, (out_wide, out_high), flags=cv2.INTER_AREA)
    where = cv2.warpPerspective(np.full((high, wide), 255, np.uint8), move, (out_wide, out_high))[..., None] / 255.0
    return (paper * where + surface * (1 - where)).astype(np.uint8), move


def _surface(rng: random.Random, high: int, wide: int) -> np.ndarray:
    """A table, cloth or wall: smooth noise at two scales in one colour: float `[H, W, 3]`."""
    noise = np.random.default_rng(rng.getrandbits(32))
    coarse = cv2.resize(noise.random((4, 4), dtype=np.float32), (wide, high), interpolation=cv2.INTER_CUBIC)
    fine = cv2.resize(
        noise.random((high // rng.choice((2, 4, 16)) + 2, wide // rng.choice((2, 4, 16)) + 2), dtype=np.float32),
        (wide, high),
    )
    colour = noise.random(3, dtype=np.float32) * 200 + 20
    return np.clip(colour * (0.5 + 0.5 * coarse + rng.uniform(0, 0.5) * (fine - 0.5))[..., None], 0, 255)


def _degrade(rng: random.Random, image: np.ndarray, strength: float, as_seen: bool) -> np.ndarray:
    """Light, contrast, colour, blur, noise and compression."""
    found: np.ndarray = image.astype(np.float32)
    high, wide = found.shape[:2]
    noise = np.random.default_rng(rng.getrandbits(32))
    if rng.random() < 0.08 and not as_seen:
        found = 255 - found  # dark mode
    if rng.random() < 0.4:
        found *= 1 - noise.random(3, dtype=np.float32) * 0.15
    if rng.random() < 0.5:
        low, top = rng.uniform(0, 70 * strength), 255 - rng.uniform(0, 60 * strength)
        found = low + found * (top - low) / 255
    if rng.random() < 0.3 * strength:
        shade = cv2.resize(noise.random((3, 3), dtype=np.float32), (wide, high), interpolation=cv2.INTER_CUBIC)
        found *= (1 - 0.5 * strength * np.clip(shade, 0, 1))[..., None]
    if rng.random() < 0.35 * strength:
        found = cv2.GaussianBlur(found, (0, 0), rng.uniform(0.4, 1.3))
    if rng.random() < 0.4 * strength:
        found += noise.normal(0, rng.uniform(1, 14), (high, wide, 1 if rng.random() < 0.5 else 3)).astype(np.float32)
    made: np.ndarray = np.clip(found, 0, 255).astype(np.uint8)
    if rng.random() < 0.4 * strength:
        coded = cv2.imencode(".jpg", made, [cv2.IMWRITE_JPEG_QUALITY, rng.randint(30, 90)])[1]
        made = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))
    return made


def moved_points(move: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points `[P, 2]` mapped by a homography."""
    flat = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ move.T
    return flat[:, :2] / flat[:, 2:]


def _pieces(box: Sequence[float], move: np.ndarray) -> list[list[float]]:
    """A box cut into pieces along its width, each mapped: small pieces keep tilted boxes tight."""
    left, top, right, bottom = box
    edges = np.linspace(left, right, max(1, round((right - left) / max(1.0, bottom - top) / PIECE)) + 1)
    boxes = []
    for start, stop in itertools.pairwise(edges):
        moved = moved_points(move, np.array([[start, top], [stop, top], [stop, bottom], [start, bottom]]))
        boxes.append([*moved.min(0).tolist(), *moved.max(0).tolist()])
    return boxes


def cell_size(rng: random.Random) -> float:
    """A cell's side in pixels: mostly that of the common families, else anything from fine to coarse."""
    return rng.choice(USUAL_CELLS) if rng.random() < 0.6 else float(np.exp(rng.uniform(np.log(16), np.log(48))))


def make_page(
    rng: random.Random, drawing: Drawing, config: LayerConfig, strength: float, cell: float | None = None
) -> TrainingPage:
    """What the layer learns from a drawing."""
    image, move = photograph(rng, drawing.image, strength, as_seen=drawing.kind in BY_COLOUR)
    high, wide = image.shape[:2]
    side = max(cell or cell_size(rng), (high * wide / MAX_CELLS) ** 0.5)
    grid = Grid(1, max(1, round(high / side)), max(1, round(wide / side)))
    features = texture_features([TextureArray.from_image(image)], grid, config)
    questions = []
    for question in drawing.questions:
        boxes = [[piece for box in group for piece in _pieces(box, move)] for group in question.evidence or ()]
        found = evidence_cells([group for group in boxes if group], grid, (wide, high)) if any(boxes) else []
        cells = tuple(one.numpy().astype(np.int32) for one in found if len(one))
        intent = "whole" if question.whole else "absent" if question.absent else "find"
        if cells or intent != "find":
            questions.append(Asked(question.text, f"{drawing.kind}: {question.kind}", cells, intent))
    return TrainingPage(
        (features.pixels[0].numpy() * 255).round().astype(np.uint8),
        features.channels[0].numpy().astype(np.float16),
        _letters(drawing, move, grid, (wide, high)),
        tuple(questions),
    )


def _letters(drawing: Drawing, move: np.ndarray, grid: Grid, size: tuple[int, int]) -> np.ndarray:
    """Cell and letter of every letter and digit: `[L, 2]`."""
    points, letters = [], []
    for line in drawing.lines:
        y = (line.box[1] + line.box[3]) / 2
        for x, character in zip(line.middles, line.text, strict=True):
            if (letter := _LETTER.get(character)) is not None:
                points.append((x, y))
                letters.append(letter)
    if not points:
        return np.zeros((0, 2), np.int32)
    moved = moved_points(move, np.array(points))
    column = np.floor(moved[:, 0] / size[0] * grid.w).astype(int)
    row = np.floor(moved[:, 1] / size[1] * grid.h).astype(int)
    inside = (column >= 0) & (column < grid.w) & (row >= 0) & (row < grid.h)
    cells = row * grid.w + column
    return np.stack([cells[inside], np.array(letters)[inside]], axis=1).astype(np.int32)


def to_tensors(page: TrainingPage) -> tuple[torch.Tensor, torch.Tensor]:
    """Channels `[1, C, h, w]` and pixels `[1, 3 p^2, h, w]` of a page, as the layer reads them."""
    return torch.from_numpy(page.channels).float()[None], torch.from_numpy(page.pixels).float()[None] / 255
