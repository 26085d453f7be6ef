"""Where to look closer on a large image: the part with text, upright, and inside it the part that the question is about.

    reduced image -> text channel -> angle of the lines -> the rectangle around them -> height of the print

All of this works on an image of at most 1024 px. Only then is a region decoded at a larger scale.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from arr_coc.texture import TextureArray
from arr_coc.types.pyramid import Region

WHOLE_IMAGE = re.compile(
    r"\b(describe|description|caption|summar\w*|overview|compare|"
    r"what (is|does|can you see|do you see)( in| on)? (this|the) (image|picture|photo\w*|page|document)( show| about)?|"
    r"what is shown|what do you see|tell me about)\b",
    re.IGNORECASE,
)

MIN_TEXT = 1e-3  # share of the image that must be text
LEAST_TEXT, MOST_TEXT = 0.2, 0.8  # likelihood of that share: below, there is no text; above, there surely is
OF_SUREST = 0.5  # pixels of at least this share of that likelihood are text
LEAST_ANGLE, MAX_ANGLE = 0.3, 15.0  # degrees: lines that are turned less or further are left as they are
COARSE, FINE = 0.75, 0.1  # degrees, steps of the search for the angle
POINTS = 40_000  # ink pixels that the search uses
JOIN = 0.06  # of the longer side: parts of a page that are closer than this belong together
PART = 0.1  # of the largest part's text: smaller parts are left out
MAX_LETTER, MIN_LETTERS = 80, 20  # px, and how many letters there must be
LETTER_AREA, LETTER_CONTRAST = 31, 20  # px around a pixel whose mean it must be darker than, and by how much of 255
MARGIN = 0.03  # of the longer side, around the text


def is_about_everything(question: str) -> bool:
    """Whether a question is about all of an image, so that no part of it may be left out.

    >>> is_about_everything("Describe this photo."), is_about_everything("What is the total?")
    (True, False)
    """
    return WHOLE_IMAGE.search(question) is not None


@dataclass(frozen=True)
class Page:
    """Text on an image: the upright rectangle around it, and how much of the image is text."""

    region: Region
    share: float


def find_page(texture: TextureArray, original: tuple[int, int], deskew: bool = True) -> Page | None:
    """The text on an image of `original` size (width, height), from the texture of the image at any scale; None: no text."""
    likelihood = texture["text"].float().cpu().numpy()  # [h, w]
    sure = float(np.quantile(likelihood, 1 - MIN_TEXT))
    if sure < LEAST_TEXT:
        return None
    likelihood = np.where(likelihood > OF_SUREST * min(sure, MOST_TEXT), likelihood, 0).astype(np.float32)
    angle = line_angle(ink_of(texture, likelihood > 0)) if deskew else 0.0
    height, width = likelihood.shape
    scale = original[0] / width  # original pixels per pixel here
    turn = math.radians(angle)
    # Turned so that lines are level, on a canvas that holds all of the image.
    wide = math.ceil(abs(width * math.cos(turn)) + abs(height * math.sin(turn)))
    high = math.ceil(abs(width * math.sin(turn)) + abs(height * math.cos(turn)))
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 1.0)
    matrix[:, 2] += ((wide - width) / 2, (high - height) / 2)
    box = text_box(cv2.warpAffine(likelihood, matrix, (wide, high)))
    margin = MARGIN * max(box[2] - box[0], box[3] - box[1])
    left, top = max(0.0, box[0] - margin), max(0.0, box[1] - margin)
    right, bottom = min(float(wide), box[2] + margin), min(float(high), box[3] + margin)
    centre = np.linalg.inv(matrix[:, :2]) @ (np.array([(left + right) / 2, (top + bottom) / 2]) - matrix[:, 2]) * scale
    size = ((right - left) * scale, (bottom - top) * scale)
    return Page(Region((float(centre[0]), float(centre[1])), size, angle, original), float((likelihood > 0).mean()))


def ink_of(texture: TextureArray, is_text: np.ndarray) -> np.ndarray:
    """How far each pixel of the text differs from its surroundings: float32 `[h, w]`."""
    luma = texture.pixels.float().mean(0).cpu().numpy()
    return np.where(is_text, np.abs(luma - cv2.blur(luma, (15, 15))), 0).astype(np.float32)


def line_angle(ink: np.ndarray) -> float:
    """The direction of text lines in degrees, clockwise, by projection: at the right angle, lines and gaps are sharpest."""
    y, x = np.nonzero(ink > np.quantile(ink[ink > 0], 0.5) if (ink > 0).any() else ink)
    if len(y) < 50:
        return 0.0
    chosen = np.linspace(0, len(y) - 1, min(POINTS, len(y))).astype(int)
    x, y, weight = x[chosen].astype(np.float32), y[chosen].astype(np.float32), ink[y[chosen], x[chosen]]
    x, y = x - x.mean(), y - y.mean()
    half = int(np.hypot(x, y).max()) + 2

    def sharpness(angle: float) -> float:
        turn = math.radians(angle)
        down = np.floor(y * math.cos(turn) - x * math.sin(turn) + half).astype(np.int64)
        rows = np.bincount(down, weight, 2 * half + 1)
        return float(np.square(np.diff(rows)).sum())

    best = max(np.arange(-MAX_ANGLE, MAX_ANGLE + 1e-6, COARSE), key=sharpness)
    best = max(np.arange(best - COARSE, best + COARSE + 1e-6, FINE), key=sharpness)
    return 0.0 if not LEAST_ANGLE <= abs(best) < MAX_ANGLE else round(float(best), 2)


def letter_height(luma: np.ndarray) -> float | None:
    """The height of the letters of an image `[h, w]` in [0, 1], in pixels; None where it has none.

    Letters are connected strokes; the median over their ink leaves out specks and rules.
    """
    gray = (luma * 255).astype(np.uint8)
    around = max(3, min(LETTER_AREA, *gray.shape) | 1)
    ink = cv2.adaptiveThreshold(gray, 1, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, around, LETTER_CONTRAST)
    _, _, stats, _ = cv2.connectedComponentsWithStats(ink)
    wide, high, area = stats[1:, 2], stats[1:, 3], stats[1:, 4]
    letter = (high >= 3) & (high <= MAX_LETTER) & (wide <= 4 * high) & (area >= 4) & (area >= 0.15 * wide * high)
    high, area = high[letter], area[letter]
    if len(high) < MIN_LETTERS:
        return None
    order = np.argsort(high)
    return float(high[order][np.searchsorted(np.cumsum(area[order]), area.sum() / 2)])


def text_box(likelihood: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom around the main text of a level map `[h, w]`."""
    is_text = likelihood > 0
    reach = max(3, round(JOIN * max(is_text.shape)) | 1)
    joined = cv2.dilate(is_text.astype(np.uint8), cv2.getStructuringElement(cv2.MORPH_RECT, (reach, reach)))
    count, labels = cv2.connectedComponents(joined)
    mass = np.bincount(labels[is_text], likelihood[is_text], count)
    y, x = np.nonzero(np.isin(labels, np.nonzero(mass >= PART * mass.max())[0]) & is_text)
    return int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1


def best_window(relevance: torch.Tensor, window: tuple[float, float]) -> tuple[float, float]:
    """The top left corner (x, y), in cells, of the window (width, height) of a map `[h, w]` that holds most of it."""
    height, width = relevance.shape
    wide, high = min(width, max(1, round(window[0]))), min(height, max(1, round(window[1])))
    sums = torch.nn.functional.avg_pool2d(relevance[None, None].double(), (high, wide), 1)[0, 0]
    best = int(sums.flatten().argmax())
    return float(best % sums.shape[1]), float(best // sums.shape[1])
