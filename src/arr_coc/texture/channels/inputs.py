"""Channels that are inputs: the image's colours, pixel positions, and maps that only the caller has.

Maps are motion, memory, attention, gaze and embeddings.

`arr_coc.watch` carries state from frame to frame and supplies it, warped: `previous_frame` for motion, maps for the rest. A
conversation supplies what the turn before found; `gaze=` supplies the falloff around the fixations. Maps come in any size and are resampled to the texture's. `read_supplied` checks them; which names
exist follows from the registered channels. A channel without its map is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture import filters
from arr_coc.texture.kernels import dispatch as kernels
from arr_coc.texture.layout import EMBEDDING_NAMES, all_channels, channel, nearest_name
from arr_coc.types.image import ImageLike, Picture, as_tensor, read_picture

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

Embed: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
SuppliedMap: TypeAlias = "ImageLike | Embed | None"

FIXATION_DECAY = 0.9  # share of the old fixation that stays when a frame's relevance is added


@runtime_checkable
class Embedder(Protocol):
    """An embedding function that gets the texture, so that it can cache its features there."""

    def channels(self, texture: TextureArray) -> torch.Tensor: ...

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor: ...


def _register_colour(number: int, name: str) -> None:
    @channel(name, family="colour", cost="free", meaning=f"{name} of the image")
    def colour(texture: TextureArray) -> torch.Tensor:
        return texture.pixels[number]


for _number, _name in enumerate(("red", "green", "blue")):
    _register_colour(_number, _name)


def pixel_centres(count: int, device: torch.device) -> torch.Tensor:
    """Pixel centres along one axis, in [0, 1]: `[count]`."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count


@channel("x", family="position", cost="free", meaning="pixel centre from left (0) to right (1)")
def x(texture: TextureArray) -> torch.Tensor:
    return pixel_centres(texture.size[1], texture.device).to(texture.dtype).expand(texture.size)


@channel("y", family="position", cost="free", meaning="pixel centre from top (0) to bottom (1)")
def y(texture: TextureArray) -> torch.Tensor:
    return pixel_centres(texture.size[0], texture.device).to(texture.dtype)[:, None].expand(texture.size)


def _register_wave(axis: int, name: str, turns: float, part: Callable[[torch.Tensor], torch.Tensor], of: str) -> None:
    """Position as a wave along one axis: as in 2D rotary embeddings, the product of two cells' waves depends on their distance."""

    meaning = f"{of} of {turns:g} half turns from {('top to bottom', 'left to right')[axis]}; in no layout: position for layers"

    @channel(name, family="position", range=(-1, 1), cost="free", meaning=meaning)
    def wave(texture: TextureArray) -> torch.Tensor:
        along = part(pixel_centres(texture.size[axis], texture.device) * (math.pi * turns)).to(texture.dtype)
        return along.expand(texture.size) if axis else along[:, None].expand(texture.size)


for _axis, _letter in enumerate("yx"):
    for _turns in (1, 2, 4, 8):
        _register_wave(_axis, f"wave_{_letter}{_turns}_cos", _turns, torch.cos, "cosine")
        _register_wave(_axis, f"wave_{_letter}{_turns}_sin", _turns, torch.sin, "sine")


@channel(
    "eccentricity", family="position", cost="cheap", meaning="distance to the image's centre, 1 at the corner pixels"
)
def eccentricity(texture: TextureArray) -> torch.Tensor:
    height, width = texture.size
    farthest = ((height - 1) ** 2 + (width - 1) ** 2) ** 0.5 / 2
    if farthest == 0:
        return texture.constant(0.0)
    across = (pixel_centres(width, texture.device) - 0.5) * (width / farthest)
    down = (pixel_centres(height, texture.device) - 0.5) * (height / farthest)
    return (across.square() + down.square()[:, None]).sqrt_().clamp_(max=1)


@channel(
    "motion",
    family="motion",
    range=(0, 3**0.5),
    cost="cheap",
    supplied_by=("previous_frame",),
    meaning="colour distance to the previous frame",
)
def motion(texture: TextureArray) -> torch.Tensor:
    before = texture.supplied("previous_frame")
    if before is None:
        return texture.constant(0.0)
    made = kernels.motion_plane(texture, before)
    if made is not None:
        return made
    return (texture.pixels - before).square_().sum(0).sqrt_()  # several times faster than a norm over the first axis


@channel(
    "fixation",
    family="memory",
    cost="cheap",
    supplied_by=("fixation", "previous_relevance"),
    meaning="where relevance has dwelt: .9 of the old fixation + .1 of the previous relevance; filled by watch",
)
def fixation(texture: TextureArray) -> torch.Tensor:
    old, new = texture.supplied("fixation"), texture.supplied("previous_relevance")
    weighted = ((FIXATION_DECAY, old), (1 - FIXATION_DECAY, new))
    parts = [share * given for share, given in weighted if given is not None]
    return torch.stack(parts).sum(0) if parts else texture.constant(0.0)


def _register_map(name: str, family: str, meaning: str) -> None:
    """A channel that is the caller's map, or zero."""

    @channel(name, family=family, cost="free", supplied_by=(name,), meaning=meaning)
    def supplied_map(texture: TextureArray) -> torch.Tensor:
        given: torch.Tensor | None = texture.supplied(name)
        return texture.constant(0.0) if given is None else given


_register_map("previous_relevance", "memory", "relevance on the previous frame or turn; filled by watch and follow-ups")
_register_map(
    "previous_saliency", "memory", "saliency on the previous frame, filled by watch; for callers: no score reads it"
)
_register_map(
    "previous_attention", "attention", "the model's attention while it answered the last turn; filled by follow-ups"
)
_register_map(
    "current_attention",
    "attention",
    "the model's attention so far; for callers, for example from vlm.point: the library does not fill it",
)
_register_map("gaze", "attention", "where a person looks; filled from gaze=, or by callers from eye tracking")


def _embeddings(texture: TextureArray) -> torch.Tensor | None:
    """Features on the encoder's own grid `[16, h, w]`, encoded on first use, or None."""
    given = texture.supplied("embeddings")
    if not callable(given):
        features: torch.Tensor | None = given
        return features

    def encode() -> torch.Tensor:
        texture.supplied("embeddings")  # recorded as a dependency of the cached value
        made = given.channels(texture) if isinstance(given, Embedder) else given(texture.pixels)
        return check_embeddings(made, texture.picture)

    return texture.once("embeddings", encode)


def _register_embedding(number: int, name: str) -> None:
    meaning = f"dimension {number + 1} of 16 of the joint image-text space"
    unbounded = (-math.inf, math.inf)

    @channel(name, family="embedding", range=unbounded, cost="costly", supplied_by=("embeddings",), meaning=meaning)
    def dimension(texture: TextureArray) -> torch.Tensor:
        features = _embeddings(texture)
        return texture.constant(0.0) if features is None else filters.resample(features[number], texture.size)


for _number, _name in enumerate(EMBEDDING_NAMES):
    _register_embedding(_number, _name)


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
            ready[name] = _read_frame(value, picture)
        elif name == "embeddings":
            ready[name] = value if callable(value) else check_embeddings(value, picture)
        else:
            ready[name] = _read_map(name, value, picture, ranges[name])
    return ready


def check_embeddings(value: object, picture: Picture) -> torch.Tensor:
    """Embeddings as float32 `[16, h, w]`."""
    features = as_tensor(value, f"embeddings [{len(EMBEDDING_NAMES)}, h, w]")
    if features.ndim != 3 or len(features) != len(EMBEDDING_NAMES) or 0 in features.shape:
        raise ChannelError(f"expected embeddings [{len(EMBEDDING_NAMES)}, h, w], got {list(features.shape)}")
    _check_finite("embeddings", features)
    return features.detach().to(device=picture.pixels.device, dtype=torch.float32, copy=True)


def _read_frame(value: Any, picture: Picture) -> torch.Tensor:
    frame = read_picture(value, max_side=max(picture.size), device=picture.pixels.device)
    if frame.original_size != picture.original_size:
        was, now = frame.original_size, picture.original_size
        raise ChannelError(
            f"the previous frame must have this image's size, {now[1]}x{now[0]} pixels, got {was[1]}x{was[0]}"
        )
    return frame.pixels


def _read_map(name: str, value: Any, picture: Picture, within: tuple[float, float]) -> torch.Tensor:
    plane = as_tensor(value, f"the map {name!r} [h, w]")
    if plane.ndim != 2 or 0 in plane.shape:
        raise ChannelError(f"expected the map {name!r} as [h, w], got {list(plane.shape)}")
    if plane.is_complex():
        raise ChannelError(f"expected the map {name!r} in real numbers, got {plane.dtype}: pass its absolute value")
    plane = plane.detach().to(picture.pixels.device).float()
    _check_finite(name, plane)
    low, high = within
    if float(plane.min()) < low - 1e-3 or float(plane.max()) > high + 1e-3:
        raise ChannelError(
            f"the map {name!r} must lie in [{low:g}, {high:g}], got {float(plane.min()):.4g} to {float(plane.max()):.4g}; "
            "scale it first, e.g. divide by its maximum"
        )
    return filters.resample(plane, picture.size).clamp(low, high)


def _check_finite(name: str, value: torch.Tensor) -> None:
    if not bool(torch.isfinite(value).all()):
        raise ChannelError(
            f"expected finite values in the map {name!r}, got NaN or infinity: replace them, e.g. with torch.nan_to_num"
        )
