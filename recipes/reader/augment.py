"""What scanners, printers and cameras do to a page, done on the accelerator to a whole batch at a time."""

import torch
import torch.nn.functional as F

from recipes.reader.warp import warp_images


def _each(batch: int, device: torch.device, low: float, high: float) -> torch.Tensor:
    """One random number per picture, shaped to multiply pictures."""
    return low + (high - low) * torch.rand(batch, 1, 1, 1, device=device)


def _some(batch: int, device: torch.device, chance: float) -> torch.Tensor:
    """1 for the pictures that are chosen, 0 for the others."""
    return (torch.rand(batch, 1, 1, 1, device=device) < chance).float()


def _blurred(images: torch.Tensor) -> torch.Tensor:
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


def _coarse(images: torch.Tensor) -> torch.Tensor:
    """Shrunk and enlarged again, as a picture that was once smaller."""
    scale = float(torch.empty(()).uniform_(0.5, 0.85))
    small = F.interpolate(images, scale_factor=scale, mode="bilinear", antialias=True)
    return F.interpolate(small, size=images.shape[-2:], mode="bilinear")


def _printed(images: torch.Tensor) -> torch.Tensor:
    """Softer, sharper, bolder or thinner letters."""
    batch, device = len(images), images.device
    images = images + _some(batch, device, 0.6) * _each(batch, device, -0.4, 1.0) * (_blurred(images) - images)
    bold = -F.max_pool2d(-images, 3, 1, 1)
    images = images + _some(batch, device, 0.2) * _each(batch, device, 0.1, 0.6) * (bold - images)
    thin = F.max_pool2d(images, (2, 2), 1, 1)[..., : images.shape[-2], : images.shape[-1]]
    images = images + _some(batch, device, 0.15) * _each(batch, device, 0.1, 0.5) * (thin - images)
    if torch.rand(()) < 0.3:
        images = images + _some(batch, device, 0.5) * (_coarse(images) - images)
    return images


def _lit(images: torch.Tensor) -> torch.Tensor:
    """Contrast, brightness, uneven light, grain, and now and then, of a gray picture, a hard black-and-white scan."""
    batch, _, height, width = images.shape
    device = images.device
    images = (images - 0.5) * _each(batch, device, 0.65, 1.2) + 0.5 + _each(batch, device, -0.12, 0.12)
    down = torch.linspace(-1, 1, height, device=device).view(1, 1, -1, 1)
    across = torch.linspace(-1, 1, width, device=device).view(1, 1, 1, -1)
    light = _each(batch, device, -0.12, 0.12) * down + _each(batch, device, -0.12, 0.12) * across
    images = images * (1 + _some(batch, device, 0.5) * light)
    if images.shape[1] == 1:
        hard = torch.sigmoid((images - _each(batch, device, 0.45, 0.7)) * _each(batch, device, 8, 25))
        images = images + _some(batch, device, 0.12) * (hard - images)
    grain = torch.randn_like(images[:, :1]) * _each(batch, device, 0, 0.07) * _some(batch, device, 0.7)
    return (images + grain).clamp(0, 1)


def _tinted(images: torch.Tensor) -> torch.Tensor:
    """Gray pictures [B, 1, H, W] on coloured paper with coloured ink, coloured ones under coloured light: [B, 3, H, W]."""
    batch, channels = images.shape[:2]
    device = images.device
    tinted = _some(batch, device, 0.4)
    if channels == 3:  # only a little: a text must keep the colour it is asked for by
        return images * (1 - 0.08 * torch.rand(batch, 3, 1, 1, device=device) * tinted)
    paper = 1 - 0.22 * torch.rand(batch, 3, 1, 1, device=device) * tinted
    inks = 0.35 * torch.rand(batch, 3, 1, 1, device=device) * tinted * _some(batch, device, 0.5)
    return inks + (paper - inks) * images


def augment(images: torch.Tensor, warps: torch.Tensor) -> torch.Tensor:
    """Pictures `[B, C, H, W]` uint8 -> `[B, 3, H, W]` float from 0 to 1, warped and made to look used."""
    shown = warp_images(images.float() / 255, warps)
    shown = _tinted(_lit(_printed(shown)))
    if images.shape[1] == 3:
        return shown
    negative = _some(len(shown), shown.device, 0.02)
    return shown + negative * (1 - 2 * shown)


def plain(images: torch.Tensor) -> torch.Tensor:
    """The same conversion without any change, for measuring."""
    return (images.float() / 255).expand(-1, 3, -1, -1)
