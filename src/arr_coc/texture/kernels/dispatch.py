"""Which operations run by Triton kernels, and a texture's channels by kernels. The torch code is the reference.

- `ARR_COC_KERNELS` = auto, triton or torch sets the backend of the process; `using(...)` overrides it for a block;
- auto, the default, uses kernels on CUDA devices with compute capability 7.0 or higher if Triton is installed, else torch;
- triton is an error where kernels cannot run; `used()` says which backend each operation took;
- with TRITON_INTERPRET=1 kernels also run on CPU tensors, slowly: that is how they are tested without a GPU.

`edge_planes` to `pool_planes` return None where torch must do the work. Channels of one family are written together: one
pass over the image writes them all, and reading the image again would cost more than writing the rest. Buffers are kept
for the next image of the same size, per thread and stream, so that callers never wait for each other.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch

from arr_coc.errors import ArrCocError
from arr_coc.texture.layout import Channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray
    from arr_coc.texture.kernels.sampling import MipTable

Backend: TypeAlias = Literal["auto", "triton", "torch"]

VARIABLE = "ARR_COC_KERNELS"
MIN_CAPABILITY = (7, 0)  # what Triton compiles for
MAX_SIDE = 1 << 15  # px; kernels multiply rows by columns in 32 bits, offsets into memory have 64 where they need them
EDGES = ("edges", "edges_inverted", "highpass", "lowpass")  # always written together
SIGNED = ("sobel_x", "sobel_y", "edge_magnitude")  # only if the layout has one of them
EDGE_MASK = "edge"  # where distances start: a uint8 plane, not a channel

_backend: ContextVar[Backend | None] = ContextVar("backend", default=None)
_used: dict[str, str] = {}


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Set the backend inside a `with` block.

    >>> with using("torch"):
    ...     requested_backend()
    'torch'
    """
    token = _backend.set(_check_backend(backend, "backend"))
    try:
        yield
    finally:
        _backend.reset(token)


def requested_backend() -> Backend:
    """The backend set by `using`, else by the environment, else auto."""
    return _backend.get() or _check_backend(os.environ.get(VARIABLE) or "auto", VARIABLE)


def used() -> dict[str, str]:
    """By operation: the backend of its last run in this process, "triton" or "torch"."""
    return dict(_used)


def use_kernel(name: str, *tensors: torch.Tensor) -> bool:
    """Whether the operation `name` on these tensors runs by its kernel; recorded for `used`.

    Kernels have no gradients: torch runs where one is needed.
    """
    backend = requested_backend()
    device = tensors[0].device
    for other in tensors[1:]:
        if other.device != device:
            raise ArrCocError(
                f"expected all tensors for {name} on one device, got {device} and {other.device}: move one with .to(...)"
            )
    obstacle = None if backend == "torch" else reason(device) or _too_large(tensors)
    needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    if backend == "triton" and obstacle is not None:
        raise ArrCocError(f"expected to run {name} by Triton, and cannot: {obstacle}; use {VARIABLE}=auto or torch")
    runs_here = device.type == "cuda" or backend == "triton"
    by_kernel = backend != "torch" and obstacle is None and not needs_gradient and runs_here
    _used[name] = "triton" if by_kernel else "torch"
    return by_kernel


def _too_large(tensors: tuple[torch.Tensor, ...]) -> str | None:
    side = max((max(one.shape[-2:], default=0) for one in tensors), default=0)
    return None if side <= MAX_SIDE else f"a side of {side:,} px is longer than {MAX_SIDE:,}"


def reason(device: torch.device | str) -> str | None:
    """Why kernels cannot run on tensors of this device; None: they can."""
    place = torch.device(device)
    if not has_triton():
        return "Triton is not installed (extra `kernels`)"
    if place.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET", "0") in ("1", "true", "True")
        return None if interpreted else "these tensors lie on the CPU"
    if place.type != "cuda":
        return f"Triton does not run on {place.type} devices"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    found = capability(place.index if place.index is not None else torch.cuda.current_device())
    if found < MIN_CAPABILITY:
        return f"this GPU has compute capability {found[0]}.{found[1]}, and Triton needs {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@lru_cache
def capability(index: int) -> tuple[int, int]:
    """A GPU's compute capability."""
    return torch.cuda.get_device_capability(index)


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current one for launches; does nothing for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _check_backend(value: str, what: str) -> Backend:
    if value not in get_args(Backend):
        raise ArrCocError(f"expected {what} as one of {', '.join(get_args(Backend))}, got {value!r}")
    return value  # type: ignore[return-value]


def edge_planes(texture: TextureArray, name: str) -> torch.Tensor | None:
    """One of the channels of edges and detail, or the edge mask: `[H, W]`."""
    if not use_kernel("pointwise channels", texture.picture.pixels):
        return None
    signed = name in SIGNED or bool(set(SIGNED) & set(texture.names))
    names = (*EDGES, *SIGNED) if signed else EDGES

    def make() -> dict[str, torch.Tensor]:
        from arr_coc.texture.kernels.pointwise import write_pointwise

        out = torch.empty(1, len(names), *texture.size, dtype=texture.dtype, device=texture.device)
        edge = torch.empty(1, *texture.size, dtype=torch.uint8, device=texture.device)
        with device_guard(texture.device):
            slots = {name: number for number, name in enumerate(names)}
            write_pointwise(texture.pixels[None], out, slots, None, edge)
        return {**dict(zip(names, out[0], strict=True)), EDGE_MASK: edge[0]}

    return texture.once(f"edge planes {len(names)}", make)[name]


def motion_plane(texture: TextureArray, before: torch.Tensor) -> torch.Tensor | None:
    """The colour distance to the previous frame: `[H, W]`."""
    if not use_kernel("motion", texture.picture.pixels, before):
        return None
    from arr_coc.texture.kernels.pointwise import write_pointwise

    out = torch.empty(1, 1, *texture.size, dtype=texture.dtype, device=texture.device)
    with device_guard(texture.device):
        write_pointwise(texture.pixels[None], out, {"motion": 0}, before[None])
    return out[0, 0]


def distance_plane(texture: TextureArray) -> torch.Tensor | None:
    """The exact distance to the nearest edge: `[H, W]`."""
    edge = edge_planes(texture, EDGE_MASK)
    if edge is None or not use_kernel("distance", edge):
        return None
    from arr_coc.texture.kernels.distance import distance_buffers, write_distance

    out = torch.empty(1, *texture.size, dtype=texture.dtype, device=texture.device)
    with device_guard(texture.device):
        write_distance(edge[None], *distance_buffers((1, *texture.size), texture.device), out)
    return out[0]


def saliency_plane(texture: TextureArray) -> torch.Tensor | None:
    """Centre-surround contrast: `[H, W]`."""
    if not use_kernel("saliency", texture.picture.pixels):
        return None
    out = torch.empty(1, *texture.size, dtype=texture.dtype, device=texture.device)
    with device_guard(texture.device):
        _buffers("saliency", texture.size, texture.device).write(texture.pixels[None], out)
    return out[0]


def segments(pixels: torch.Tensor) -> torch.Tensor | None:
    """Superpixels of an image `[3, H, W]`: connected ids int64 `[h, w]`."""
    if not use_kernel("superpixels", pixels):
        return None
    size = (int(pixels.shape[1]), int(pixels.shape[2]))
    with device_guard(pixels.device):
        segmenter, _ = _buffers("superpixels", size, pixels.device)
        ids: torch.Tensor = segmenter.write(pixels[None])
        return ids[0].long()


def region_planes(texture: TextureArray, name: str) -> torch.Tensor | None:
    """One of the channels of regions, if these are the texture's own superpixels: `[H, W]`."""
    if texture.segmenter != "slic" or not use_kernel("regions", texture.picture.pixels):
        return None

    def make() -> dict[str, torch.Tensor]:
        from arr_coc.texture.kernels.superpixels import REGION_CHANNELS

        ids = texture.once("segments", lambda: segments(texture.pixels))
        assert ids is not None
        _, stats = _buffers("superpixels", texture.size, texture.device)
        small = ids.to(torch.int32)[None]
        out = torch.empty(1, len(REGION_CHANNELS), *texture.size, dtype=texture.dtype, device=texture.device)
        with device_guard(texture.device):
            stats.measure(small)
            stats.write(small, out, {name: number for number, name in enumerate(REGION_CHANNELS)})
        return dict(zip(REGION_CHANNELS, out[0], strict=True))

    return texture.once("region planes", make)[name]


TOGETHER = (*EDGES, "distance", "saliency")  # the channels that `write_together` computes


def write_together(textures: Sequence[TextureArray], names: Sequence[str]) -> None:
    """Compute channels of several textures by kernels, those of one size in one launch each. Nothing waits for the host.

    Sizes that come again run as one CUDA graph. Where kernels cannot run, and for other channels, nothing is computed:
    the textures compute those themselves. `names`: only these count.
    """
    groups: dict[Any, list[TextureArray]] = {}
    for texture in dict.fromkeys(textures):
        if len(texture.picture.pixels) and use_kernel("pointwise channels", texture.picture.pixels):
            groups.setdefault((texture.size, texture.dtype, texture.device), []).append(texture)
    wanted = tuple(name for name in TOGETHER if name in names)
    for (size, dtype, device), group in groups.items():
        missing = [texture for texture in group if not all(map(texture.is_computed, wanted))]
        if not missing or not wanted:
            continue
        work = _make_work(wanted, len(missing), size, dtype, device, threading.get_ident(), _stream(device))
        pixels = torch.stack([texture.pixels for texture in missing])
        with device_guard(device):
            if device.type == "cuda" and _can_record(pixels):
                (block,) = _recorded(device).run(None, ("channels", wanted, dtype), work, (pixels,))
            else:
                (block,) = work(pixels)
        for texture, planes in zip(missing, block, strict=True):
            for name, plane in zip(wanted, planes, strict=True):
                texture.fill(name, plane)


MAX_RECORDED = 8 << 20  # px of all pictures together up to which a graph is kept
RECORDED = 8  # sizes for which graphs are kept


class _ChannelWork:
    """Channels of `batch` images of one size, with the buffers for them: `[B, 3, H, W]` to `[B, C, H, W]`."""

    def __init__(
        self, names: tuple[str, ...], batch: int, size: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.names, self.batch, self.size, self.dtype, self.device = names, batch, size, dtype, device
        self._buffers: Any = None

    def __call__(self, pixels: torch.Tensor) -> tuple[torch.Tensor]:
        from arr_coc.texture.kernels.distance import distance_buffers, write_distance
        from arr_coc.texture.kernels.pointwise import pass_buffers, write_pointwise
        from arr_coc.texture.kernels.saliency import CentreSurround

        shape = (self.batch, *self.size)
        if self._buffers is None:
            self._buffers = (
                CentreSurround(self.batch, self.size, self.device) if "saliency" in self.names else None,
                pass_buffers(self.batch, self.size, self.device),
                distance_buffers(shape, self.device),
            )
        saliency, passes, (along, found) = self._buffers
        out = torch.empty(self.batch, len(self.names), *self.size, dtype=self.dtype, device=self.device)
        edge = torch.empty(shape, dtype=torch.uint8, device=self.device) if "distance" in self.names else None
        slots = {name: number for number, name in enumerate(self.names)}
        if saliency is not None:
            saliency.write(pixels, out[:, slots["saliency"]])
        write_pointwise(pixels, out, {n: slots[n] for n in EDGES if n in slots}, None, edge, passes)
        if edge is not None:
            write_distance(edge, along, found, out[:, slots["distance"]])
        return (out,)


@lru_cache(maxsize=16)
def _make_work(
    names: tuple[str, ...], batch: int, size: tuple[int, int], dtype: torch.dtype, device: torch.device, thread: int,
    stream: int,
) -> _ChannelWork:  # fmt: skip
    return _ChannelWork(names, batch, size, dtype, device)


def _can_record(pixels: torch.Tensor) -> bool:
    from arr_coc.texture.kernels.cuda_graph import can_capture

    return can_capture(pixels) and pixels.numel() <= 3 * MAX_RECORDED


@lru_cache(maxsize=8)
def _recorded(device: torch.device) -> Any:
    """The graphs of a device."""
    from arr_coc.texture.kernels.cuda_graph import GraphCache

    return GraphCache(RECORDED)


def pool_planes(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[str]) -> torch.Tensor | None:
    """Planes on a grid of cells, each by its rule: `[C, h, w]`."""
    if not use_kernel("cells", *planes):
        return None
    from arr_coc.texture.kernels.pooling import pool_cells

    with device_guard(planes[0].device):
        return pool_cells(planes, size, rules)


def can_sample(texture: TextureArray, channels: Sequence[Channel], *given: object) -> bool:
    """Whether samples go to the kernel: not if gradients are needed, nor for points in float64."""
    points = [one for one in given if isinstance(one, torch.Tensor)]
    if any(one.requires_grad or one.dtype == torch.float64 for one in points):
        return False
    # Checked before any channel is computed: torch computes only the levels it reads.
    return use_kernel("samples", texture.picture.pixels) and use_kernel(
        "samples", *(texture[one.name] for one in channels)
    )


def sample_planes(
    texture: TextureArray, channels: Sequence[Channel], xy: torch.Tensor, level: torch.Tensor
) -> torch.Tensor:
    """All channels at points `[N, 2]`: `[N, C]`. Check `can_sample` first."""
    from arr_coc.texture.kernels.sampling import sample_mips

    names = tuple(one.name for one in channels)
    mips = texture.once(f"mip table {names!r}", lambda: _mip_table(texture, channels))
    with device_guard(texture.device):
        return sample_mips(mips, xy, level)


def _mip_table(texture: TextureArray, channels: Sequence[Channel]) -> MipTable:
    """Every level of some channels; missing ones are computed together."""
    from arr_coc.texture.kernels.pooling import make_levels
    from arr_coc.texture.kernels.sampling import MipTable

    pyramids = [texture.pyramid(one.name) for one in channels]
    missing = [one for one in pyramids if not one.constant and len(one.levels) < texture.levels]
    if missing:
        with device_guard(texture.device):
            made = make_levels([one.level(0) for one in missing], [one.rule for one in missing])
        for number, one in enumerate(missing):
            one.fill([level[number] for level in made])
    for one in pyramids:
        if one.constant:
            value = one.level(0)[:1, :1]
            one.fill([value.expand(size) for size in texture.level_sizes[1:]])
    levels = [[one.level(number) for one in pyramids] for number in range(texture.levels)]
    return MipTable(levels, [one.rule for one in pyramids])


def _buffers(kind: str, size: tuple[int, int], device: torch.device) -> Any:
    """Buffers for one image of a size, per thread and stream."""
    return _make_buffers(kind, size, device, threading.get_ident(), _stream(device))


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


@lru_cache(maxsize=16)
def _make_buffers(kind: str, size: tuple[int, int], device: torch.device, thread: int, stream: int) -> Any:
    if kind == "saliency":
        from arr_coc.texture.kernels.saliency import CentreSurround

        return CentreSurround(1, size, device)
    from arr_coc.texture.kernels.superpixels import RegionStats, SlicSegmenter

    segmenter = SlicSegmenter(1, size, device)
    return segmenter, RegionStats(1, segmenter.small, size, device)
