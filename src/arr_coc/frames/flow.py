"""Optical flow: where each pixel of a frame was in the frame before, with a confidence.

Notable:
- vectors point back in time, so `warp` can read the old map at the place where each pixel was;
- flow is computed on small frames, in both directions. Confidence is forward-backward consistency: it is low for a pixel that
  does not return to its start, and 0 for one that came from outside the frame;
- `upsample` is edge-aware: near a jump in the flow, a pixel takes the vector of the side of the edge that it lies on;
- two methods: OpenCV's DIS on the CPU, pyramidal Lucas-Kanade in torch on any device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import cv2
import numpy as np
import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError
from arr_coc.texture.kernels.dispatch import device_guard, use_kernel

Method: TypeAlias = Literal["auto", "dis", "pyramidal"]

SIDE = 320  # px of the longer side that flow is computed at
MIN_SIDE = 16  # px; DIS uses patches of 8
LUMA = (0.299, 0.587, 0.114)
# px, and share of the vector's length: a return that misses by this much has confidence 0.5
MISS, MISS_SHARE = 0.5, 0.1
JUMP = 0.5  # px between neighbouring vectors from which upsampling follows edges
EDGE_SIGMA = 0.06  # of the luma: how similar pixels on the same side of an edge are

LK_ITERATIONS = 5  # per pyramid level
LK_WINDOW = 9  # px
LK_MIN_SIDE = 12  # px of the shorter side of the coarsest level
LK_MAX_STEP = 1.0  # px that one iteration may change a vector by
LK_DAMPING = 1e-4  # added to the diagonal of the normal equations: noise in 8-bit frames, squared
LK_SMOOTH = 5  # px over which vectors are averaged after each level, weighted by structure


@dataclass(frozen=True, eq=False)
class Flow:
    """Backward flow: a pixel at p was at p + `vectors`[:, p] in the frame before, in pixels of this size."""

    vectors: torch.Tensor  # float32 [2, h, w], x and y
    confidence: torch.Tensor  # float32 [h, w], 0 to 1

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return int(self.vectors.shape[1]), int(self.vectors.shape[2])

    @cached_property
    def is_zero(self) -> bool:
        """Whether nothing moves at all."""
        return not bool(self.vectors.any())

    def resize(self, size: tuple[int, int]) -> Flow:
        """The same flow in pixels of another size (height, width), interpolated linearly."""
        if size == self.size:
            return self
        return Flow(_scale_vectors(self.vectors, size), _resize(self.confidence[None], size)[0])

    def cpu(self) -> Flow:
        return Flow(self.vectors.cpu(), self.confidence.cpu())


def zero_flow(size: tuple[int, int], device: torch.device | str = "cpu") -> Flow:
    """The flow of a frame in which nothing moves."""
    return Flow(torch.zeros(2, *size, device=device), torch.ones(size, device=device))


def luma(frame: torch.Tensor) -> torch.Tensor:
    """A frame `[3, H, W]` or `[H, W]` in [0, 1] as brightness `[H, W]`."""
    if frame.ndim == 2:
        return frame
    return torch.tensordot(frame.new_tensor(LUMA), frame, dims=1)


def small_luma(frame: torch.Tensor, side: int = SIDE) -> torch.Tensor:
    """A frame's luma `[h, w]`, area-averaged to a longer side of at most `side`; no side below `MIN_SIDE`."""
    height, width = frame.shape[-2:]
    share = min(1.0, side / max(height, width))
    size = max(MIN_SIDE, round(height * share)), max(MIN_SIDE, round(width * share))
    return _resize(luma(frame.float())[None], size)[0]


def optical_flow(before: torch.Tensor, after: torch.Tensor, *, side: int = SIDE, method: Method = "auto") -> Flow:
    """The flow from `before` to `after`, frames `[3, H, W]` or `[H, W]` in [0, 1] of one size, at a reduced size.

    method: "dis" (CPU), "pyramidal" (any device), or "auto": dis on the CPU, pyramidal elsewhere.
    """
    if before.shape[-2:] != after.shape[-2:]:
        was, now = list(before.shape[-2:]), list(after.shape[-2:])
        raise ArrCocError(f"expected two frames of one size for optical flow, got {was} and {now}")
    return luma_flow(small_luma(before, side), small_luma(after, side), method)


def luma_flow(before: torch.Tensor, after: torch.Tensor, method: Method = "auto") -> Flow:
    """The flow between two small lumas `[h, w]` in [0, 1], at their own size."""
    if method not in get_args(Method):
        raise ArrCocError(f"expected the method 'auto', 'dis' or 'pyramidal', got {method!r}")
    if method == "dis" and before.device.type != "cpu":
        raise ArrCocError(f"expected frames on the CPU for OpenCV's flow, got {before.device}: use method='pyramidal'")
    if bool(torch.equal(before, after)):
        return zero_flow((int(after.shape[0]), int(after.shape[1])), after.device)
    use_dis = method == "dis" or (method == "auto" and before.device.type == "cpu")
    find = _dis if use_dis else lucas_kanade
    back, forth = find(after, before), find(before, after)
    return Flow(back, consistency(back, forth))


def consistency(back: torch.Tensor, forth: torch.Tensor) -> torch.Tensor:
    """Forward-backward consistency `[h, w]`, 0 to 1: how near each pixel returns to itself along `back` `[2, h, w]`, then `forth`."""
    missed = magnitude(back + warp(forth, Flow(back, back[0])))
    allowed = MISS + MISS_SHARE * magnitude(back)
    return inside_frame(back).to(back) / (1 + (missed / allowed) ** 2)


def magnitude(vectors: torch.Tensor) -> torch.Tensor:
    """The length of vectors `[2, h, w]`: `[h, w]`. (A norm over the first axis is several times slower.)"""
    return torch.hypot(vectors[0], vectors[1])


def inside_frame(vectors: torch.Tensor) -> torch.Tensor:
    """Which pixels were inside the frame before: bool `[h, w]`."""
    height, width = vectors.shape[1:]
    x, y = _targets(vectors)
    return (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)


def warp(values: torch.Tensor, flow: Flow, *, nearest: bool = False) -> torch.Tensor:
    """Maps `[..., H, W]` of the frame before, moved along the flow to this frame; the flow is scaled to their size.

    Bilinear; `nearest` for ids, which cannot be averaged. The border is replicated.
    """
    if values.ndim < 2:
        raise ArrCocError(f"expected maps [..., H, W] to warp, got {list(values.shape)}")
    height, width = int(values.shape[-2]), int(values.shape[-1])
    if flow.is_zero:
        return values
    vectors = _scale_vectors(flow.vectors, (height, width))
    planes = values.reshape(-1, height, width)
    if planes.is_floating_point() and use_kernel("warp", planes, vectors):
        from arr_coc.texture.kernels.sampling import warp_planes

        with device_guard(planes.device):
            return warp_planes(planes, vectors, nearest=nearest).view(values.shape)
    sample = _sample_cv2 if planes.device.type == "cpu" else _sample_torch
    return sample(planes, vectors, nearest).view(values.shape)


def compose(first: Flow, second: Flow) -> Flow:
    """Two steps as one: where pixels were before both. Adding vectors avoids resampling a map twice."""
    moved = warp(torch.cat([first.vectors, first.confidence[None]]), second)
    return Flow(second.vectors + moved[:2], second.confidence * moved[2])


def upsample(flow: Flow, guide: torch.Tensor) -> Flow:
    """The flow at the size of `guide`, a luma `[H, W]`. Near a jump each pixel takes the vector of similar neighbours."""
    size = (int(guide.shape[0]), int(guide.shape[1]))
    smooth = flow.resize(size)
    if size == flow.size or flow.is_zero:
        return smooth
    diagonal = F.pad(flow.vectors, (1, 1, 1, 1), mode="replicate")  # each vector less its upper left neighbour
    steps = (diagonal[:, 1:, 1:] - diagonal[:, :-1, :-1]).abs().amax(0)
    jumps = steps[:-1, :-1] + steps[1:, 1:] > JUMP
    if not bool(jumps.any()):
        return smooth
    near = F.max_pool2d(jumps[None, None].float(), 3, 1, 1)[0, 0] > 0
    rows, columns = (_resize(near[None].float(), size)[0] > 0).nonzero(as_tuple=True)
    vectors = smooth.vectors.clone()
    vectors[:, rows, columns] = _bilateral(flow, guide, rows, columns)
    return Flow(vectors, smooth.confidence)


def _bilateral(flow: Flow, guide: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, P]` of P pixels: the four small-frame neighbours, weighted by distance and by similar brightness."""
    (height, width), (h, w) = guide.shape, flow.size
    known = torch.cat([flow.vectors.flatten(1), _resize(guide[None], flow.size).flatten(1) / EDGE_SIGMA])  # [3, h w]
    here = guide.flatten()[rows * width + columns] / EDGE_SIGMA
    vertical = [(index[rows], weight[rows]) for index, weight in _linear_taps(height, h, guide.device)]
    horizontal = [(index[columns], weight[columns]) for index, weight in _linear_taps(width, w, guide.device)]
    total, weights = torch.zeros(2, len(rows), device=guide.device), torch.full_like(here, 1e-12)
    for i, weight_y in vertical:
        for j, weight_x in horizontal:
            x, y, bright = known.index_select(1, i * w + j)
            close = weight_y * weight_x
            weight = close * (torch.exp(-((bright - here) ** 2)) + 1e-6)  # where nothing is similar, distance alone
            total[0].addcmul_(weight, x)
            total[1].addcmul_(weight, y)
            weights += weight
    return total / weights * total.new_tensor([[width / w], [height / h]])


def _linear_taps(pixels: int, cells: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The two taps of linear interpolation from `cells` to `pixels`: for each pixel the cell's index and its weight."""
    at = (torch.arange(pixels, device=device) + 0.5) * cells / pixels - 0.5
    first = at.floor().long()
    return [((first + one).clamp(0, cells - 1), 1 - (at - (first + one)).abs()) for one in (0, 1)]


def _dis(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, h, w]` from each pixel of `start` to the same point in `end`, by OpenCV's DIS."""
    first, second = ((frame * 255).round().clamp(0, 255).byte().numpy() for frame in (start, end))
    found = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST).calc(first, second, None)  # type: ignore[call-overload]
    return torch.from_numpy(np.ascontiguousarray(found.transpose(2, 0, 1)))


def lucas_kanade(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Vectors `[2, h, w]` from each pixel of `start` `[h, w]` to the same point in `end`, coarse to fine, on any device.

    Each iteration solves the normal equations of a window around every pixel. A window without structure gives a step of 0, so
    the vector of the coarser level stays.
    """
    first, second = [start.float()[None, None]], [end.float()[None, None]]
    while min(first[-1].shape[2:]) >= 2 * LK_MIN_SIDE:
        for pyramid in (first, second):
            pyramid.append(F.avg_pool2d(_blur(pyramid[-1], 3), 2, ceil_mode=True))
    found = first[-1].new_zeros(1, 2, *first[-1].shape[2:])
    for here, there in zip(reversed(first), reversed(second), strict=True):
        size = (int(here.shape[2]), int(here.shape[3]))
        if tuple(found.shape[2:]) != size:
            scale = found.new_tensor([size[1] / found.shape[3], size[0] / found.shape[2]]).view(1, 2, 1, 1)
            found = F.interpolate(found, size=size, mode="bilinear", align_corners=False) * scale
        found = _refine(found, here, there)
    return found[0]


def _refine(found: torch.Tensor, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Vectors `[1, 2, h, w]` after the iterations of one level; `here` and `there` are `[1, 1, h, w]`."""
    padded = F.pad(here, (1, 1, 1, 1), mode="replicate")
    grad_x = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    grad_y = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    xx, xy, yy = (_blur(product, LK_WINDOW) for product in (grad_x * grad_x, grad_x * grad_y, grad_y * grad_y))
    determinant = (xx + LK_DAMPING) * (yy + LK_DAMPING) - xy * xy
    for _ in range(LK_ITERATIONS):
        change = _sample_torch(there[0], found[0], False)[None] - here
        x, y = _blur(change * grad_x, LK_WINDOW), _blur(change * grad_y, LK_WINDOW)
        step = torch.cat([(yy + LK_DAMPING) * x - xy * y, (xx + LK_DAMPING) * y - xy * x], dim=1) / determinant
        found = found - step.clamp(-LK_MAX_STEP, LK_MAX_STEP)
    structure = (xx + yy) / 2 + 1e-9
    return _blur(found * structure, LK_SMOOTH) / _blur(structure, LK_SMOOTH)


def _blur(planes: torch.Tensor, width: int) -> torch.Tensor:
    """Planes `[1, C, h, w]` box-filtered twice, which gives a triangular window; the border is replicated."""
    for _ in range(2):
        planes = F.avg_pool2d(F.pad(planes, (width // 2,) * 4, mode="replicate"), width, 1)
    return planes


def _targets(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y `[h, w]` of the points that vectors `[2, h, w]` point to."""
    height, width = vectors.shape[1:]
    x = torch.arange(width, device=vectors.device) + vectors[0]
    return x, torch.arange(height, device=vectors.device)[:, None] + vectors[1]


def _sample_cv2(planes: torch.Tensor, vectors: torch.Tensor, nearest: bool) -> torch.Tensor:
    x, y = (target.numpy() for target in _targets(vectors))
    mode = cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR
    out = torch.empty(planes.shape, dtype=torch.float32)
    for plane, place in zip(planes.float().contiguous().numpy(), out.numpy(), strict=True):
        cv2.remap(plane, x, y, mode, dst=place, borderMode=cv2.BORDER_REPLICATE)
    return out.to(planes.dtype)


def _sample_torch(planes: torch.Tensor, vectors: torch.Tensor, nearest: bool) -> torch.Tensor:
    height, width = planes.shape[1:]
    x, y = _targets(vectors)
    at = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)[None]
    mode = "nearest" if nearest else "bilinear"
    read = F.grid_sample(planes[None].float(), at, mode=mode, padding_mode="border", align_corners=False)
    return read[0].to(planes.dtype)


def _scale_vectors(vectors: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    height, width = vectors.shape[1:]
    if (int(height), int(width)) == size:
        return vectors
    return _resize(vectors, size) * vectors.new_tensor([size[1] / width, size[0] / height])[:, None, None]


def _resize(planes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Planes `[C, h, w]` at another size: area-averaged where they shrink, linear where they grow."""
    if tuple(planes.shape[1:]) == size:
        return planes
    if planes.device.type == "cpu":
        shrinks = size[0] <= planes.shape[1] and size[1] <= planes.shape[2]
        mode = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        resized = [cv2.resize(plane, (size[1], size[0]), interpolation=mode) for plane in planes.contiguous().numpy()]
        return torch.from_numpy(np.stack(resized))
    return F.interpolate(planes[None], size=size, mode="bilinear", antialias=True, align_corners=False)[0]
