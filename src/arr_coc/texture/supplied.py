"""Maps that only the caller has: the frame before, memory, attention, gaze, embeddings.

They come in any size and leave in the texture's, checked. Which names exist follows from the registered channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture.filters import resize
from arr_coc.texture.layout import EMBEDDING_NAMES, Pool, all_channels, nearest_name
from arr_coc.texture.pooling import pool
from arr_coc.types.image import ImageLike, read_picture
from arr_coc.types.picture import Picture
from arr_coc.types.tensors import as_tensor

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

Embed: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
SuppliedMap: TypeAlias = "ImageLike | Embed | None"


@runtime_checkable
class Embedder(Protocol):
    """An embedding function that wants to see the texture, so that it can leave what it found there."""

    def channels(self, texture: TextureArray) -> torch.Tensor: ...

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor: ...


def read_supplied(maps: Mapping[str, SuppliedMap], picture: Picture) -> dict[str, Any]:
    """Check each map and bring it to the picture's size and device; None stays None."""
    ready: dict[str, Any] = {}
    ranges = {key: channel.range for channel in reversed(all_channels()) for key in channel.supplied_by}
    known = sorted(ranges)
    for name, value in maps.items():
        if name not in known:
            raise ChannelError(f"no channel takes a map called {name!r}{nearest_name(name, known)}")
        if value is None:
            ready[name] = None
        elif name == "previous_frame":
            ready[name] = _frame(value, picture)
        elif name == "embeddings":
            ready[name] = value if callable(value) else check_embeddings(value, picture)
        else:
            ready[name] = _map(name, value, picture, ranges[name])
    return ready


def check_embeddings(value: object, picture: Picture) -> torch.Tensor:
    """Embeddings as float32 `[16, h, w]`."""
    features = as_tensor(value, f"embeddings [{len(EMBEDDING_NAMES)}, h, w]")
    if features.ndim != 3 or len(features) != len(EMBEDDING_NAMES) or 0 in features.shape:
        raise ChannelError(f"expected embeddings [{len(EMBEDDING_NAMES)}, h, w], got {list(features.shape)}")
    _check_finite("embeddings", features)
    return features.detach().to(device=picture.pixels.device, dtype=torch.float32, copy=True)


def fit(plane: torch.Tensor, size: tuple[int, int], shrink_by: Pool = "mean") -> torch.Tensor:
    """A map of any size at the texture's: pooled where it is larger, interpolated where it is smaller."""
    larger = plane.shape[0] >= size[0] and plane.shape[1] >= size[1]
    return pool(plane, size, shrink_by) if larger else resize(plane, size)


def _frame(value: Any, picture: Picture) -> torch.Tensor:
    frame = read_picture(value, max_side=max(picture.size), device=picture.pixels.device)
    if frame.original_size != picture.original_size:
        was, now = frame.original_size, picture.original_size
        raise ChannelError(
            f"the previous frame must have this image's size, {now[1]}x{now[0]} pixels, got {was[1]}x{was[0]}"
        )
    return frame.pixels


def _map(name: str, value: Any, picture: Picture, within: tuple[float, float]) -> torch.Tensor:
    plane = as_tensor(value, f"the map {name!r} [h, w]")
    if plane.ndim != 2 or 0 in plane.shape:
        raise ChannelError(f"expected the map {name!r} as [h, w], got {list(plane.shape)}")
    plane = plane.detach().to(picture.pixels.device).float()
    _check_finite(name, plane)
    low, high = within
    if float(plane.min()) < low - 1e-3 or float(plane.max()) > high + 1e-3:
        raise ChannelError(
            f"the map {name!r} must lie in [{low:g}, {high:g}], got {float(plane.min()):.4g} to {float(plane.max()):.4g}; "
            "scale it first, e.g. divide by its maximum"
        )
    return fit(plane, picture.size).clamp(low, high)


def _check_finite(name: str, value: torch.Tensor) -> None:
    if not bool(torch.isfinite(value).all()):
        raise ChannelError(f"the map {name!r} holds NaN or infinite values")
