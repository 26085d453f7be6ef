"""A page that lies a little askew: the same affine map for its pixels, on the accelerator, and for its text boxes."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F

STRAIGHT = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32)


def random_warp(rng: random.Random, width: int, height: int) -> np.ndarray:
    """A `[2, 3]` map from page pixels to shown pixels: turned about the middle, sheared and stretched a little."""
    turn = math.radians(max(-3.0, min(3.0, rng.gauss(0, 0.8))))
    shear, stretch = rng.gauss(0, 0.008), rng.uniform(0.97, 1.02)
    linear = np.array([[math.cos(turn) * stretch, -math.sin(turn) + shear], [math.sin(turn), math.cos(turn)]])
    middle = np.array([width / 2, height / 2])
    return np.concatenate([linear, (middle - linear @ middle)[:, None]], 1).astype(np.float32)


def warp_points(warp: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points `[n, 2]` of the page, as shown."""
    return points @ warp[:, :2].T + warp[:, 2]


def warp_images(images: torch.Tensor, warps: torch.Tensor) -> torch.Tensor:
    """Show `images` [B, C, H, W] through `warps` [B, 2, 3]; what lies beyond the page repeats its edge."""
    height, width = images.shape[-2:]
    # grid_sample asks where each shown pixel comes from, in coordinates from -1 to 1.
    linear = torch.linalg.inv(warps[:, :, :2].float())  # [B, 2, 2]
    shift = -(linear @ warps[:, :, 2:].float())  # [B, 2, 1]
    half = torch.tensor([width / 2, height / 2], device=images.device)
    scaled = linear * half[None, None, :] / half[None, :, None]
    offset = (linear @ half[:, None] + shift - half[:, None]) / half[:, None]
    grid = F.affine_grid(torch.cat([scaled, offset], -1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), mode="bilinear", padding_mode="border", align_corners=False)
