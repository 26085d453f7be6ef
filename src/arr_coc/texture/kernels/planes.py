"""A texture's channels by kernels, where kernels run: what `texture/` asks before it does the work in torch.

Each function answers None where torch is to do it. Families are made together: asking for `edges` writes all that the same pass
over the image can write, because reading the image again would cost more than writing the rest.

Buffers that a size needs are kept for the next image of that size, by thread and stream, so that nobody waits for another.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.texture.kernels.dispatch import chosen, on
from arr_coc.texture.layout import Channel
from arr_coc.texture.pyramid import level_size

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray
    from arr_coc.texture.kernels.sampling import Places

EDGES = ("edges", "edges_inverted", "highpass", "lowpass")  # always written together
SIGNED = ("sobel_x", "sobel_y", "edge_magnitude")  # only where the layout has one of them
MASK = "edge"  # where distances start: a uint8 plane beside the channels


def edge_planes(texture: TextureArray, name: str) -> torch.Tensor | None:
    """One of the channels of edges and detail, or the mask of edges."""
    if not chosen("cheap channels", texture.pixels):
        return None
    signed = name in SIGNED or bool(set(SIGNED) & set(texture.names))
    names = (*EDGES, *SIGNED) if signed else EDGES
    made: dict[str, torch.Tensor] = texture.once(f"edge planes {len(names)}", lambda: _edges(texture, names))
    return made[name]


def _edges(texture: TextureArray, names: Sequence[str]) -> dict[str, torch.Tensor]:
    from arr_coc.texture.kernels.cheap import write_cheap

    out = torch.empty(1, len(names), *texture.size, dtype=texture.dtype, device=texture.device)
    edge = torch.empty(1, *texture.size, dtype=torch.uint8, device=texture.device)
    with on(texture.device):
        write_cheap(texture.pixels[None], out, {name: number for number, name in enumerate(names)}, None, edge)
    return {**dict(zip(names, out[0], strict=True)), MASK: edge[0]}


def motion_plane(texture: TextureArray, before: torch.Tensor) -> torch.Tensor | None:
    """The colour distance to the frame before."""
    if not chosen("motion", texture.pixels, before):
        return None
    from arr_coc.texture.kernels.cheap import write_cheap

    out = torch.empty(1, 1, *texture.size, dtype=texture.dtype, device=texture.device)
    with on(texture.device):
        write_cheap(texture.pixels[None], out, {"motion": 0}, before[None])
    return out[0, 0]


def distance_plane(texture: TextureArray) -> torch.Tensor | None:
    """The distance to the nearest edge, exact."""
    edge = edge_planes(texture, MASK)
    if edge is None or not chosen("distance", edge):
        return None
    from arr_coc.texture.kernels.distance import scratch, write_distance

    out = torch.empty(1, *texture.size, dtype=texture.dtype, device=texture.device)
    with on(texture.device):
        write_distance(edge[None], *scratch((1, *texture.size), texture.device), out)
    return out[0]


def saliency_plane(texture: TextureArray) -> torch.Tensor | None:
    """Centre-surround contrast."""
    if not chosen("saliency", texture.pixels):
        return None
    out = torch.empty(1, *texture.size, dtype=texture.dtype, device=texture.device)
    with on(texture.device):
        _kept("saliency", texture.size, texture.device).write(texture.pixels[None], out)
    return out[0]


def segments(pixels: torch.Tensor) -> torch.Tensor | None:
    """Superpixels of an image `[3, H, W]`: connected ids int64 `[h, w]`."""
    if not chosen("superpixels", pixels):
        return None
    size = (int(pixels.shape[1]), int(pixels.shape[2]))
    with on(pixels.device):
        found, _ = _kept("superpixels", size, pixels.device)
        ids: torch.Tensor = found.write(pixels[None])
        return ids[0].long()


def region_planes(texture: TextureArray, name: str) -> torch.Tensor | None:
    """One of the channels of regions, where these are the texture's own superpixels."""
    if texture.segmenter != "slic" or not chosen("regions", texture.pixels):
        return None
    made: dict[str, torch.Tensor] = texture.once("region planes", lambda: _regions(texture))
    return made[name]


def _regions(texture: TextureArray) -> dict[str, torch.Tensor]:
    from arr_coc.texture.kernels.regions import NAMES

    ids = texture.once("segments", lambda: segments(texture.pixels))
    assert ids is not None
    regions = _kept("superpixels", texture.size, texture.device)[1]
    small = ids.to(torch.int32)[None]
    out = torch.empty(1, len(NAMES), *texture.size, dtype=texture.dtype, device=texture.device)
    with on(texture.device):
        regions.measure(small)
        regions.write(small, out, {name: number for number, name in enumerate(NAMES)})
    return dict(zip(NAMES, out[0], strict=True))


def cell_means(planes: Sequence[torch.Tensor], size: tuple[int, int], rules: Sequence[str]) -> torch.Tensor | None:
    """Planes on a grid of cells, each by its rule: `[C, h, w]`."""
    if not chosen("cells", *planes):
        return None
    from arr_coc.texture.kernels.cells import pool_cells

    with on(planes[0].device):
        return pool_cells(planes, size, rules)


def sampled(texture: TextureArray, channels: Sequence[Channel], xy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """All channels at points `[N, 2]`: `[N, C]`. For those who have asked `samples_by_kernel`."""
    from arr_coc.texture.kernels.sampling import sample

    names = tuple(one.name for one in channels)
    places = texture.once(f"places {names!r}", lambda: _places(texture, channels))
    with on(texture.device):
        return sample(places, xy, level)


def samples_by_kernel(texture: TextureArray, channels: Sequence[Channel], *given: object) -> bool:
    """Whether samples go to the kernel: not where gradients are wanted, nor for points in float64."""
    points = [one for one in given if isinstance(one, torch.Tensor)]
    if any(one.requires_grad or one.dtype == torch.float64 for one in points):
        return False
    if not chosen(
        "samples", texture.picture.pixels
    ):  # before any channel is made: torch makes only those levels it reads
        return False
    return chosen("samples", *(texture[one.name] for one in channels))


def _places(texture: TextureArray, channels: Sequence[Channel]) -> Places:
    """Every level of some channels; those that are not there yet are made together."""
    from arr_coc.texture.kernels.pyramid import make_levels
    from arr_coc.texture.kernels.sampling import Places

    pyramids = [texture.pyramid(one.name) for one in channels]
    missing = [one for one in pyramids if not one.constant and len(one.levels) < texture.levels]
    if missing:
        with on(texture.device):
            made = make_levels([one.level(0) for one in missing], [one.rule for one in missing])
        for number, one in enumerate(missing):
            one.fill([level[number] for level in made])
    for one in pyramids:
        if one.constant:
            value = one.level(0)[:1, :1]
            one.fill([value.expand(level_size(texture.size, number)) for number in range(1, texture.levels)])
    return Places(
        [[one.level(number) for one in pyramids] for number in range(texture.levels)], [one.rule for one in pyramids]
    )


def _kept(what: str, size: tuple[int, int], device: torch.device) -> Any:
    """Buffers for one image of a size, this thread's on this stream."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _made(what, size, device, threading.get_ident(), stream)


@lru_cache(maxsize=16)
def _made(what: str, size: tuple[int, int], device: torch.device, thread: int, stream: int) -> Any:
    if what == "saliency":
        from arr_coc.texture.kernels.centre_surround import CentreSurround

        return CentreSurround(1, size, device)
    from arr_coc.texture.kernels.regions import Regions
    from arr_coc.texture.kernels.segmenting import Segmenting

    found = Segmenting(1, size, device)
    return found, Regions(1, found.small, size, device)
