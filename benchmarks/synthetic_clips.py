"""Synthetic clips with ground truth: the flow of each pixel, the box of the answer, and every cut.

A camera shows a part of a still picture and pans, zooms or shakes; a ball flies across; lamps flash. The camera positions
give the exact flow and the exact boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from arr_coc.draw import samples
from arr_coc.errors import ArrCocError

Box = tuple[float, float, float, float]

SIZE = (360, 640)  # height, width of a frame
MIN_VISIBLE = 0.6  # share of a box inside the frame from which it counts as visible
BALL = 46  # px across


@dataclass(frozen=True)
class Camera:
    """What a camera shows of a picture: the point at the frame's centre, and frame pixels per picture pixel."""

    x: float
    y: float
    scale: float = 1.0

    def matrix(self, size: tuple[int, int]) -> np.ndarray:
        """From the frame's pixels to the picture's: float64 `[2, 3]`."""
        height, width = size
        s = 1 / self.scale
        return np.array([[s, 0, self.x - s * (width - 1) / 2], [0, s, self.y - s * (height - 1) / 2]])


@dataclass(frozen=True, eq=False)
class SyntheticClip:
    """Frames uint8 `[H, W, 3]` with their ground truth."""

    name: str
    question: str
    frames: list[np.ndarray]
    evidence: list[Box | None]  # by frame, in its pixels; None: not visible
    flows: list[torch.Tensor | None]  # by frame, [2, H, W] as in `flow.Flow`; None: first frame or cut
    cuts: tuple[int, ...] = ()  # the first frames of new scenes

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, eq=False)
class Still:
    """A picture, a question about it, and the box of the answer."""

    pixels: np.ndarray
    question: str
    box: Box


def page() -> Still:
    """The bundled receipt, and its total."""
    return Still(np.array(samples.receipt()), "What is the total amount?", (40, 722, 522, 782))


def street() -> Still:
    """The bundled street scene, and its van."""
    return Still(np.array(samples.scene()), "Where is the van?", (470, 392, 730, 518))


def film_still(name: str, still: Still, cameras: list[Camera], size: tuple[int, int] = SIZE) -> SyntheticClip:
    """A clip of a picture, one camera position for each frame."""
    frames: list[np.ndarray] = []
    boxes: list[Box | None] = []
    flows: list[torch.Tensor | None] = []
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    before: np.ndarray | None = None
    for camera in cameras:
        matrix = camera.matrix(size)
        frames.append(cv2.warpAffine(still.pixels, matrix, size[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE))
        boxes.append(_visible_box(still.box, camera, size))
        flows.append(None if before is None else _true_flow(before, matrix, size))
        before = matrix
    return SyntheticClip(name, still.question, frames, boxes, flows)


def pan(frames: int = 60, step: float = 6.0) -> SyntheticClip:
    """Down a receipt that fills the frame's width, until its total is at the centre."""
    still = page()
    scale = SIZE[1] / still.pixels.shape[1]
    return film_still("pan", still, [Camera(280, 760 - step * (frames - 1 - n), scale) for n in range(frames)])


def static(frames: int = 60, seed: int = 0, noise: float = 4.0) -> SyntheticClip:
    """No motion; only the sensor noise differs."""
    return add_noise(film_still("static", street(), [Camera(480, 370)] * frames), noise, seed)


def noise(frames: int = 60, seed: int = 0) -> SyntheticClip:
    """A slow drift in poor light."""
    clip = film_still("noise", street(), [Camera(440 + 0.5 * n, 370) for n in range(frames)])
    return add_noise(clip, 14.0, seed)


def zoom(frames: int = 60) -> SyntheticClip:
    cameras = [Camera(520 + 0.6 * n, 380 + 0.5 * n, 1.0 + 0.012 * n) for n in range(frames)]
    return film_still("zoom", street(), cameras)


def shake(frames: int = 60, seed: int = 0) -> SyntheticClip:
    """A hand-held camera that shakes by a few pixels."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.normal(0, 2.0, (frames, 2)), axis=0)
    at -= cv2.GaussianBlur(at, (1, 31), 0)
    return film_still("shake", street(), [Camera(480 + 1.5 * x, 380 + 1.5 * y) for x, y in at])


def moving_object(frames: int = 60) -> SyntheticClip:
    """A ball flies across the street in front of a fixed camera; the question is about the ball."""
    still = Still(street().pixels, "Where is the ball?", (0, 0, 0, 0))
    clip = film_still("object", still, [Camera(480, 370)] * frames)
    sprite, mask = _ball(BALL)
    places = [(20 + 9 * n, 40 + round(4 * n + 40 * np.sin(n / 9))) for n in range(frames)]
    boxes: list[Box | None] = []
    for number, (x, y) in enumerate(places):
        boxes.append(_paste(clip.frames[number], sprite, mask, x, y))
        if number and (flow := clip.flows[number]) is not None and (box := boxes[number]) is not None:
            left, top, right, bottom = (int(side) for side in box)
            inside = torch.from_numpy(mask[top - y : bottom - y, left - x : right - x] > 0.5)
            moved = torch.tensor([places[number - 1][0] - x, places[number - 1][1] - y]).float()
            flow[:, top:bottom, left:right][:, inside] = moved[:, None]
    return replace(clip, evidence=boxes)


def cuts(frames: int = 60) -> SyntheticClip:
    """Four scenes: the street, the page, another corner of the street, the foot of the page."""
    each = frames // 4
    parts = [
        film_still("", street(), [Camera(420 + 2 * n, 370) for n in range(each)]),
        film_still("", page(), [Camera(280, 300 + 3 * n, 1.1) for n in range(each)]),
        film_still("", street(), [Camera(650, 300 + n, 1.6) for n in range(each)]),
        film_still("", page(), [Camera(280, 900 + 2 * n, 1.1) for n in range(frames - 3 * each)]),
    ]
    return join("cut", parts)


def flash(frames: int = 60) -> SyntheticClip:
    """Flashes while the camera pans: some frames are brighter or darker, one is white."""
    clip = film_still("flash", street(), [Camera(400 + 2 * n, 370) for n in range(frames)])
    for number, gain in ((frames // 6, 1.7), (frames // 3, 2.4), (frames // 2, 12.0), (5 * frames // 6, 0.5)):
        bright = clip.frames[number].astype(np.float32) * gain + 40 * (gain > 1)
        clip.frames[number] = np.clip(bright, 0, 255).astype(np.uint8)
    return clip


def fade(frames: int = 60) -> SyntheticClip:
    """The street fades to black, and the page fades in."""
    half = frames // 2
    parts = [
        film_still("", street(), [Camera(420 + n, 370) for n in range(half)]),
        film_still("", page(), [Camera(280, 300 + 2 * n, 1.1) for n in range(frames - half)]),
    ]
    clip = join("fade", parts)
    for number in range(frames):
        light = min(1.0, abs(number - half) / 10)
        clip.frames[number] = (clip.frames[number] * light).astype(np.uint8)
    return clip


def join(name: str, parts: list[SyntheticClip]) -> SyntheticClip:
    """Clips one after another, with cuts between them; the question is the first one's."""
    starts = np.cumsum([len(part) for part in parts])[:-1]
    question = parts[0].question
    return SyntheticClip(
        name,
        question,
        [frame for part in parts for frame in part.frames],
        [box if part.question == question else None for part in parts for box in part.evidence],
        [flow for part in parts for flow in part.flows],
        tuple(int(start) for start in starts),
    )


def add_noise(clip: SyntheticClip, sigma: float, seed: int = 0) -> SyntheticClip:
    """The clip with sensor noise of `sigma` grey levels on every frame."""
    rng = np.random.default_rng(seed)
    noisy = (frame + rng.normal(0, sigma, frame.shape).astype(np.float32) for frame in clip.frames)
    return replace(clip, frames=[np.clip(frame, 0, 255).astype(np.uint8) for frame in noisy])


CLIPS: dict[str, Callable[[int], SyntheticClip]] = {
    "pan": pan, "object": moving_object, "cut": cuts, "flash": flash, "zoom": zoom, "shake": shake, "noise": noise,
    "static": static, "fade": fade,
}  # fmt: skip


def draw_clip(name: str, frames: int = 60) -> SyntheticClip:
    """A clip by its name."""
    if name not in CLIPS:
        raise ArrCocError(f"expected a clip among {', '.join(CLIPS)}, got {name!r}")
    return CLIPS[name](frames)


def _visible_box(box: Box, camera: Camera, size: tuple[int, int]) -> Box | None:
    """A box of the picture in a frame's pixels, clipped to the frame; None if too little of it is visible."""
    matrix = camera.matrix(size)
    x0, x1 = ((x - matrix[0, 2]) * camera.scale for x in (box[0], box[2]))
    y0, y1 = ((y - matrix[1, 2]) * camera.scale for y in (box[1], box[3]))
    left, top, right, bottom = max(x0, 0.0), max(y0, 0.0), min(x1, float(size[1])), min(y1, float(size[0]))
    area = max(0.0, x1 - x0) * max(0.0, y1 - y0)
    if area == 0 or max(0.0, right - left) * max(0.0, bottom - top) < MIN_VISIBLE * area:
        return None
    return left, top, right, bottom


def _true_flow(before: np.ndarray, after: np.ndarray, size: tuple[int, int]) -> torch.Tensor:
    """Where each pixel was, from the matrices of two cameras: `[2, H, W]`."""
    y, x = np.meshgrid(np.arange(size[0]), np.arange(size[1]), indexing="ij")
    vectors = [(after[i, i] * at + after[i, 2] - before[i, 2]) / before[i, i] - at for i, at in ((0, x), (1, y))]
    return torch.from_numpy(np.stack(vectors).astype(np.float32))


def _ball(side: int) -> tuple[np.ndarray, np.ndarray]:
    """A tennis ball: colours `[side, side, 3]` and alpha `[side, side]`."""
    y, x = np.mgrid[:side, :side].astype(np.float32) - (side - 1) / 2
    radius = side / 2 - 1
    alpha = np.clip(radius - np.sqrt(x**2 + y**2) + 0.5, 0, 1)
    light = 1 - 0.45 * np.sqrt((x + radius / 3) ** 2 + (y + radius / 3) ** 2) / radius
    seam = np.abs(np.sqrt((x - 0.9 * radius) ** 2 + y**2) - 0.9 * radius) < 1.6
    colour = np.where(seam[..., None], [240, 240, 235], [205, 222, 50]) * light[..., None]
    return np.clip(colour, 0, 255).astype(np.float32), alpha


def _paste(frame: np.ndarray, sprite: np.ndarray, mask: np.ndarray, x: int, y: int) -> Box | None:
    """Draw a sprite at (x, y); returns its visible box."""
    side = len(mask)
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + side, frame.shape[0]), min(x + side, frame.shape[1])
    if bottom <= top or right <= left:
        return None
    part = (slice(top - y, bottom - y), slice(left - x, right - x))
    alpha = mask[part][..., None]
    under = frame[top:bottom, left:right].astype(np.float32)
    frame[top:bottom, left:right] = (sprite[part] * alpha + under * (1 - alpha)).astype(np.uint8)
    visible = (right - left) * (bottom - top) >= MIN_VISIBLE * side * side
    return (float(left), float(top), float(right), float(bottom)) if visible else None
