"""The picture that channels are computed from, and the way back from it to the original's pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arr_coc.errors import ArrCocError, whole_number
from arr_coc.texture.pooling import cell_boxes
from arr_coc.types.tensors import Numbers, as_tensor


@dataclass(frozen=True)
class Picture:
    """One image, ready for the channels.

    `pixels` is float32 `[3, H, W]` in [0, 1]; `original_size` is (height, width) after EXIF rotation and before scaling;
    `notes` says what was done to the image beyond reading it.
    """

    pixels: torch.Tensor
    original_size: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in texture pixels."""
        return int(self.pixels.shape[-2]), int(self.pixels.shape[-1])

    def boxes(self, height: int, width: int) -> torch.Tensor:
        """A grid's cells as (x0, y0, x1, y1) in original pixels: float64 `[height * width, 4]`, row by row."""
        return cell_boxes(check_grid(height, width), self.original_size)

    def to_original(self, boxes: Numbers) -> torch.Tensor:
        """Points or boxes `[..., 2 or 4]` (x, y) in texture pixels, in original pixels: float64."""
        given = _check_boxes(boxes)
        return given * self._scale(given)

    def from_original(self, boxes: Numbers) -> torch.Tensor:
        """The inverse of `to_original`."""
        given = _check_boxes(boxes)
        return given / self._scale(given)

    def _scale(self, boxes: torch.Tensor) -> torch.Tensor:
        """Original pixels per texture pixel, along the boxes' last axis."""
        (height, width), (original_height, original_width) = self.size, self.original_size
        scale = torch.tensor([original_width / width, original_height / height], dtype=torch.float64)
        return scale.to(boxes.device).repeat(boxes.shape[-1] // 2)


def check_grid(height: int, width: int) -> tuple[int, int]:
    """A grid's (rows, columns) as plain numbers, at least 1 each."""
    rows, columns = whole_number(height), whole_number(width)
    if rows is None or columns is None:
        raise ArrCocError(f"expected a grid of at least 1x1 cells in whole numbers, got {height!r} x {width!r}")
    return rows, columns


def _check_boxes(boxes: Numbers) -> torch.Tensor:
    given = as_tensor(boxes, "points or boxes").double()
    if given.ndim == 0 or given.shape[-1] not in (2, 4):
        raise ArrCocError(f"expected points [..., 2] or boxes [..., 4], got {list(given.shape)}")
    return given
