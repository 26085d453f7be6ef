"""A large image at several scales, decoded only as far as needed, and the regions of it that a model is shown.

A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size in a fraction of the time (libjpeg scales inside the transform). Other
images are decoded once and reduced.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

from arr_coc.types.image import ImageLike, image_size, open_image, rgb_image

EXIF_ORIENTATION = 0x0112
TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
STRAIGHTENED = "straightened"  # the role of an image of any size that is shown upright
MAX_LEVEL = 3  # 1/8, the smallest scale that libjpeg decodes to


Corners = tuple[tuple[float, float], ...]  # of a quadrilateral, clockwise from its own top left


@dataclass(frozen=True)
class Region:
    """A rectangle of an image, turned by `angle`, or the quadrilateral `quad`: what one view shows, upright.

    All lengths are pixels of the original image.
    """

    centre: tuple[float, float]
    size: tuple[float, float]  # width along the text lines, height across them
    angle: float  # degrees, clockwise: the direction of the text lines in the image
    original: tuple[int, int]  # width and height of the image
    quad: Corners | None = None  # its corners in the image where it is seen in perspective

    @classmethod
    def whole(cls, original: tuple[int, int], angle: int = 0) -> Region:
        """All of an image, turned by a multiple of 90 degrees."""
        width, height = original
        size = (width, height) if angle % 180 == 0 else (height, width)
        return cls((width / 2, height / 2), (float(size[0]), float(size[1])), float(angle), original)

    @classmethod
    def around(cls, original: tuple[int, int], angle: float) -> Region:
        """The turned rectangle that holds all of an image."""
        (width, height), turn = original, math.radians(angle)
        sides = abs(math.cos(turn)), abs(math.sin(turn))
        size = (width * sides[0] + height * sides[1], width * sides[1] + height * sides[0])
        return cls((width / 2, height / 2), size, angle, original)

    @classmethod
    def in_perspective(cls, quad: np.ndarray, original: tuple[int, int], size: tuple[float, float]) -> Region:
        """A quadrilateral `[4, 2]` of an image, as a rectangle of `size`."""
        across = quad[1] + quad[2] - quad[0] - quad[3]
        middle = (float(quad[:, 0].mean()), float(quad[:, 1].mean()))
        corners = tuple((float(x), float(y)) for x, y in quad)
        return cls(middle, size, math.degrees(math.atan2(across[1], across[0])), original, corners)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the image, and nothing else."""
        return self.angle % 90 == 0 and self == Region.whole(self.original, round(self.angle))

    @cached_property
    def matrix(self) -> np.ndarray:
        """The projection `[3, 3]` from this region's pixels, (0, 0) at its top left corner, to the image's."""
        if self.quad is not None:
            width, height = self.size
            own = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
            return cv2.getPerspectiveTransform(own, np.array(self.quad, np.float32))
        turn = math.radians(self.angle)
        made = np.eye(3)
        made[:2, :2] = [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
        made[:2, 2] = np.array(self.centre) - made[:2, :2] @ (np.array(self.size) / 2)
        return made

    def part(self, left: float, top: float, right: float, bottom: float) -> Region:
        """A rectangle inside this region, or around it, in the region's own pixels."""
        size = (right - left, bottom - top)
        if self.quad is not None:
            own = np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float64)
            return Region.in_perspective(self._to_image(own), self.original, size)
        centre = self._to_image(np.array([(left + right) / 2, (top + bottom) / 2]))
        return Region((float(centre[0]), float(centre[1])), size, self.angle, self.original)

    def inside(self, other: Region) -> Region:
        """A turned rectangle of this region's own picture, as a region of the image."""
        (x, y), (width, height), turn = other.centre, other.size, math.radians(other.angle)
        along, across = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
        if self.quad is None:
            centre = self._to_image(np.array([x, y]))
            return Region((float(centre[0]), float(centre[1])), other.size, self.angle + other.angle, self.original)
        corners = [
            np.array([x, y]) + along * (side * width / 2) + across * (end * height / 2)
            for side, end in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]
        return Region.in_perspective(self._to_image(np.array(corners)), self.original, other.size)

    def resized(self, size: tuple[float, float]) -> Region:
        """A larger or smaller region with the same middle."""
        if self.quad is None:
            return replace(self, size=size)
        more = [(new - old) / 2 for new, old in zip(size, self.size, strict=True)]
        return self.part(-more[0], -more[1], self.size[0] + more[0], self.size[1] + more[1])

    def corners(self, boxes: torch.Tensor) -> torch.Tensor:
        """Boxes `[K, 4]` in this region's pixels as corners `[K, 4, 2]` (x, y) in the image, clockwise from the top left."""
        x0, y0, x1, y1 = boxes.double().unbind(-1)
        points = torch.stack([torch.stack([x0, x1, x1, x0], -1), torch.stack([y0, y0, y1, y1], -1)], -1)  # [K, 4, 2]
        return torch.from_numpy(self._to_image(points.numpy())).float()

    def boxes(self, boxes: torch.Tensor) -> torch.Tensor:
        """The upright boxes `[K, 4]` in the image around boxes in this region's pixels, cut at the image's borders."""
        corners = self.corners(boxes)
        limits = torch.tensor(self.original, dtype=torch.float32)
        low, high = (edge.clamp(torch.zeros(2), limits) for edge in (corners.amin(1), corners.amax(1)))
        return torch.cat([low, high], -1)

    def place(self, points: torch.Tensor) -> torch.Tensor:
        """Points `[..., 2]` of the image as fractions of this region: inside it, both lie in [0, 1)."""
        inside = _project(np.linalg.inv(self.matrix), points.double().numpy())
        return torch.from_numpy(inside) / torch.tensor(self.size, dtype=torch.float64)

    def _to_image(self, points: np.ndarray) -> np.ndarray:
        return _project(self.matrix, points)

    @property
    def done(self) -> str:
        """What was done to show it upright, in words; empty where it is upright in the image."""
        turned = f"turned by {self.angle:.{0 if self.is_whole else 1}f} degrees" if self.angle else ""
        return turned if self.quad is None else f"{turned or 'not turned'}, taken out of perspective"

    def to_dict(self) -> dict[str, object]:
        found: dict[str, object] = {
            "centre": [round(v, 3) for v in self.centre],
            "size": [round(v, 3) for v in self.size],
            "angle": round(self.angle, 4),
        }
        return found if self.quad is None else found | {"quad": [[round(v, 3) for v in point] for point in self.quad]}


def _project(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points `[..., 2]` through a projection `[3, 3]`. What lies behind the camera becomes infinitely far."""
    made = points @ matrix[:, :2].T + matrix[:, 2]
    depth = np.where(made[..., 2:] > 1e-6, made[..., 2:], 1e-6)
    return np.asarray(made[..., :2] / depth)


@dataclass(frozen=True)
class View:
    """One of the images that a model is shown in place of a large one."""

    region: Region
    size: tuple[int, int]  # width and height of the image that is shown
    role: str  # "overview", "region", STRAIGHTENED, or "mixed": cells of different sizes, `size` counted in the finest
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
        quad = given.get("quad") and tuple((x, y) for x, y in given["quad"])
        region = Region((x, y), (width, height), given["angle"], (original[0], original[1]), quad)
        return cls(region, (given["shown"][0], given["shown"][1]), given["role"], given["image"], given["why"])

    def __str__(self) -> str:
        width, height = (round(side) for side in self.region.size)
        done = f", {self.region.done}" if self.region.done else ""
        shown = f"{self.scale:.2f}" if self.scale >= 0.1 else f"{self.scale:.2g}"
        if self.role == "mixed":
            return f"mixed: the whole image{done}, at scale {shown} and coarser"
        return f"{self.role}: {width} x {height} px{done}, shown at scale {shown}"


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
        if region.is_whole:
            turns = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}
            turn = int(region.angle) % 360
            level = level.transpose(turns[turn]) if turn else level
            return level if level.size == size else level.resize(size, Image.Resampling.BICUBIC)
        wide, high = (max(1, round(side * p)) for side, p in zip(region.size, per_pixel, strict=True))
        # From the crop's pixel centres to the level's: x -> region pixels -> image pixels -> level pixels.
        step = np.array(region.size) / (wide, high)
        to_region = np.array([[step[0], 0, step[0] / 2], [0, step[1], step[1] / 2], [0, 0, 1]])
        to_level = np.array([[per_pixel[0], 0, -0.5], [0, per_pixel[1], -0.5], [0, 0, 1]])
        matrix, flags = to_level @ region.matrix @ to_region, cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
        if region.quad is None:
            made = cv2.warpAffine(
                np.asarray(level), matrix[:2], (wide, high), flags=flags, borderMode=cv2.BORDER_REPLICATE
            )
        else:
            made = cv2.warpPerspective(
                np.asarray(level), matrix, (wide, high), flags=flags, borderMode=cv2.BORDER_REPLICATE
            )
        return Image.fromarray(made).resize(size, Image.Resampling.BICUBIC)

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
