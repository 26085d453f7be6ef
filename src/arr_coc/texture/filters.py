"""Operations on planes `[H, W]`: filters, colour conversions, pooling and the mip pyramid.

Each filter has two implementations of the same definition: OpenCV on the CPU, where it is several times faster than torch's
convolutions on a single plane, and torch elsewhere. Both repeat the border. `tests/texture/test_filters.py` compares them.

`pool(plane, (h, w), rule)` serves the VLM's token grid and the pyramid levels. Cell (r, c) covers the rectangle
[r H/h, (r+1) H/h] x [c W/w, (c+1) W/w] of the plane, which need not fall on pixel borders:

- mean: the exact area average; a pixel that lies half inside counts half
- max: the largest value among all pixels that the cell touches
- nearest: the value of the pixel under the cell's centre, so that ids are never mixed

Each pyramid level has half the size of the one before, rounded down, never below 1; level 0 is the plane itself. Every
level equals pooling level 0 onto its size, also for odd sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from arr_coc.texture.layout import Pool

LUMA_WEIGHTS = (0.299, 0.587, 0.114)
MAX_FLOAT32_SUM = 256  # pixels of a cell up to which a float32 sum is exact enough
MAX_MATRIX = 1 << 17  # elements; a product with a larger matrix costs more than the other ways
MIN_ROWS = 4  # of a cell, from which it is faster to work on whole rows


def luma(pixels: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """RGB `[3, H, W]`, or three planes, to luma `[H, W]`, with the weights of LUMA_WEIGHTS."""
    red, green, blue = LUMA_WEIGHTS
    return (red * pixels[0]).add_(pixels[1], alpha=green).add_(pixels[2], alpha=blue)


def rgb_to_lab(rgb: torch.Tensor) -> torch.Tensor:
    """sRGB `[3, ...]` in [0, 1] to CIE Lab under D65: L in [0, 100]."""
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    # Rows are already divided by the white point (.95047, 1, 1.08883).
    matrix = torch.tensor(
        [
            [0.412453 / 0.95047, 0.357580 / 0.95047, 0.180423 / 0.95047],
            [0.212671, 0.715160, 0.072169],
            [0.019334 / 1.08883, 0.119193 / 1.08883, 0.950227 / 1.08883],
        ],
        device=rgb.device,
    )
    xyz = torch.tensordot(matrix, linear, dims=1)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    return torch.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def gaussian(plane: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur, cut at 4 sigma."""
    taps = gaussian_taps(sigma)
    if _on_cpu(plane):
        return _from_cv(cv2.sepFilter2D(_to_cv(plane), -1, taps, taps, borderType=cv2.BORDER_REPLICATE))
    return _separable(plane, taps, taps)


def sobel(plane: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed Sobel derivatives (along x, along y), scaled so that a straight step of height 1 gives 1."""
    if _on_cpu(plane):
        image = _to_cv(plane)
        x = cv2.Sobel(image, cv2.CV_32F, 1, 0, ksize=3, scale=0.25, borderType=cv2.BORDER_REPLICATE)
        y = cv2.Sobel(image, cv2.CV_32F, 0, 1, ksize=3, scale=0.25, borderType=cv2.BORDER_REPLICATE)
        return _from_cv(x), _from_cv(y)
    smooth, slope = np.array([0.25, 0.5, 0.25]), np.array([-1.0, 0.0, 1.0])
    return _separable(plane, smooth, slope), _separable(plane, slope, smooth)


def magnitude(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Length of the vectors (x, y)."""
    # Torch on every device: OpenCV's last bit depends on the array's address.
    return (x * x).add_(y * y).sqrt_()


def laplacian(plane: torch.Tensor) -> torch.Tensor:
    """Mean of the four neighbours minus the pixel, in [-1, 1] for a plane in [0, 1]."""
    if _on_cpu(plane):
        laplace = cv2.Laplacian(_to_cv(plane), cv2.CV_32F, ksize=1, scale=0.25, borderType=cv2.BORDER_REPLICATE)
        return _from_cv(laplace)
    padded = F.pad(plane[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
    neighbours = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
    return neighbours / 4 - plane


def is_above(plane: torch.Tensor, limit: torch.Tensor | float) -> torch.Tensor:
    """Where a plane is larger than another one, or than a number: bool `[H, W]`."""
    if not _on_cpu(plane):
        return plane > limit
    return _from_cv(_to_cv(plane) > (_to_cv(limit) if isinstance(limit, torch.Tensor) else np.float32(limit)))


def box_mean(plane: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Mean over a `height` x `width` window (both odd)."""
    if _on_cpu(plane):
        return _from_cv(cv2.blur(_to_cv(plane), (width, height), borderType=cv2.BORDER_REPLICATE))
    padded = F.pad(plane[None, None], (width // 2, width // 2, height // 2, height // 2), mode="replicate")
    return F.avg_pool2d(F.avg_pool2d(padded, (height, 1), 1), (1, width), 1)[0, 0]


def window_max(plane: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Largest value in a `height` x `width` window (both odd)."""
    if _on_cpu(plane):
        return _from_cv(cv2.dilate(_to_cv(plane), np.ones((height, width), np.uint8), borderType=cv2.BORDER_REPLICATE))
    pooled = F.max_pool2d(plane[None, None], (height, 1), stride=1, padding=(height // 2, 0))
    return F.max_pool2d(pooled, (1, width), stride=1, padding=(0, width // 2))[0, 0]


def resize(plane: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Bilinear, pixel centres at half-integers, without smoothing; meant for enlarging."""
    if tuple(plane.shape) == size:
        return plane
    if _on_cpu(plane):
        return _from_cv(cv2.resize(_to_cv(plane), (size[1], size[0]), interpolation=cv2.INTER_LINEAR))
    return F.interpolate(plane[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]


def gaussian_taps(sigma: float) -> np.ndarray:
    radius = int(4 * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    taps = np.exp(-0.5 * (offsets / sigma) ** 2)
    return (taps / taps.sum()).astype(np.float32)


def _separable(plane: torch.Tensor, down: np.ndarray, across: np.ndarray) -> torch.Tensor:
    """Correlate with the column `down` and the row `across`."""
    # Shifted sums, not conv2d: on a GPU convolutions use TF32 unless a global switch forbids it.
    height, width = plane.shape
    v, h = len(down) // 2, len(across) // 2
    padded = F.pad(plane[None, None], (h, h, v, v), mode="replicate")[0, 0]
    rows = torch.zeros(height, width + 2 * h, dtype=plane.dtype, device=plane.device)
    for shift, tap in enumerate(down.tolist()):
        rows.add_(padded[shift : shift + height], alpha=tap)
    both = torch.zeros_like(plane)
    for shift, tap in enumerate(across.tolist()):
        both.add_(rows[:, shift : shift + width], alpha=tap)
    return both


def _on_cpu(plane: torch.Tensor) -> bool:
    return plane.device.type == "cpu"


def _to_cv(plane: torch.Tensor) -> np.ndarray:
    return plane.detach().contiguous().numpy()


def _from_cv(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


def pool(plane: torch.Tensor, size: tuple[int, int], rule: Pool) -> torch.Tensor:
    """Pool `[H, W]` to `size` = (h, w); differentiable."""
    if tuple(plane.shape) == size:
        return plane
    if plane.stride() == (0, 0):  # a constant, e.g. a channel without a supplied map
        return plane[:1, :1].expand(size)
    if rule == "mean" and plane.stride(0) == 0:  # every row is the same, e.g. x
        return _mean(plane[:1], (1, size[1])).expand(size)
    if rule == "mean" and plane.stride(1) == 0:
        return _mean(plane[:, :1], (size[0], 1)).expand(size)
    if rule == "mean":
        return _mean(plane, size)
    if rule == "max":
        return _max(plane, size)
    rows, columns = (_centres(n, m, plane.device) for n, m in zip(plane.shape, size, strict=True))
    return plane.index_select(0, rows).index_select(1, columns)


def pool_each(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[Pool]) -> list[torch.Tensor]:
    """Pool each plane to `size` by its own rule."""
    if set(rules) == {"mean"}:
        return pool_means(planes, size)
    return [pool(plane, size, rule) for plane, rule in zip(planes, rules, strict=True)]


def pool_means(planes: Iterable[torch.Tensor], size: tuple[int, int]) -> list[torch.Tensor]:
    """Pool each plane to `size` by the mean."""
    planes = list(planes)
    if len(planes) != 3 or not all(_resized_together(plane, size) for plane in planes):
        return [pool(plane, size, "mean") for plane in planes]
    # A picture's colours: OpenCV resizes three interleaved planes to the same numbers in two thirds of the time.
    merged = cv2.merge([_to_cv(plane) for plane in planes])
    area = cv2.resize(merged, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    return list(_from_cv(area).permute(2, 0, 1).unbind())


def _resized_together(plane: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether OpenCV would resize this plane by areas that are no whole number of pixels, which takes longest."""
    whole = plane.shape[0] % size[0] == 0 and plane.shape[1] % size[1] == 0
    own = plane.dtype == torch.float32 and 0 not in plane.stride()
    return own and not whole and not _is_coarse(plane, size) and _opencv_serves(plane, size)


def resample(plane: torch.Tensor, size: tuple[int, int], shrink_by: Pool = "mean") -> torch.Tensor:
    """A map of any size at `size`: pooled where it is larger, interpolated where it is smaller."""
    larger = plane.shape[0] >= size[0] and plane.shape[1] >= size[1]
    return pool(plane, size, shrink_by) if larger else resize(plane, size)


def level_size(size: tuple[int, int], level: int) -> tuple[int, int]:
    """(height, width) of a pyramid level."""
    return max(1, size[0] >> level), max(1, size[1] >> level)


def level_sizes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """(height, width) of every level of a pyramid."""
    return [level_size(size, number) for number in range(level_count(size))]


def level_count(size: tuple[int, int]) -> int:
    """How many pyramid levels there are, down to 1x1."""
    return max(size).bit_length()


def nested_source(size: tuple[int, int], level: int) -> int:
    """The coarsest level whose pixels nest in the cells of `level`, so that pooling it equals pooling level 0."""
    height, width = level_size(size, level)
    finer = [level_size(size, number) for number in range(level)]
    nests = [number for number, (h, w) in enumerate(finer) if h % height == 0 and w % width == 0]
    return max(nests, default=0)


class Pyramid:
    """The levels of one plane, each built on first use."""

    def __init__(self, plane: torch.Tensor, rule: Pool) -> None:
        # By number: two threads that build the same level at once only do the work twice.
        self._levels = {0: plane}
        self.rule: Pool = rule

    @property
    def constant(self) -> bool:
        """Whether the plane is one expanded value, which takes no memory."""
        return self._levels[0].stride() == (0, 0)

    @property
    def levels(self) -> list[torch.Tensor]:
        """The levels built so far."""
        return list(self._levels.values())

    def fill(self, levels: list[torch.Tensor]) -> None:
        """Take ready levels, from 1 on, instead of building them."""
        for number, level in enumerate(levels, start=1):
            self._levels.setdefault(number, level)

    def level(self, number: int) -> torch.Tensor:
        """The plane at a level: `[H >> number, W >> number]`."""
        height, width = self._levels[0].shape
        for missing in range(1, number + 1):
            if missing not in self._levels:
                # Ids always come from level 0: the centre of a centre drifts to a corner.
                source = 0 if self.rule == "nearest" else nested_source((height, width), missing)
                self._levels[missing] = pool(self._levels[source], level_size((height, width), missing), self.rule)
        return self._levels[number]


def _mean(plane: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The exact area average, by the cheapest of four ways."""
    height, width = int(plane.shape[0]), int(plane.shape[1])
    values = plane.float()
    if _is_coarse(plane, size):
        across = _overlap(width, size[1], plane.device)
        pooled = _mean_down(values, size[0]) @ across.T  # rows first: they are contiguous
    elif _opencv_serves(values, size):  # fine ones, such as pyramid levels
        pooled = _from_cv(_resize_area(_to_cv(values), size))
    elif height % size[0] == 0 and width % size[1] == 0 and height * width <= MAX_FLOAT32_SUM * size[0] * size[1]:
        pooled = F.avg_pool2d(values[None], (height // size[0], width // size[1]))[0]
    else:
        pooled = _mean_of_rows(_mean_of_rows(values, size[0]).T, size[1]).T
    return pooled.to(plane.dtype)


def _is_coarse(plane: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether products with matrices of shares are the cheapest way to a mean."""
    fits = max(plane.shape[0] * size[0], plane.shape[1] * size[1]) <= MAX_MATRIX
    return fits and (plane.shape[0] >= MIN_ROWS * size[0] or not _opencv_serves(plane, size))


def _mean_down(plane: torch.Tensor, cells: int) -> torch.Tensor:
    """Average `[H, W]` down its columns to `[cells, W]`, by the rows' shares in each cell."""
    height, width = plane.shape
    if not _on_cpu(plane) or plane.requires_grad:
        return _overlap(height, cells, plane.device) @ plane
    # Nearly all shares are 0. Products with the others alone take a seventh of the time.
    rows, means = _to_cv(plane), np.empty((cells, width), np.float32)
    for mean, (first, stop, shares) in zip(means, _row_shares(height, cells), strict=True):
        np.dot(shares, rows[first:stop], out=mean)
    return torch.from_numpy(means)


@lru_cache(maxsize=64)
def _row_shares(pixels: int, cells: int) -> list[tuple[int, int, np.ndarray]]:
    """For each cell: the first pixel that it touches, the one after the last, and the share of the cell that each covers."""
    shares = _overlap_on_cpu(pixels, cells).numpy()
    return [(first, stop, shares[cell, first:stop].copy()) for cell, (first, stop) in enumerate(_spans(pixels, cells))]


def _spans(pixels: int, cells: int) -> list[tuple[int, int]]:
    """For each cell, the first pixel that it touches and the one after the last."""
    return [(cell * pixels // cells, -(-(cell + 1) * pixels // cells)) for cell in range(cells)]


def _max(plane: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The largest value among all pixels that each cell touches."""
    height, width = plane.shape
    plain = _on_cpu(plane) and plane.dtype == torch.float32 and not plane.requires_grad
    if not plain or height < MIN_ROWS * size[0]:
        return F.adaptive_max_pool2d(plane[None], size)[0]
    # Whole rows are compared first, which needs no index of the largest: a third of the time.
    values, rows = _to_cv(plane), np.empty((size[0], width + 1), np.float32)
    for row, (first, stop) in zip(rows, _spans(height, size[0]), strict=True):
        values[first:stop].max(0, out=row[:width])
    rows[:, width] = rows[:, width - 1]  # `reduceat` needs an element at the last cell's end
    ends = np.array(_spans(width, size[1])).ravel()
    return torch.from_numpy(np.maximum.reduceat(rows, ends, axis=1)[:, ::2].copy())


def _resize_area(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """OpenCV's area resize. Halving has its own fast path, so a quarter of a side takes less time as half of a half."""
    while all(n % (2 * m) == 0 and n > 2 * m for n, m in zip(plane.shape, size, strict=True)):
        plane = cv2.resize(plane, (plane.shape[1] // 2, plane.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return cv2.resize(plane, (size[1], size[0]), interpolation=cv2.INTER_AREA)


def _opencv_serves(plane: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether OpenCV's area resize can be used and is exact."""
    usable = plane.device.type == "cpu" and not plane.requires_grad
    # It averages exact areas when shrinking, but drops a pixel that reaches less than 1/1000 into a cell, and sums in
    # float32, which is too coarse for cells of many thousand pixels.
    shrinks = all(n <= m and n // math.gcd(m, n) < 1000 for m, n in zip(plane.shape, size, strict=True))
    return usable and shrinks and plane.numel() <= 4096 * size[0] * size[1]


def _mean_of_rows(plane: torch.Tensor, cells: int) -> torch.Tensor:
    """Average `[H, W]` down its columns to `[cells, W]`: differences of running sums, in float64."""
    pixels = plane.shape[0]
    sums = F.pad(plane.double().cumsum(0), (0, 0, 1, 0))  # [H + 1, W], the sum above each border between pixels
    edges = torch.arange(cells + 1, dtype=torch.float64, device=plane.device) * pixels / cells
    above = edges.floor().long().clamp(max=pixels - 1)
    # A border inside a pixel takes the part of the pixel above it.
    running = torch.lerp(sums[above], sums[above + 1], (edges - above)[:, None])
    return ((running[1:] - running[:-1]) * (cells / pixels)).float()


def _overlap(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    """`[cells, pixels]`: the share of each cell that each pixel covers; rows sum to 1."""
    # On a GPU it is computed there each time: no host copy to wait for, and a CUDA graph captures all of it.
    return _shares(pixels, cells, device) if device.type == "cuda" else _overlap_on_cpu(pixels, cells).to(device)


@lru_cache(maxsize=64)
def _overlap_on_cpu(pixels: int, cells: int) -> torch.Tensor:
    with torch.inference_mode(False):  # cached for callers with gradients, too
        return _shares(pixels, cells, torch.device("cpu"))


def _shares(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    edges = torch.arange(cells + 1, dtype=torch.float64, device=device) * pixels / cells
    left = torch.arange(pixels, dtype=torch.float64, device=device)
    shared = torch.minimum(edges[1:, None], left + 1) - torch.maximum(edges[:-1, None], left)
    return (shared.clamp_(min=0) * cells / pixels).float()


def _centres(pixels: int, cells: int, device: torch.device) -> torch.Tensor:
    """Index of the pixel under each cell's centre; a centre on a border belongs to the pixel after it."""
    return ((2 * torch.arange(cells, device=device) + 1) * pixels) // (2 * cells)
