"""sRGB to CIE Lab, where distances are close to what people see."""

from __future__ import annotations

import torch


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
