"""Image filters on float32 planes `[H, W]`, and colour conversions.

Each filter has two implementations of the same definition: OpenCV on the CPU, where it is several times faster than torch's
convolutions on a single plane, and torch elsewhere. Both repeat the border. `tests/texture/test_filters.py` compares them.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F

LUMA_WEIGHTS = (0.299, 0.587, 0.114)


def luma(pixels: torch.Tensor) -> torch.Tensor:
    """RGB `[3, H, W]` to luma `[H, W]`, with the weights of LUMA_WEIGHTS."""
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
