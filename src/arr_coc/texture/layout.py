"""The channel registry: meaning, range, pooling rule and cost by name; and the layouts, ordered lists of names.

A new channel is one function and one registration, in this package or in a user's own code:

    @arr_coc.channel("warmth", family="colour", range=(0, 1), pool="mean", cost="cheap", meaning="how red against blue")
    def warmth(texture):
        return (texture["red"] - texture["blue"]).clamp(0, 1)
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from arr_coc.errors import ChannelError

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

Pool: TypeAlias = Literal["mean", "max", "nearest"]
Cost: TypeAlias = Literal["free", "cheap", "moderate", "costly"]
Compute: TypeAlias = "Callable[[TextureArray], torch.Tensor]"


@dataclass(frozen=True)
class Channel:
    """One named plane of the texture.

    `supplied_by` names the caller's maps that fill it; without one it is zero and listed in `TextureArray.absent`.
    """

    name: str
    family: str
    meaning: str
    range: tuple[float, float]
    pool: Pool
    cost: Cost
    compute: Compute
    supplied_by: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """The fields for JSON, which has no infinity: an unbounded range ends in None."""
        return {
            "name": self.name,
            "family": self.family,
            "range": [None if math.isinf(end) else end for end in self.range],
            "pool": self.pool,
            "cost": self.cost,
            "supplied_by": list(self.supplied_by),
            "meaning": self.meaning,
        }


CHANNELS: dict[str, Channel] = {}


def channel(
    name: str,
    *,
    family: str = "custom",
    meaning: str,
    range: tuple[float, float] = (0.0, 1.0),
    pool: Pool = "mean",
    cost: Cost = "moderate",
    supplied_by: tuple[str, ...] = (),
    replace: bool = False,
) -> Callable[[Compute], Compute]:
    """Register the decorated function as the channel `name`; it takes the texture and returns an `[H, W]` tensor."""
    if not isinstance(name, str) or not name:
        raise ChannelError(f"a channel's name is a word, got {name!r}")
    if len(range) != 2 or not range[0] < range[1]:
        raise ChannelError(f"channel {name!r}: range must be (lowest, highest), got {range!r}")
    if isinstance(supplied_by, str):
        raise ChannelError(f"channel {name!r}: supplied_by must be a tuple of names: ({supplied_by!r},)")
    if pool not in get_args(Pool):
        raise ChannelError(f"channel {name!r}: pool must be one of {', '.join(get_args(Pool))}, got {pool!r}")
    if cost not in get_args(Cost):
        raise ChannelError(f"channel {name!r}: cost must be one of {', '.join(get_args(Cost))}, got {cost!r}")
    if name in CHANNELS and not replace:
        raise ChannelError(f"there is a channel {name!r} already; choose another name, or pass replace=True")

    def register(compute: Compute) -> Compute:
        CHANNELS[name] = Channel(name, family, meaning, range, pool, cost, compute, supplied_by)
        return compute

    return register


def find_channel(name: str) -> Channel:
    """The channel of that name; the error for an unknown one suggests the nearest name."""
    try:
        return CHANNELS[name]
    except (KeyError, TypeError):
        raise ChannelError(f"there is no channel {name!r}{nearest_name(name, CHANNELS)}") from None


def select_channels(names: str | Iterable[str]) -> list[Channel]:
    """The channels of a layout, or of a list of names."""
    return [CHANNELS[name] for name in resolve_layout(names)]


def all_channels() -> list[Channel]:
    """Every registered channel: those of full40 in its order, then the others in order of registration."""
    order = {name: number for number, name in enumerate(FULL40)}
    return sorted(CHANNELS.values(), key=lambda c: order.get(c.name, len(order)))


def nearest_name(name: object, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


EMBEDDING_NAMES = tuple(f"embedding_{i:02d}" for i in range(16))

# fmt: off
FULL40: tuple[str, ...] = (
    "red", "green", "blue",
    "edges", "edges_inverted", "highpass", "lowpass",
    "motion", "saliency",
    "x", "y", "eccentricity",
    "cluster_id", "cluster_distance", "cluster_size",
    "previous_relevance", "previous_saliency", "fixation",
    *EMBEDDING_NAMES,
    "distance",
    "previous_attention", "current_attention", "gaze",
    "boundaries", "text",
)
MVP13: tuple[str, ...] = (
    "red", "green", "blue",
    "y", "x",
    "sobel_x", "sobel_y", "edge_magnitude",
    "saliency", "text", "eccentricity", "cluster_size", "lowpass",
)
# fmt: on

LAYOUTS: dict[str, tuple[str, ...]] = {"full40": FULL40, "mvp13": MVP13}


def resolve_layout(layout: str | Iterable[str]) -> tuple[str, ...]:
    """A layout's names, from the name of a shipped one or from any list of channel names."""
    if isinstance(layout, str):
        if layout in CHANNELS:
            raise ChannelError(f"{layout!r} is a channel, not a layout; for that channel alone pass [{layout!r}]")
        if layout not in LAYOUTS:
            raise ChannelError(f"there is no layout {layout!r}{nearest_name(layout, [*LAYOUTS, *CHANNELS])}")
        return LAYOUTS[layout]
    if not isinstance(layout, Iterable):
        raise ChannelError(f"expected a layout's name or a list of channel names, got {layout!r}")
    names = tuple(layout)
    if not names:
        raise ChannelError("a layout needs at least one channel")
    for name in names:
        find_channel(name)
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ChannelError(f"a layout names each channel once; twice there: {', '.join(twice)}")
    return names
