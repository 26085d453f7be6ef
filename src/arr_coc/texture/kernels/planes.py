"""A texture's channels by kernels: what `texture/` calls before it does the work in torch.

Each function returns None where torch must do the work. Channels of one family are written together: one pass over the
image writes them all, and reading the image again would cost more than writing the rest.

Buffers are kept for the next image of the same size, per thread and stream, so that callers never wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.texture.kernels.dispatch import device_guard, use_kernel
from arr_coc.texture.layout import Channel
from arr_coc.texture.pooling import level_size

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray
    from arr_coc.texture.kernels.sampling import MipTable

EDGES = ("edges", "edges_inverted", "highpass", "lowpass")  # always written together
SIGNED = ("sobel_x", "sobel_y", "edge_magnitude")  # only if the layout has one of them
EDGE_MASK = "edge"  # where distances start: a uint8 plane, not a channel


def edge_planes(texture: TextureArray, name: str) -> torch.Tensor | None:
    """One of the channels of edges and detail, or the edge mask: `[H, W]`."""
    if not use_kernel("pointwise channels", texture.pixels):
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
    if not use_kernel("motion", texture.pixels, before):
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
    if not use_kernel("saliency", texture.pixels):
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
    if texture.segmenter != "slic" or not use_kernel("regions", texture.pixels):
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
            one.fill([value.expand(level_size(texture.size, number)) for number in range(1, texture.levels)])
    levels = [[one.level(number) for one in pyramids] for number in range(texture.levels)]
    return MipTable(levels, [one.rule for one in pyramids])


def _buffers(kind: str, size: tuple[int, int], device: torch.device) -> Any:
    """Buffers for one image of a size, per thread and stream."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _make_buffers(kind, size, device, threading.get_ident(), stream)


@lru_cache(maxsize=16)
def _make_buffers(kind: str, size: tuple[int, int], device: torch.device, thread: int, stream: int) -> Any:
    if kind == "saliency":
        from arr_coc.texture.kernels.saliency import CentreSurround

        return CentreSurround(1, size, device)
    from arr_coc.texture.kernels.superpixels import RegionStats, SlicSegmenter

    segmenter = SlicSegmenter(1, size, device)
    return segmenter, RegionStats(1, segmenter.small, size, device)
