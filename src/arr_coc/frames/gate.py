"""The gate: which windows of a frame may reuse results of earlier frames.

Moving a result along the flow is a guess, and the pixels check it: the old luma is warped too and compared with the new.
Where the flow explains a window no better than zero motion, `reject_flow` sets it to zero. Windows that neither explains, or
that were outside the old frame, are marked for recomputation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from arr_coc.frames.flow import Flow, inside_frame, warp

WINDOW = 16  # px of a window's side on the small frame
FLOOR = 0.012  # of the luma: smaller differences are ignored
NOISE = 2.5  # times the median difference of the windows
MAX_NOISE = 0.03  # of the luma: a median above this is not noise
LOW_CONFIDENCE = 0.3  # flow confidence below which a pixel counts as lost
OUTSIDE = 0.25  # share of a window that was beyond the frame's border
DENOISE_SIGMA = 1.0  # px of the small frame
BRIGHTNESS_STEP = 0.03  # of the luma, on average: more than this between two frames is a change of light
BETTER = 0.9  # of the error of zero motion: a flow that does not get below this explains nothing


def reject_flow(step: Flow, before: torch.Tensor, after: torch.Tensor) -> tuple[Flow, torch.Tensor]:
    """The flow between two small lumas, set to zero in windows that it explains no better than zero motion.

    The second value `[rows, columns]` marks where it was worse by more than noise.
    """
    unmoved = window_mean((before - after).abs())
    warped = window_mean((warp(before, step) - after).abs())
    useless = warped > BETTER * unmoved
    if bool(useless.any()):
        rows, columns = after.shape
        moves = F.interpolate((~useless)[None, None].float(), size=(int(rows), int(columns)))[0, 0]
        confidence = torch.where(moves > 0, step.confidence, torch.ones_like(step.confidence))
        step = Flow(step.vectors * moves, confidence)
    return step, warped > unmoved + FLOOR / 2


def stale_windows(old: torch.Tensor, now: torch.Tensor, moved: Flow) -> torch.Tensor:
    """Windows bool `[rows, columns]` whose results cannot be reused.

    old: the luma `[h, w]` of the frame with the results. now: the current luma. moved: the flow between them.
    """
    error = window_mean((warp(old, moved) - now).abs())
    lost = window_mean(moved.confidence) < LOW_CONFIDENCE
    outside = window_mean((~inside_frame(moved.vectors)).float()) > OUTSIDE
    return (error > noise_threshold(error)) | outside | (lost & (error > FLOOR))


def noise_threshold(error: torch.Tensor) -> float:
    """The luma difference of a window above which it is more than this frame's noise."""
    return FLOOR + NOISE * min(float(error.median()), MAX_NOISE)


def match_brightness(
    old: torch.Tensor, now: torch.Tensor, common: tuple[torch.Tensor, torch.Tensor] | None = None
) -> torch.Tensor:
    """The old luma with the mean and contrast of `now`, if those changed abruptly: a lamp is no reason to recompute.

    common: the pixels of both that show the same content, where the rest differs.
    """
    before, after = (old, now) if common is None else common
    offset, contrast = float(after.mean()) - float(before.mean()), float(after.std()) / max(float(before.std()), 1e-6)
    if abs(offset) < BRIGHTNESS_STEP and abs(contrast - 1) < 4 * BRIGHTNESS_STEP:
        return old
    return ((old - before.mean()) * contrast + after.mean()).clamp(0, 1)


def denoise(plane: torch.Tensor) -> torch.Tensor:
    """A small luma `[h, w]`, blurred: flow would take noise for motion."""
    kernel = denoise_kernel().to(plane.device)
    padded = F.pad(plane[None, None], (2, 2, 2, 2), mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, 5)), kernel.view(1, 1, 5, 1))[0, 0]


def denoise_kernel() -> torch.Tensor:
    """The Gaussian taps `[5]` of `denoise`."""
    kernel = torch.exp(-0.5 * (torch.arange(-2, 3) / DENOISE_SIGMA) ** 2)
    return kernel / kernel.sum()


def window_mean(plane: torch.Tensor) -> torch.Tensor:
    """The mean of a plane `[h, w]` over each window."""
    height, width = plane.shape
    size = max(1, -(-int(height) // WINDOW)), max(1, -(-int(width) // WINDOW))
    return F.adaptive_avg_pool2d(plane[None, None].float(), size)[0, 0]


def expand_windows(windows: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Marked windows as a bool plane `[H, W]`; every pixel that touches a marked window is set."""
    return F.adaptive_max_pool2d(windows[None, None].float(), size)[0, 0] > 0
