"""Gating: what of a frame may be carried over from earlier ones, window by window.

Carrying something along the flow is a guess, and the pixels tell whether it was a good one: the old brightness is carried
too, and compared with the new. On some clips the flow makes things worse than leaving everything where it was; such windows
are taken to stand still. Where neither explains the frame, or nobody saw what is there now, it is looked at anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from arr_coc.frames import flow as flows
from arr_coc.frames.flow import Flow

WINDOW = 16  # px of a window's side on the small frame
FLOOR = 0.012  # of the luma: a smaller difference is never seen
NOISE = 2.5  # times what windows usually differ by
NOISIEST = 0.03  # of the luma: more than this is no noise
LOST = 0.3  # confidence below which a pixel may have come from anywhere
OUTSIDE = 0.25  # share of a window that was beyond the frame's border
CALM = 1.0  # px of the small frame over which brightness is averaged first
LAMP = 0.03  # of the luma, on average: more than this from one frame to the next is a change of light
BETTER = 0.9  # of the error that standing still leaves: a flow that does not get below this has explained nothing


@dataclass(frozen=True, eq=False)
class Gate:
    """What came of carrying earlier brightness along: all `[rows, columns]`, by window."""

    error: torch.Tensor  # mean difference of luma that is left
    anew: torch.Tensor  # bool: to be looked at anew
    worse: torch.Tensor  # bool: the flow explained less than standing still, and was left out

    @property
    def reused(self) -> float:
        """The share of the frame that may be carried over."""
        return 1 - float(self.anew.float().mean())


def steadied(step: Flow, before: torch.Tensor, after: torch.Tensor) -> tuple[Flow, torch.Tensor]:
    """A step of the flow between two small lumas, left out in windows that it explains no better than standing still.

    The second value `[rows, columns]` says where it was worse by more than noise.
    """
    stays = pooled((before - after).abs())
    carried = pooled((flows.warp(before, step) - after).abs())
    useless = carried > BETTER * stays
    if bool(useless.any()):
        rows, columns = after.shape
        moves = F.interpolate((~useless)[None, None].float(), size=(int(rows), int(columns)))[0, 0]
        sure = torch.where(moves > 0, step.confidence, torch.ones_like(step.confidence))
        step = replace(step, vectors=step.vectors * moves, confidence=sure)
    return step, carried > stays + FLOOR / 2


def gate(old: torch.Tensor, now: torch.Tensor, moved: Flow, worse: torch.Tensor) -> Gate:
    """What may be carried over, from the luma `[h, w]` at the time it was worked out, the luma now, and the flow between."""
    error = pooled((flows.warp(old, moved) - now).abs())
    usual = min(float(error.median()), NOISIEST)
    lost = pooled(moved.confidence) < LOST
    outside = pooled((~flows.inside(moved.vectors)).float()) > OUTSIDE
    anew = (error > FLOOR + NOISE * usual) | outside | (lost & (error > FLOOR))
    return Gate(error, anew, worse)


def relit(old: torch.Tensor, now: torch.Tensor, alike: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
    """Earlier luma in the light of now, where that changed at a stroke: a lamp is no reason to look at everything anew.

    alike: of both the pixels that show the same, where the rest shows something else.
    """
    before, after = (old, now) if alike is None else alike
    darker, lighter = float(after.mean()) - float(before.mean()), float(after.std()) / max(float(before.std()), 1e-6)
    if abs(darker) < LAMP and abs(lighter - 1) < 4 * LAMP:
        return old
    return ((old - before.mean()) * lighter + after.mean()).clamp(0, 1)


def calmed(plane: torch.Tensor) -> torch.Tensor:
    """A small luma `[h, w]` without most of its noise, in which flow would find motion."""
    kernel = calming().to(plane.device)
    padded = F.pad(plane[None, None], (2, 2, 2, 2), mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, 5)), kernel.view(1, 1, 5, 1))[0, 0]


def calming() -> torch.Tensor:
    """The five taps of that blur."""
    kernel = torch.exp(-0.5 * (torch.arange(-2, 3) / CALM) ** 2)
    return kernel / kernel.sum()


def windows_of(size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of windows on a small frame (height, width)."""
    return max(1, -(-size[0] // WINDOW)), max(1, -(-size[1] // WINDOW))


def pooled(plane: torch.Tensor) -> torch.Tensor:
    """The mean of a plane `[h, w]` over each window."""
    size = windows_of((int(plane.shape[0]), int(plane.shape[1])))
    return F.adaptive_avg_pool2d(plane[None, None].float(), size)[0, 0]


def spread(windows: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Marked windows as a bool plane `[H, W]` that covers at least what they cover."""
    marked = F.adaptive_max_pool2d(windows[None, None].float(), size)[0, 0]  # from few to many, each cell that touches
    return marked > 0
