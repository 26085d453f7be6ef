"""Texture timings: each family and the whole, beside the obvious implementation, from interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from PIL import Image

from arr_coc.bench.timing import Timing, interleave
from arr_coc.draw import samples as pictures
from arr_coc.texture import FULL40, TextureArray, all_channels

FREE_FIVE = ("red", "green", "blue", "x", "y")
CHEAP_FIVE = ("edges", "edges_inverted", "highpass", "lowpass", "eccentricity")


@dataclass(frozen=True)
class Row:
    """One line of the table: what was built, our time, and the obvious one's where it has a counterpart."""

    what: str
    ours: Timing
    obvious: Timing | None

    @property
    def ratio(self) -> float | None:
        """How many times faster, from the medians."""
        return None if self.obvious is None else self.obvious.median / self.ours.median


def families() -> dict[str, tuple[str, ...]]:
    """The families that the texture computes by itself, with their full40 channels."""
    found: dict[str, tuple[str, ...]] = {}
    for channel in all_channels():
        if channel.name in FULL40 and not channel.supplied_by:
            found[channel.family] = (*found.get(channel.family, ()), channel.name)
    return found


def bench_texture(
    side: int, rounds: int, device: str = "cpu", compare: bool = True, after_each: Callable[[], None] = lambda: None
) -> list[Row]:
    """Rows for a square image of `side` pixels; every task starts from the image and builds a fresh texture."""
    others = _obvious() if compare else {}
    image = pictures.scene().resize((side, side))
    tasks: dict[str, Callable[[], object]] = {}
    for what, names in _tasks():
        tasks[f"ours {what}"] = _ours(image, names, device)
        if what in others:
            tasks[f"obvious {what}"] = lambda other=others[what]: other(image)  # type: ignore[misc]
    times = interleave(tasks, rounds, after_each)
    return [Row(what, times[f"ours {what}"], times.get(f"obvious {what}")) for what, _ in _tasks()]


def task_count(compare: bool) -> int:
    """How many tasks one round has: for progress bars."""
    return len(list(_tasks())) + (len(_obvious()) if compare else 0)


def _obvious() -> dict[str, Callable[[Image.Image], object]]:
    from arr_coc.bench import obvious  # needs scikit-image, which only the comparison does

    return {**obvious.FAMILIES, "full40": obvious.everything}


def _tasks() -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from families().items()
    yield "five free channels", FREE_FIVE
    yield "five cheap channels", CHEAP_FIVE
    yield "full40", FULL40


def _ours(image: Image.Image, names: tuple[str, ...], device: str) -> Callable[[], list[torch.Tensor]]:
    def build() -> list[torch.Tensor]:
        texture = TextureArray.from_image(image, max_side=None, device=device)
        return [texture[name] for name in names]

    return build
