"""Augmentation on the accelerator, a whole batch at a time: warps, print, light and noise of scans and photos."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F

STRAIGHT = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], np.float32)


def random_warp(rng: random.Random, width: int, height: int) -> np.ndarray:
    """A random affine map `[2, 3]` from page pixels to shown pixels: a small rotation, shear and stretch."""
    turn = math.radians(max(-5.0, min(5.0, rng.gauss(0, 1.2))))
    shear, stretch = rng.gauss(0, 0.008), rng.uniform(0.97, 1.02)
    linear = np.array([[math.cos(turn) * stretch, -math.sin(turn) + shear], [math.sin(turn), math.cos(turn)]])
    middle = np.array([width / 2, height / 2])
    return np.concatenate([linear, (middle - linear @ middle)[:, None]], 1).astype(np.float32)


def warp_points(warp: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points `[n, 2]` of the page, as shown."""
    return points @ warp[:, :2].T + warp[:, 2]


def warp_images(images: torch.Tensor, warps: torch.Tensor) -> torch.Tensor:
    """Show `images` [B, C, H, W] through `warps` [B, 2, 3]; outside the page its edge is repeated."""
    height, width = images.shape[-2:]
    # grid_sample asks where each shown pixel comes from, in coordinates from -1 to 1.
    linear = torch.linalg.inv(warps[:, :, :2].float())  # [B, 2, 2]
    shift = -(linear @ warps[:, :, 2:].float())  # [B, 2, 1]
    half = torch.tensor([width / 2, height / 2], device=images.device)
    scaled = linear * half[None, None, :] / half[None, :, None]
    offset = (linear @ half[:, None] + shift - half[:, None]) / half[:, None]
    grid = F.affine_grid(torch.cat([scaled, offset], -1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), mode="bilinear", padding_mode="border", align_corners=False)


def _each(batch: int, device: torch.device, low: float, high: float) -> torch.Tensor:
    """One random number per picture, shaped to multiply pictures."""
    return low + (high - low) * torch.rand(batch, 1, 1, 1, device=device)


def _some(batch: int, device: torch.device, chance: float) -> torch.Tensor:
    """1 for a random share of the pictures, 0 for the others."""
    return (torch.rand(batch, 1, 1, 1, device=device) < chance).float()


def _blur(images: torch.Tensor) -> torch.Tensor:
    taps = torch.tensor([0.06, 0.24, 0.40, 0.24, 0.06], device=images.device)
    channels = images.shape[1]
    images = F.conv2d(
        F.pad(images, (2, 2, 0, 0), mode="replicate"),
        taps.view(1, 1, 1, 5).expand(channels, -1, -1, -1),
        groups=channels,
    )
    return F.conv2d(
        F.pad(images, (0, 0, 2, 2), mode="replicate"),
        taps.view(1, 1, 5, 1).expand(channels, -1, -1, -1),
        groups=channels,
    )


def _downscale_and_up(images: torch.Tensor) -> torch.Tensor:
    """Downscaled and upscaled again."""
    scale = float(torch.empty(()).uniform_(0.5, 0.85))
    small = F.interpolate(images, scale_factor=scale, mode="bilinear", antialias=True)
    return F.interpolate(small, size=images.shape[-2:], mode="bilinear")


def _vary_print(images: torch.Tensor) -> torch.Tensor:
    """Blurred, sharpened, bolder or thinner letters."""
    batch, device = len(images), images.device
    images = images + _some(batch, device, 0.6) * _each(batch, device, -0.4, 1.0) * (_blur(images) - images)
    bold = -F.max_pool2d(-images, 3, 1, 1)
    images = images + _some(batch, device, 0.2) * _each(batch, device, 0.1, 0.6) * (bold - images)
    thin = F.max_pool2d(images, (2, 2), 1, 1)[..., : images.shape[-2], : images.shape[-1]]
    images = images + _some(batch, device, 0.15) * _each(batch, device, 0.1, 0.5) * (thin - images)
    if torch.rand(()) < 0.3:
        images = images + _some(batch, device, 0.5) * (_downscale_and_up(images) - images)
    return images


def _shadow(batch: int, down: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
    """Light `[B, 1, H, W]` up to 1 under the shadow of a hand or a phone: a straight border, hard or soft, on some pictures."""
    device = down.device
    angle = _each(batch, device, 0, 2 * math.pi)
    distance = angle.cos() * across + angle.sin() * down - _each(batch, device, -0.6, 0.9)
    depth = _each(batch, device, 0.15, 0.55) * _some(batch, device, 0.2)
    return 1 - depth * torch.sigmoid(distance * _each(batch, device, 3, 40))


def _is_gray(images: torch.Tensor) -> torch.Tensor:
    """Which pictures have no colour, `[B, 1, 1, 1]` of 0 and 1."""
    spread = images.amax(1, keepdim=True) - images.amin(1, keepdim=True)
    return (spread.amax((2, 3), keepdim=True) < 1 / 255).to(images.dtype)


def _vary_light(images: torch.Tensor, gray: torch.Tensor) -> torch.Tensor:
    """Contrast, brightness, uneven and low light, shadows and noise; at times a gray picture becomes a binary scan."""
    batch, _, height, width = images.shape
    device = images.device
    images = (images - 0.5) * _each(batch, device, 0.65, 1.2) + 0.5 + _each(batch, device, -0.12, 0.12)
    down = torch.linspace(-1, 1, height, device=device).view(1, 1, -1, 1)
    across = torch.linspace(-1, 1, width, device=device).view(1, 1, 1, -1)
    light = _each(batch, device, -0.12, 0.12) * down + _each(batch, device, -0.12, 0.12) * across
    images = images * (1 + _some(batch, device, 0.5) * light)
    images = images * _shadow(batch, down, across) * (1 - _some(batch, device, 0.15) * _each(batch, device, 0.1, 0.65))
    hard = torch.sigmoid((images - _each(batch, device, 0.45, 0.7)) * _each(batch, device, 8, 25))
    images = images + gray * _some(batch, device, 0.12) * (hard - images)
    grain = torch.randn_like(images[:, :1]) * _each(batch, device, 0, 0.07) * _some(batch, device, 0.7)
    return (images + grain).clamp(0, 1)


def _tint(images: torch.Tensor, gray: torch.Tensor) -> torch.Tensor:
    """Gray pictures on coloured paper with coloured ink, coloured ones under coloured light: `[B, 3, H, W]`."""
    batch, device = len(images), images.device
    tinted = _some(batch, device, 0.4)
    most = 0.08 + 0.14 * gray  # only a little where a text must keep its colour
    paper = 1 - most * torch.rand(batch, 3, 1, 1, device=device) * tinted
    inks = 0.35 * gray * torch.rand(batch, 3, 1, 1, device=device) * tinted * _some(batch, device, 0.5)
    return inks + (paper - inks) * images


def augment(images: torch.Tensor, warps: torch.Tensor) -> torch.Tensor:
    """Pictures `[B, C, H, W]` uint8 -> `[B, 3, H, W]` float from 0 to 1, warped and augmented."""
    shown = images.float() / 255
    gray = _is_gray(shown)
    shown = _tint(_vary_light(_vary_print(warp_images(shown, warps)), gray), gray)
    negative = gray * _some(len(shown), shown.device, 0.04)
    return shown + negative * (1 - 2 * shown)


def without_augmentation(images: torch.Tensor) -> torch.Tensor:
    """The same conversion without augmentation, for validation."""
    return (images.float() / 255).expand(-1, 3, -1, -1)
