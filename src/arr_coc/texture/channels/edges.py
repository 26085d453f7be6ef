"""Contrast: edges and detail from luma, the distance to the nearest edge, and saliency.

The gradient's magnitude m is split by polarity: a pixel darker than its surroundings belongs to dark ink, a lighter one to
light ink. Dark-on-light and light-on-dark text separate although both have the same m.

Saliency is how much a pixel differs from its surroundings in colour and brightness, at several scales: centre-surround
differences over a pyramid in CIE Lab, a fine level minus an enlarged coarse one. The pyramid averages areas; Lab is computed
at the finest centre, which has a sixteenth of the pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch

from arr_coc.texture import filters
from arr_coc.texture.kernels import dispatch as kernels
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

SURROUNDINGS = 2.0  # px, sigma; wide enough to reach across a stroke of small print
COARSE = 4.0  # px, sigma
TOP = 5**0.5 / 2  # m at the sharpest corner; a straight step of height 1 has m = 1
CENTRES = (2, 3, 4)  # pyramid levels
SURROUNDS = (3, 4)  # levels above the centre
FLAT = 1e-3  # Lab units; a smaller range is rounding, not contrast
IS_EDGE = 0.1  # of m: a step of a tenth of the range from black to white


def luma(texture: TextureArray) -> torch.Tensor:
    """Luma in full precision, shared by the channels: float32 `[H, W]`."""
    return texture.once("luma", lambda: filters.luma(texture.pixels))


def gradient(texture: TextureArray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(along x, along y, m) in full precision, shared by the channels: each float32 `[H, W]`."""

    def make() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, y = filters.sobel(luma(texture))
        return x, y, filters.magnitude(x, y)

    return texture.once("gradient", make)


def polarity(texture: TextureArray) -> torch.Tensor:
    """True where a pixel is darker than its surroundings, shared by the channels: bool `[H, W]`."""
    light = luma(texture)
    return texture.once("polarity", lambda: filters.is_above(filters.gaussian(light, SURROUNDINGS), light))


def _by_polarity(dark: bool) -> Callable[[TextureArray], torch.Tensor]:
    """The gradient of the pixels that are darker than their surroundings, or of the others; 0 elsewhere."""

    def edges(texture: TextureArray) -> torch.Tensor:
        strength, darker = gradient(texture)[2], polarity(texture)
        mask = darker if dark else ~darker
        if strength.device.type != "cpu":
            return strength * mask
        values = strength.numpy()  # OpenCV copies under a mask in half of the time of a product
        return torch.from_numpy(cv2.bitwise_and(values, values, mask=mask.numpy().view(np.uint8)))

    return edges


def _register(name: str, meaning: str, by_torch: Callable[[TextureArray], torch.Tensor], **options: Any) -> None:
    """A channel that one kernel writes together with the others of this family, or torch alone."""

    @channel(name, family="edges", cost="cheap", meaning=meaning, **options)
    def edge_channel(texture: TextureArray) -> torch.Tensor:
        made = kernels.edge_planes(texture, name)
        return by_torch(texture) if made is None else made


_MAGNITUDE: dict[str, Any] = {"range": (0, TOP), "pool": "max"}
_register("edges", "gradient of ink darker than its surroundings", _by_polarity(True), **_MAGNITUDE)
_register("edges_inverted", "gradient of ink lighter than its surroundings", _by_polarity(False), **_MAGNITUDE)
_register("sobel_x", "signed derivative of luma from left to right", lambda t: gradient(t)[0], range=(-1, 1))
_register("sobel_y", "signed derivative of luma from top to bottom", lambda t: gradient(t)[1], range=(-1, 1))
_register("edge_magnitude", "gradient of luma, either polarity", lambda t: gradient(t)[2], **_MAGNITUDE)
_register("highpass", "fine detail: absolute Laplacian of luma", lambda t: filters.laplacian(luma(t)).abs_())
_register("lowpass", "coarse structure: luma blurred by 4 px", lambda t: filters.gaussian(luma(t), COARSE))


@channel(
    "distance",
    family="distance",
    cost="moderate",
    meaning="distance to the nearest edge over half the diagonal; 1 where there is none",
)
def distance(texture: TextureArray) -> torch.Tensor:
    made = kernels.distance_plane(texture)
    if made is not None:
        return made
    strength = gradient(texture)[2]
    # numpy compares and searches several times as fast as torch.
    on_cpu = strength.device.type == "cpu"
    edge = torch.from_numpy(strength.numpy() > np.float32(IS_EDGE)) if on_cpu else strength > IS_EDGE
    if not (edge.numpy().any() if on_cpu else bool(edge.any())):
        return texture.constant(1.0)
    height, width = texture.size
    half_diagonal = (height**2 + width**2) ** 0.5 / 2
    return distance_to(edge).div_(half_diagonal).clamp_(max=1)


@channel(
    "saliency",
    family="saliency",
    cost="moderate",
    meaning="contrast to the surroundings in colour and brightness, over several scales",
)
def saliency(texture: TextureArray) -> torch.Tensor:
    pairs = centre_surround_pairs(texture.levels)
    if not pairs:
        return texture.constant(0.0)
    made = kernels.saliency_plane(texture)
    if made is not None:
        return made
    finest, coarsest = pairs[0][0], max(surround for _, surround in pairs)
    sizes = texture.level_sizes
    small = torch.stack(filters.pool_means(texture.pixels, sizes[finest]))
    levels = {finest: list(filters.rgb_to_lab(small))}
    for number in range(finest + 1, coarsest + 1):
        levels[number] = filters.pool_means(levels[number - 1], sizes[number])
    total = torch.zeros(sizes[finest], device=texture.device)
    for centre, surround in pairs:
        for fine, coarse in zip(levels[centre], levels[surround], strict=True):
            contrast = (fine - filters.resize(coarse, sizes[centre])).abs()
            total += filters.resize(contrast, sizes[finest])
    full = filters.resize(total, texture.size)
    low, high = torch.aminmax(full)
    if float(high - low) < FLAT:
        return texture.constant(0.0)
    return (full - low).div_(high - low)


def centre_surround_pairs(levels: int) -> list[tuple[int, int]]:
    """The (centre, surround) levels that fit into a pyramid of `levels`; small images start at finer centres."""
    top = levels - 1
    pairs = [(c, c + s) for c in CENTRES for s in SURROUNDS if c + s <= top]
    return pairs or [(c, top) for c in (0, 1) if c < top]


def distance_to(mask: torch.Tensor) -> torch.Tensor:
    """Pixels to the nearest True of a bool `[H, W]` with at least one: exact on the CPU, jump flooding elsewhere."""
    if mask.device.type == "cpu":
        outside = np.logical_not(mask.numpy()).view(np.uint8)
        length = torch.from_numpy(cv2.distanceTransform(outside, cv2.DIST_L2, cv2.DIST_MASK_PRECISE))
        # OpenCV's last bit depends on the array's address. Squared distances are integers, so rounding them removes that.
        return length.square_().round_().sqrt_()
    return jump_flooding(mask)


def jump_flooding(mask: torch.Tensor) -> torch.Tensor:
    """Jump flooding: each pixel takes over the nearest edge of ever closer neighbours; off by 1 or 2 px in rare corners."""
    height, width = mask.shape
    rows = torch.arange(height, device=mask.device, dtype=torch.float32)[:, None].expand(height, width)
    columns = torch.arange(width, device=mask.device, dtype=torch.float32).expand(height, width)
    far = float(4 * (height + width))
    seed = torch.stack(
        [torch.where(mask, rows, far), torch.where(mask, columns, far)]
    )  # [2, H, W], nearest edge so far
    best = (seed[0] - rows) ** 2 + (seed[1] - columns) ** 2
    step = 1 << (max(height, width) - 1).bit_length()
    # A pass with step 1 before the descent removes most of the errors of the plain scheme.
    for reach in [1, *(step >> k for k in range(1, step.bit_length()))]:
        for down in (-reach, 0, reach):
            for across in (-reach, 0, reach):
                if (down, across) == (0, 0) or abs(down) >= height or abs(across) >= width:
                    continue
                here = (slice(max(0, -down), height - max(0, down)), slice(max(0, -across), width - max(0, across)))
                there = (slice(max(0, down), height - max(0, -down)), slice(max(0, across), width - max(0, -across)))
                offered = seed[:, there[0], there[1]].clone()
                length = (offered[0] - rows[here]) ** 2 + (offered[1] - columns[here]) ** 2
                nearer = length < best[here]
                best[here] = torch.where(nearer, length, best[here])
                seed[:, here[0], here[1]] = torch.where(nearer, offered, seed[:, here[0], here[1]])
    return best.sqrt()
