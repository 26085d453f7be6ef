"""Colour maps and overlays for textures and cells. No matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

# Each map is a few colours from low to high, interpolated linearly. Low values are close to black.
RAMPS: dict[str, tuple[str, ...]] = {
    "gray": ("000000", "ffffff"),
    "red": ("000000", "d7262b", "ffd9d2"),
    "green": ("000000", "23994a", "d9ffdd"),
    "blue": ("000000", "2f62d9", "d6e6ff"),
    "ember": ("05020f", "4a1266", "b1324f", "f3843a", "fdf2b0"),
    "lagoon": ("0b1030", "214a7c", "1f8c8c", "7fcf74", "f7f3a4"),
    "ice": ("050a14", "1d3f6b", "4f8fc0", "b5dbe9", "ffffff"),
    "moss": ("06100a", "1e4d34", "4c9a4f", "b7d96a", "fffbd1"),
    "diverging": ("2b5fb8", "9fc3e6", "f4f2ee", "eda98b", "b3302b"),
}


def colourise(plane: torch.Tensor, ramp: str, low: float, high: float) -> np.ndarray:
    """A plane `[H, W]` as uint8 `[H, W, 3]`; values are clamped to [low, high]."""
    span = high - low
    unit = (plane.detach().float().cpu().numpy() - low) / (span if span > 0 else 1.0)
    table = _table(RAMPS[ramp])
    return table[np.clip(np.round(unit * 255), 0, 255).astype(np.uint8)]


def colourise_ids(plane: torch.Tensor) -> np.ndarray:
    """Ids `[H, W]` as uint8 `[H, W, 3]`; consecutive ids get clearly different colours."""
    known, ids = np.unique(plane.detach().float().cpu().numpy(), return_inverse=True)
    # Golden-ratio steps spread any number of hues evenly and keep consecutive ones far apart.
    hue = (np.arange(len(known)) * 0.61803399) % 1.0
    wave = np.stack([np.cos(2 * np.pi * (hue - shift)) for shift in (0.0, 1 / 3, 2 / 3)], axis=-1)
    light = np.where(np.arange(len(hue)) % 2 == 0, 150.0, 120.0)[:, None]
    return np.clip(light + 85 * wave, 0, 255).astype(np.uint8)[ids.reshape(plane.shape)]


Piece = tuple[
    tuple[float, float, float, float], torch.Tensor
]  # an area (fractions of the image), its cells' values [h, w]


OUTSIDE = 0.08  # brightness of what was not shown at all
BORDER = (255, 176, 0, 170)  # of outlined cells


class Placement(Protocol):
    """A part of an image that is not upright on it."""

    @property
    def original(self) -> tuple[int, int]:
        """Width and height of the image."""

    def place(self, points: torch.Tensor) -> torch.Tensor:
        """Points `[..., 2]` (x, y) of the image as fractions of the part."""


def lit(pixels: torch.Tensor, pieces: list[Piece], region: Placement | None = None) -> Image.Image:
    """An image `[3, H, W]` with the brightness of each cell set by its value in [0, 1]; what is outside a region is dark."""
    brightness = plane(pieces, pixels.shape[-2:], region)
    return _image(_unit(pixels) * (brightness if region is None else brightness.clamp_min(OUTSIDE)))


def outlined(image: Image.Image, corners: torch.Tensor) -> Image.Image:
    """The image with the borders of quadrilaterals `[K, 4, 2]` (x, y), in pixels."""
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn, "RGBA")
    for points in corners.tolist():
        pen.polygon([tuple(point) for point in points], outline=BORDER)
    return drawn


def heated(pixels: torch.Tensor, pieces: list[Piece], region: Placement | None = None) -> Image.Image:
    """A heat map over a faded image `[3, H, W]`, from cell values in [0, 1]."""
    heat = plane(pieces, pixels.shape[-2:], region)
    pale = 0.25 + 0.75 * _unit(pixels)
    colour = torch.from_numpy(colourise(heat, "ember", 0.0, 1.3)).permute(2, 0, 1) / 255
    strength = heat.clamp(0, 1) * 0.8
    return _image(pale * (1 - strength + colour * strength))  # multiplied, so that text stays dark under the colour


def plane(pieces: list[Piece], size: Sequence[int], region: Placement | None = None) -> torch.Tensor:
    """Cell values as a plane `[H, W]`: the largest where cells overlap, 0 outside all of them.

    `region`: the part of the image that the pieces are of; None: all of it.
    """
    height, width = size
    plane = torch.zeros(height, width)
    for (left, top, right, bottom), cells in pieces:
        if region is None:
            rows = _cell_of(height, top, bottom, cells.shape[0])
            columns = _cell_of(width, left, right, cells.shape[1])
            inside = (rows >= 0)[:, None] & (columns >= 0)[None]
            shown = cells[rows.clamp_min(0)][:, columns.clamp_min(0)]
        else:
            x, y = _fractions(size, region).unbind(-1)  # [H, W]
            rows, columns = _index(y, top, bottom, cells.shape[0]), _index(x, left, right, cells.shape[1])
            inside = (rows >= 0) & (columns >= 0)
            shown = cells[rows.clamp_min(0), columns.clamp_min(0)]
        plane = torch.where(inside, torch.maximum(plane, shown), plane)
    return plane


def _fractions(size: Sequence[int], region: Placement) -> torch.Tensor:
    """Where each pixel of an image of `size` (height, width) lies in a region: `[H, W, 2]` (x, y)."""
    (height, width), (wide, high) = size, region.original
    y = (torch.arange(height, dtype=torch.float64) + 0.5) * high / height
    x = (torch.arange(width, dtype=torch.float64) + 0.5) * wide / width
    across, down = torch.meshgrid(x, y, indexing="xy")
    return region.place(torch.stack([across, down], -1))


def _unit(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.detach().float().cpu()


def _image(pixels: torch.Tensor) -> Image.Image:
    return Image.fromarray(pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().numpy())


def _cell_of(length: int, start: float, end: float, cells: int) -> torch.Tensor:
    """The index of the cell of [start, end) that each of `length` pixels lies in; -1 outside."""
    return _index((torch.arange(length, dtype=torch.float64) + 0.5) / length, start, end, cells)


def _index(place: torch.Tensor, start: float, end: float, cells: int) -> torch.Tensor:
    """The index of the cell of [start, end) that each place lies in; -1 outside."""
    part = ((place - start) / (end - start) * cells).floor().long()
    return torch.where((part >= 0) & (part < cells), part, -1)


def font(size: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's built-in font at any size."""
    return ImageFont.load_default(size)


@lru_cache(maxsize=32)
def _table(colours: tuple[str, ...]) -> np.ndarray:
    """256 colours of a ramp: uint8 `[256, 3]`."""
    stops = np.array([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in colours], dtype=np.float64)
    at = np.linspace(0, 1, len(stops))
    steps = np.linspace(0, 1, 256)
    return np.stack([np.interp(steps, at, stops[:, i]) for i in range(3)], axis=-1).round().astype(np.uint8)
