"""Texture timings: each channel family and the whole texture, compared with scikit-image and scipy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from PIL import Image

from arr_coc.bench.timing import Timing, interleave
from arr_coc.draw import samples
from arr_coc.texture import FULL40, TextureArray, all_channels


@dataclass(frozen=True)
class TextureRow:
    """One line of the table: what was built, our time, and the baseline's where it has a counterpart."""

    what: str
    ours: Timing
    baseline: Timing | None

    @property
    def ratio(self) -> float | None:
        """How many times faster, from the medians."""
        return None if self.baseline is None else self.baseline.median / self.ours.median


def families() -> dict[str, tuple[str, ...]]:
    """The channel families that the texture computes from the image, with their full40 channels."""
    found: dict[str, tuple[str, ...]] = {}
    for channel in all_channels():
        if channel.name in FULL40 and not channel.supplied_by:
            found[channel.family] = (*found.get(channel.family, ()), channel.name)
    return found


def bench_texture(
    side: int, rounds: int, device: str = "cpu", compare: bool = True, after_each: Callable[[], None] = lambda: None
) -> list[TextureRow]:
    """Rows for a square image of `side` pixels; every task starts from the image and builds a new texture."""
    image = samples.scene().resize((side, side))
    baseline = _baseline() if compare else {}
    tasks: dict[str, Callable[[], object]] = {}
    for what, names in _channel_sets().items():
        tasks[f"ours {what}"] = lambda names=names: _build(image, names, device)  # type: ignore[misc]
        if what in baseline:
            tasks[f"baseline {what}"] = lambda build=baseline[what]: build(image)  # type: ignore[misc]
    times = interleave(tasks, rounds, after_each)
    return [TextureRow(what, times[f"ours {what}"], times.get(f"baseline {what}")) for what in _channel_sets()]


def task_count(compare: bool) -> int:
    """How many tasks one round has, for progress bars."""
    return len(_channel_sets()) + (len(_baseline()) if compare else 0)


def _baseline() -> dict[str, Callable[[Image.Image], object]]:
    from arr_coc.bench import skimage_baseline  # needs scikit-image, which is installed for the comparison only

    return {**skimage_baseline.FAMILIES, "full40": skimage_baseline.all_families}


def _channel_sets() -> dict[str, tuple[str, ...]]:
    return {
        **families(),
        "five free channels": ("red", "green", "blue", "x", "y"),
        "five cheap channels": ("edges", "edges_inverted", "highpass", "lowpass", "eccentricity"),
        "full40": FULL40,
    }


def _build(image: Image.Image, names: tuple[str, ...], device: str) -> list[torch.Tensor]:
    texture = TextureArray.from_image(image, max_side=None, device=device)
    return [texture[name] for name in names]
