"""Optical flow: where each pixel of a frame was in the frame before, and how sure that is.

Notable:
- vectors point back in time, because that is what carrying something forward needs: `warp` reads the old map at the
  place where each pixel was;
- flow is worked out on small frames, in both directions: a pixel that does not come back to where it started has no
  confidence, and neither has one that was outside the frame;
- enlarged to the frame's own size, a vector belongs to the side of an edge that its pixel lies on (`enlarged`);
- OpenCV's DIS on the CPU, a pyramid of least squares in torch on other devices (`pyramidal.py`), which runs on the CPU too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError
from arr_coc.frames import pyramidal
from arr_coc.texture.kernels.dispatch import chosen, on

Method: TypeAlias = Literal["auto", "dis", "pyramidal"]

SIDE = 320  # px of the longer side that flow is worked out at
LUMA = (0.299, 0.587, 0.114)
STRAY, STRAY_SHARE = 0.5, 0.1  # px, and of the vector's length: a return that misses by this much is half sure
LEAST_SIDE = 16  # px; DIS looks at patches of 8
JUMP = 0.5  # px between neighbouring vectors from which edges decide which one a pixel follows
SAME_SIDE = 0.06  # of the luma: how alike a pixel and a small frame's pixel on the same side of an edge are


@dataclass(frozen=True, eq=False)
class Flow:
    """Where pixels were: a pixel at p was at p + `vectors`[:, p] in the frame before, in pixels of this size."""

    vectors: torch.Tensor  # float32 [2, h, w], across and down
    confidence: torch.Tensor  # float32 [h, w], 0 to 1

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return int(self.vectors.shape[1]), int(self.vectors.shape[2])

    @cached_property
    def still(self) -> bool:
        """Whether nothing moves at all."""
        return not bool(self.vectors.any())

    def at(self, size: tuple[int, int]) -> Flow:
        """The same flow in pixels of another size (height, width), smoothly in between."""
        if size == self.size:
            return self
        grown = _scaled(self.vectors, size)
        return Flow(grown, _resized(self.confidence[None], size)[0])


def still(size: tuple[int, int], device: torch.device | str = "cpu") -> Flow:
    """The flow of a frame in which nothing moves."""
    return Flow(torch.zeros(2, *size, device=device), torch.ones(size, device=device))


def luma(frame: torch.Tensor) -> torch.Tensor:
    """A frame `[3, H, W]` or `[H, W]` in [0, 1] as brightness `[H, W]`."""
    if frame.ndim == 2:
        return frame
    return torch.tensordot(frame.new_tensor(LUMA), frame, dims=1)


def small(frame: torch.Tensor, side: int = SIDE) -> torch.Tensor:
    """A frame's luma `[h, w]` with the longer side at most `side`, each pixel an average; never below `LEAST_SIDE`."""
    height, width = frame.shape[-2:]
    share = min(1.0, side / max(height, width))
    size = tuple(max(LEAST_SIDE, round(length * share)) for length in (height, width))
    return _resized(luma(frame.float())[None], (size[0], size[1]))[0]


def flow(before: torch.Tensor, after: torch.Tensor, *, side: int = SIDE, method: Method = "auto") -> Flow:
    """The flow from `before` to `after`, frames `[3, H, W]` or `[H, W]` in [0, 1] of one size, at a reduced size.

    method: "dis" (CPU), "pyramidal" (any device), or "auto": dis on the CPU, pyramidal elsewhere.
    """
    if before.shape[-2:] != after.shape[-2:]:
        was, now = list(before.shape[-2:]), list(after.shape[-2:])
        raise ArrCocError(f"expected two frames of one size for optical flow, got {was} and {now}")
    return between(small(before, side), small(after, side), method)


def between(before: torch.Tensor, after: torch.Tensor, method: Method = "auto") -> Flow:
    """The flow between two small lumas `[h, w]` in [0, 1], at their own size."""
    if method not in ("auto", "dis", "pyramidal"):
        raise ArrCocError(f"expected the method 'auto', 'dis' or 'pyramidal', got {method!r}")
    if method == "dis" and before.device.type != "cpu":
        raise ArrCocError(f"OpenCV's flow runs on the CPU, got frames on {before.device}: use method='pyramidal'")
    if bool(torch.equal(before, after)):
        return still((int(after.shape[0]), int(after.shape[1])), after.device)
    by_dis = method == "dis" or (method == "auto" and before.device.type == "cpu")
    find = _dis if by_dis else pyramidal.vectors
    back, forth = find(after, before), find(before, after)
    return Flow(back, returning(back, forth))


def returning(back: torch.Tensor, forth: torch.Tensor) -> torch.Tensor:
    """How near each pixel comes to itself when it goes `back` `[2, h, w]` and then `forth`: `[h, w]` from 0 to 1."""
    there = Flow(back, back[0])
    missed = length(back + warp(forth, there))
    allowed = STRAY + STRAY_SHARE * length(back)
    return inside(back).to(back) / (1 + (missed / allowed) ** 2)


def length(vectors: torch.Tensor) -> torch.Tensor:
    """How long vectors `[2, h, w]` are: `[h, w]`. (A norm over the first axis takes several times as long.)"""
    return torch.hypot(vectors[0], vectors[1])


def inside(vectors: torch.Tensor) -> torch.Tensor:
    """Which pixels were inside the frame before: bool `[h, w]`."""
    height, width = vectors.shape[1:]
    x = torch.arange(width, device=vectors.device) + vectors[0]
    y = torch.arange(height, device=vectors.device)[:, None] + vectors[1]
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


def warp(values: torch.Tensor, flow: Flow, *, nearest: bool = False) -> torch.Tensor:
    """Maps `[..., H, W]` of the frame before, carried to this one; the flow is brought to their size.

    Linear between pixels; `nearest` for ids, which cannot be averaged. Beyond the border the border is repeated.
    """
    if values.ndim < 2:
        raise ArrCocError(f"expected maps [..., H, W] to warp, got {list(values.shape)}")
    height, width = int(values.shape[-2]), int(values.shape[-1])
    if flow.still:
        return values
    vectors = _scaled(flow.vectors, (height, width))
    planes = values.reshape(-1, height, width)
    if planes.is_floating_point() and chosen("warp", planes, vectors):
        from arr_coc.texture.kernels.warping import warp_planes

        with on(planes.device):
            return warp_planes(planes, vectors, nearest=nearest).view(values.shape)
    warped = _remap(planes, vectors, nearest) if planes.device.type == "cpu" else _sample(planes, vectors, nearest)
    return warped.view(values.shape)


def then(first: Flow, second: Flow) -> Flow:
    """Two steps as one: where pixels were before both. Vectors are read smoothly, so no map is blurred twice."""
    carried = warp(torch.cat([first.vectors, first.confidence[None]]), second)
    return Flow(second.vectors + carried[:2], second.confidence * carried[2])


def enlarged(flow: Flow, guide: torch.Tensor) -> Flow:
    """The flow at the size of `guide`, a luma `[H, W]`: near a jump each pixel follows the neighbour that looks like it."""
    size = (int(guide.shape[0]), int(guide.shape[1]))
    if size == flow.size or flow.still:
        return flow.at(size)
    smooth = flow.at(size)
    up, down = (F.pad(flow.vectors, pad, mode="replicate") for pad in ((1, 0, 1, 0), (0, 1, 0, 1)))
    jumps = (up[:, 1:, 1:] - up[:, :-1, :-1]).abs().amax(0) + (down[:, 1:, 1:] - down[:, :-1, :-1]).abs().amax(0) > JUMP
    if not bool(jumps.any()):
        return smooth
    near = F.max_pool2d(jumps[None, None].float(), 3, 1, 1)[0, 0] > 0
    rows, columns = (_resized(near[None].float(), size)[0] > 0).nonzero(as_tuple=True)
    vectors = smooth.vectors.clone()
    vectors[:, rows, columns] = _by_likeness(flow, guide, rows, columns)
    return Flow(vectors, smooth.confidence)


def _by_likeness(flow: Flow, guide: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, P]` for some pixels: the four around each, weighed by nearness and by likeness of brightness."""
    (height, width), (h, w) = guide.shape, flow.size
    known = torch.cat([flow.vectors.flatten(1), _resized(guide[None], flow.size).flatten(1) / SAME_SIDE])  # [3, h w]
    here = guide.flatten()[rows * width + columns] / SAME_SIDE
    up_down = [(edge[rows], close[rows]) for edge, close in _around(height, h, guide.device)]
    left_right = [(edge[columns], close[columns]) for edge, close in _around(width, w, guide.device)]
    total, weights = torch.zeros(2, len(rows), device=guide.device), torch.full_like(here, 1e-12)
    for i, near in up_down:
        for j, beside in left_right:
            across, down, bright = known.index_select(1, i * w + j)
            close = near * beside
            weight = close * (torch.exp(-((bright - here) ** 2)) + 1e-6)  # where nothing is alike, nearness alone
            total[0].addcmul_(weight, across)
            total[1].addcmul_(weight, down)
            weights += weight
    return total / weights * total.new_tensor([[width / w], [height / h]])


def _around(pixels: int, few: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each of so many pixels the two of `few` around it, before and after: their numbers, and how near they are."""
    at = (torch.arange(pixels, device=device) + 0.5) * few / pixels - 0.5
    first = at.floor().long()
    return [((first + one).clamp(0, few - 1), 1 - (at - (first + one)).abs()) for one in (0, 1)]


def _dis(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, h, w]` from each pixel of `start` to the same point in `end`."""
    first, second = ((frame * 255).round().clamp(0, 255).byte().numpy() for frame in (start, end))
    found = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST).calc(first, second, None)  # type: ignore[call-overload]
    return torch.from_numpy(np.ascontiguousarray(found.transpose(2, 0, 1)))


def _remap(planes: torch.Tensor, vectors: torch.Tensor, nearest: bool) -> torch.Tensor:
    height, width = planes.shape[1:]
    x = (torch.arange(width) + vectors[0]).numpy()
    y = (torch.arange(height)[:, None] + vectors[1]).numpy()
    how = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    out = torch.empty(planes.shape, dtype=torch.float32)
    for plane, place in zip(planes.float().contiguous().numpy(), out.numpy(), strict=True):
        cv2.remap(plane, x, y, how, dst=place, borderMode=cv2.BORDER_REPLICATE)
    return out.to(planes.dtype)


def _sample(planes: torch.Tensor, vectors: torch.Tensor, nearest: bool) -> torch.Tensor:
    height, width = planes.shape[1:]
    x = torch.arange(width, device=planes.device) + vectors[0]
    y = torch.arange(height, device=planes.device)[:, None] + vectors[1]
    at = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)[None]
    mode = "nearest" if nearest else "bilinear"
    read = F.grid_sample(planes[None].float(), at, mode=mode, padding_mode="border", align_corners=False)
    return read[0].to(planes.dtype)


def _scaled(vectors: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = vectors.shape[1:]
    if (int(height), int(width)) == size:
        return vectors
    return _resized(vectors, size) * vectors.new_tensor([size[1] / width, size[0] / height])[:, None, None]


def _resized(planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Planes `[C, h, w]` at another size: averaged where they shrink, linear where they grow."""
    if tuple(planes.shape[1:]) == size:
        return planes
    if planes.device.type == "cpu":
        shrinks = size[0] <= planes.shape[1] and size[1] <= planes.shape[2]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        made = [cv2.resize(plane, (size[1], size[0]), interpolation=how) for plane in planes.contiguous().numpy()]
        return torch.from_numpy(np.stack(made))
    return F.interpolate(planes[None], size=size, mode="bilinear", antialias=True, align_corners=False)[0]
