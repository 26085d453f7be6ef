"""Texture timings: each channel family and the whole texture, compared with scikit-image and scipy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from PIL import Image

from arr_coc.draw import samples
from arr_coc.texture import FULL40, TextureArray, all_channels


def families() -> dict[str, tuple[str, ...]]:
    """The channel families that the texture computes from the image, with their full40 channels."""
    found: dict[str, tuple[str, ...]] = {}
    for channel in all_channels():
        if channel.name in FULL40 and not channel.supplied_by:
            found[channel.family] = (*found.get(channel.family, ()), channel.name)
    return found


def channel_sets() -> dict[str, tuple[str, ...]]:
    """What is timed: the lines of the table, with their channels."""
    return {
        **families(),
        "five free channels": ("red", "green", "blue", "x", "y"),
        "five cheap channels": ("edges", "edges_inverted", "highpass", "lowpass", "eccentricity"),
        "full40": FULL40,
    }


def texture_tasks(side: int, device: str = "cpu", compare: bool = True) -> dict[str, Callable[[], object]]:
    """`ours ...` and, where it has a counterpart, `baseline ...` for each line of the table, on a square image.

    Every task starts from the image and builds a new texture.
    """
    image = samples.scene().resize((side, side))
    baseline: dict[str, Callable[[Image.Image], object]] = {}
    if compare:
        from arr_coc.bench import skimage_baseline  # needs scikit-image, which is installed for the comparison only

        baseline = {**skimage_baseline.FAMILIES, "full40": skimage_baseline.all_families}
    tasks: dict[str, Callable[[], object]] = {}
    for what, names in channel_sets().items():
        tasks[f"ours {what}"] = partial(_build, image, names, device)
        if what in baseline:
            tasks[f"baseline {what}"] = partial(baseline[what], image)
    return tasks


def _build(image: Image.Image, names: tuple[str, ...], device: str) -> list[torch.Tensor]:
    texture = TextureArray.from_image(image, max_side=None, device=device)
    return [texture[name] for name in names]
