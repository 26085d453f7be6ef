"""A large image at several scales, decoded only as far as needed, and the regions of it that a model is shown.

A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size in a fraction of the time (libjpeg scales inside the transform). Other
images are decoded once and reduced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

from arr_coc.types.image import ImageLike, image_size, open_image, rgb_image

MAX_LEVEL = 3  # 1/8, the smallest scale that libjpeg decodes to


@dataclass(frozen=True)
class Region:
    """A rectangle of an image, turned by `angle`: what one view shows. All lengths are pixels of the original image."""

    centre: tuple[float, float]
    size: tuple[float, float]  # width along the text lines, height across them
    angle: float  # degrees, clockwise: the direction of the text lines in the image
    original: tuple[int, int]  # width and height of the image

    @classmethod
    def whole(cls, original: tuple[int, int]) -> Region:
        width, height = original
        return cls((width / 2, height / 2), (float(width), float(height)), 0.0, original)

    @cached_property
    def matrix(self) -> np.ndarray:
        """The map `[2, 3]` from this region's pixels, (0, 0) at its top left corner, to the image's."""
        turn = math.radians(self.angle)
        made = np.array([[math.cos(turn), -math.sin(turn), 0.0], [math.sin(turn), math.cos(turn), 0.0]])
        made[:, 2] = np.array(self.centre) - made[:, :2] @ (np.array(self.size) / 2)
        return made

    def part(self, left: float, top: float, right: float, bottom: float) -> Region:
        """A rectangle inside this region, in the region's own pixels."""
        centre = self.matrix[:, :2] @ np.array([(left + right) / 2, (top + bottom) / 2]) + self.matrix[:, 2]
        return Region((float(centre[0]), float(centre[1])), (right - left, bottom - top), self.angle, self.original)

    def corners(self, boxes: torch.Tensor) -> torch.Tensor:
        """Boxes `[K, 4]` in this region's pixels as corners `[K, 4, 2]` (x, y) in the image, clockwise from the top left."""
        x0, y0, x1, y1 = boxes.double().unbind(-1)
        points = torch.stack([torch.stack([x0, x1, x1, x0], -1), torch.stack([y0, y0, y1, y1], -1)], -1)  # [K, 4, 2]
        matrix = torch.from_numpy(self.matrix)
        return (points @ matrix[:, :2].T + matrix[:, 2]).float()

    def boxes(self, boxes: torch.Tensor) -> torch.Tensor:
        """The upright boxes `[K, 4]` in the image around boxes in this region's pixels, cut at the image's borders."""
        corners = self.corners(boxes)
        limits = torch.tensor(self.original, dtype=torch.float32)
        low, high = (edge.clamp(torch.zeros(2), limits) for edge in (corners.amin(1), corners.amax(1)))
        return torch.cat([low, high], -1)

    def place(self, points: torch.Tensor) -> torch.Tensor:
        """Points `[..., 2]` of the image as fractions of this region: inside it, both lie in [0, 1)."""
        matrix = torch.from_numpy(self.matrix)
        inside = (points.double() - matrix[:, 2]) @ matrix[:, :2]  # the inverse of a rotation is its transpose
        return inside / torch.tensor(self.size, dtype=torch.float64)

    def to_dict(self) -> dict[str, object]:
        return {
            "centre": [round(v, 3) for v in self.centre],
            "size": [round(v, 3) for v in self.size],
            "angle": round(self.angle, 4),
        }


@dataclass(frozen=True)
class View:
    """One of the images that a model is shown in place of a large one."""

    region: Region
    size: tuple[int, int]  # width and height of the image that is shown
    role: str  # "overview", "region", or "mixed": cells of different sizes, `size` counted in the finest
    image: int  # number of the large image among all images of the batch
    why: str = ""  # replaces the strategy of its allocation

    @property
    def scale(self) -> float:
        """Pixels that are shown for each pixel of the original, along one side."""
        return self.size[0] / self.region.size[0]

    def to_dict(self) -> dict[str, object]:
        return {
            "role": self.role,
            **self.region.to_dict(),
            "scale": round(self.scale, 3),
            "shown": list(self.size),
            "image": self.image,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], original: Sequence[int]) -> View:
        """What `to_dict` made, of an image of `original` size."""
        (x, y), (width, height) = given["centre"], given["size"]
        region = Region((x, y), (width, height), given["angle"], (original[0], original[1]))
        return cls(region, (given["shown"][0], given["shown"][1]), given["role"], given["image"], given["why"])

    def __str__(self) -> str:
        width, height = (round(side) for side in self.region.size)
        turned = f", turned by {self.region.angle:.1f} degrees" if self.region.angle else ""
        if self.role == "mixed":
            return f"mixed: the whole image{turned}, at scale {self.scale:.2f} and coarser"
        return f"{self.role}: {width} x {height} px{turned}, shown at scale {self.scale:.2f}"


class Pyramid:
    """An image at scales 1, 1/2, 1/4 and 1/8. `size` (width, height) is upright and known without decoding a file."""

    def __init__(self, image: ImageLike) -> None:
        self._file = image if isinstance(image, str | os.PathLike) else None
        self.notes: tuple[str, ...] = ()
        self.size: tuple[int, int]
        self._levels: dict[int, Image.Image] = {}
        if self._file is not None:
            with open_image(self._file) as opened:
                self.size = image_size(opened) or (0, 0)
                if opened.format in ("JPEG", "MPO") and opened.mode in ("RGB", "L"):
                    return
        self._file = None
        self._levels[0], self.notes = rgb_image(image)
        self.size = self._levels[0].size

    def level(self, number: int) -> Image.Image:
        """The upright RGB image at scale 1 / 2**number."""
        if number not in self._levels:
            self._levels[number] = self._decoded(number) if self._file is not None else self._reduced(number)
        return self._levels[number]

    def level_for(self, scale: float) -> int:
        """The smallest image whose scale is at least `scale`."""
        return min(MAX_LEVEL, max(0, math.floor(math.log2(1 / scale) + 1e-6))) if scale < 1 else 0

    def crop(self, region: Region, size: tuple[int, int]) -> Image.Image:
        """A region, upright, as an image of `size`. Where it reaches beyond the image, the border is repeated."""
        number = self.level_for(max(size[0] / region.size[0], size[1] / region.size[1]))
        level = self.level(number)
        per_pixel = np.array(level.size) / np.array(self.size)
        if region == Region.whole(self.size):
            return level.resize(size, Image.Resampling.BICUBIC)
        wide, high = (max(1, round(s * p)) for s, p in zip(region.size, per_pixel, strict=True))
        matrix = region.matrix
        # From the crop's pixel centres to the level's: x -> region pixels -> image pixels -> level pixels.
        step = np.array(region.size) / (wide, high)
        linear = (matrix[:, :2] * step) * per_pixel[:, None]
        offset = (matrix[:, :2] @ (0.5 * step) + matrix[:, 2]) * per_pixel - 0.5
        turned = cv2.warpAffine(
            np.asarray(level), np.column_stack([linear, offset]), (wide, high),
            flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
        return Image.fromarray(turned).resize(size, Image.Resampling.BICUBIC)

    def _decoded(self, number: int) -> Image.Image:
        assert self._file is not None
        with open_image(self._file) as opened:
            if number:
                # Pillow takes the largest reduction by 1, 2, 4 or 8 that leaves at least the size asked for.
                opened.draft("RGB", (opened.size[0] >> number, opened.size[1] >> number))
            made, self.notes = rgb_image(opened)
            made.load()
        width, height = self.size
        wanted = (math.ceil(width / 2**number), math.ceil(height / 2**number))
        return made if made.size == wanted else made.resize(wanted, Image.Resampling.BOX)

    def _reduced(self, number: int) -> Image.Image:
        return self._levels[0].reduce(2**number)
