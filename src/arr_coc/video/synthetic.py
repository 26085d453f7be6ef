"""Clips drawn from still pictures, of which everything is known: how each pixel moved, where the answer stands, every cut.

A camera looks at a part of a picture, and moves, zooms or shakes; a ball flies across; lamps flash. Where a pixel of a frame
was in the frame before follows from the two views, to rounding, and so does where the evidence lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch

from arr_coc.draw import samples as pictures
from arr_coc.errors import ArrCocError

Box = tuple[float, float, float, float]

SIZE = (360, 640)  # height, width of a frame
LEAST_SEEN = 0.6  # share of a box inside the frame from which it counts as there
BALL = 46  # px across


@dataclass(frozen=True)
class View:
    """What a camera sees of a picture: the point in the middle of the frame, and frame pixels per pixel of the picture."""

    x: float
    y: float
    scale: float = 1.0

    def matrix(self, size: tuple[int, int]) -> np.ndarray:
        """From the frame's pixels to the picture's: float64 `[2, 3]`."""
        height, width = size
        s = 1 / self.scale
        return np.array([[s, 0, self.x - s * (width - 1) / 2], [0, s, self.y - s * (height - 1) / 2]])


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames uint8 `[H, W, 3]`, and what is known about them."""

    name: str
    question: str
    frames: list[np.ndarray]
    evidence: list[Box | None]  # by frame, in its pixels; None: not to be seen
    flows: list[torch.Tensor | None]  # by frame, [2, H, W] as in `flow.Flow`; None: there was no frame before, or a cut
    cuts: tuple[int, ...] = ()  # the first frames of new scenes
    tags: frozenset[str] = field(default_factory=frozenset)

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, eq=False)
class Still:
    """A picture to look at, and where on it the answer to a question stands."""

    pixels: np.ndarray
    question: str
    box: Box


def page() -> Still:
    """The bundled receipt, and its total."""
    return Still(np.array(pictures.receipt()), "What is the total amount?", (40, 722, 522, 782))


def street() -> Still:
    """The bundled street scene, and its van."""
    return Still(np.array(pictures.scene()), "Where is the van?", (470, 392, 730, 518))


def filmed(name: str, still: Still, views: list[View], size: tuple[int, int] = SIZE) -> Clip:
    """A camera's views of a picture, one for each frame."""
    frames, boxes, flows = [], [], []
    for number, view in enumerate(views):
        matrix = view.matrix(size)
        frames.append(_shot(still.pixels, matrix, size))
        boxes.append(_seen(still.box, view, size))
        flows.append(_moved(views[number - 1].matrix(size), matrix, size) if number else None)
    return Clip(name, still.question, frames, boxes, flows)


def pan(frames: int = 60, step: float = 6.0) -> Clip:
    """Down a receipt that fills the frame's width, until its total stands in the middle."""
    still = page()
    scale = SIZE[1] / still.pixels.shape[1]
    return filmed("pan", still, [View(280, 760 - step * (frames - 1 - number), scale) for number in range(frames)])


def static(frames: int = 60, seed: int = 0, noise: float = 4.0) -> Clip:
    """Nothing moves; only the sensor's noise differs."""
    clip = filmed("static", street(), [View(480, 370)] * frames)
    return noisy(clip, noise, seed)


def noise(frames: int = 60, seed: int = 0) -> Clip:
    """A camera drifts slowly in poor light."""
    clip = filmed("noise", street(), [View(440 + 0.5 * number, 370) for number in range(frames)])
    return noisy(clip, 14.0, seed)


def zoom(frames: int = 60) -> Clip:
    views = [View(520 + 0.6 * number, 380 + 0.5 * number, 1.0 + 0.012 * number) for number in range(frames)]
    return filmed("zoom", street(), views)


def shake(frames: int = 60, seed: int = 0) -> Clip:
    """A hand that trembles by a few pixels."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.normal(0, 2.0, (frames, 2)), axis=0)
    at -= cv2.GaussianBlur(at, (1, 31), 0)
    return filmed("shake", street(), [View(480 + 1.5 * x, 380 + 1.5 * y) for x, y in at])


def moving_object(frames: int = 60) -> Clip:
    """A ball flies across the street while the camera stands still; the question is about the ball."""
    still = Still(street().pixels, "Where is the ball?", (0, 0, 0, 0))
    clip = filmed("object", still, [View(480, 370)] * frames)
    sprite, mask = _ball(BALL)
    places = [(20 + 9 * n, 40 + round(4 * n + 40 * np.sin(n / 9))) for n in range(frames)]
    boxes: list[Box | None] = []
    for number, (x, y) in enumerate(places):
        boxes.append(_paste(clip.frames[number], sprite, mask, x, y))
        if number and (flow := clip.flows[number]) is not None and (seen := boxes[number]) is not None:
            left, top, right, bottom = (int(side) for side in seen)
            inside = torch.from_numpy(mask[top - y : bottom - y, left - x : right - x] > 0.5)
            moved = torch.tensor([places[number - 1][0] - x, places[number - 1][1] - y]).float()
            flow[:, top:bottom, left:right][:, inside] = moved[:, None]
    return Clip("object", still.question, clip.frames, boxes, clip.flows)


def cuts(frames: int = 60) -> Clip:
    """Four scenes: a street, a page, another corner of the street, the page's foot."""
    each = frames // 4
    parts = [
        filmed("", street(), [View(420 + 2 * n, 370) for n in range(each)]),
        filmed("", page(), [View(280, 300 + 3 * n, 1.1) for n in range(each)]),
        filmed("", street(), [View(650, 300 + n, 1.6) for n in range(each)]),
        filmed("", page(), [View(280, 900 + 2 * n, 1.1) for n in range(frames - 3 * each)]),
    ]
    return joined("cut", parts)


def flash(frames: int = 60) -> Clip:
    """Photographers' lamps while the camera pans: some frames are brighter, one is white."""
    clip = filmed("flash", street(), [View(400 + 2 * n, 370) for n in range(frames)])
    for number, gain in ((frames // 6, 1.7), (frames // 3, 2.4), (frames // 2, 12.0), (5 * frames // 6, 0.5)):
        bright = clip.frames[number].astype(np.float32) * gain + 40 * (gain > 1)
        clip.frames[number] = np.clip(bright, 0, 255).astype(np.uint8)
    return clip


def fade(frames: int = 60) -> Clip:
    """The street fades to black, and the page comes out of it."""
    half = frames // 2
    parts = [
        filmed("", street(), [View(420 + n, 370) for n in range(half)]),
        filmed("", page(), [View(280, 300 + 2 * n, 1.1) for n in range(frames - half)]),
    ]
    clip = joined("fade", parts)
    for number in range(frames):
        light = min(1.0, abs(number - half) / 10)
        clip.frames[number] = (clip.frames[number] * light).astype(np.uint8)
    return clip


def joined(name: str, parts: list[Clip]) -> Clip:
    """Clips one after another, a cut between them; the question is the first one's."""
    starts = np.cumsum([len(part) for part in parts])[:-1]
    about = parts[0].question
    return Clip(
        name, about,
        [frame for part in parts for frame in part.frames],
        [box if part.question == about else None for part in parts for box in part.evidence],
        [flow for part in parts for flow in part.flows],
        tuple(int(start) for start in starts),
    )  # fmt: skip


def noisy(clip: Clip, spread: float, seed: int = 0) -> Clip:
    """The same with a sensor's noise of so many grey levels on every frame."""
    rng = np.random.default_rng(seed)
    frames = [
        np.clip(frame + rng.normal(0, spread, frame.shape).astype(np.float32), 0, 255).astype(np.uint8)
        for frame in clip.frames
    ]
    return Clip(clip.name, clip.question, frames, clip.evidence, clip.flows, clip.cuts)


CLIPS: dict[str, Callable[[int], Clip]] = {
    "pan": pan,
    "object": moving_object,
    "cut": cuts,
    "flash": flash,
    "zoom": zoom,
    "shake": shake,
    "noise": noise,
    "static": static,
    "fade": fade,
}


def rendered(name: str, frames: int = 60) -> Clip:
    """A clip by its name."""
    if name not in CLIPS:
        raise ArrCocError(f"expected a clip among {', '.join(CLIPS)}, got {name!r}")
    return CLIPS[name](frames)


def _shot(picture: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(picture, matrix, (size[1], size[0]), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _seen(box: Box, view: View, size: tuple[int, int]) -> Box | None:
    """A box of the picture in a frame's pixels, cut off at its border; None where too little of it is there."""
    matrix = view.matrix(size)
    x0, x1 = ((x - matrix[0, 2]) * view.scale for x in (box[0], box[2]))
    y0, y1 = ((y - matrix[1, 2]) * view.scale for y in (box[1], box[3]))
    left, top, right, bottom = max(x0, 0.0), max(y0, 0.0), min(x1, float(size[1])), min(y1, float(size[0]))
    area = max(0.0, x1 - x0) * max(0.0, y1 - y0)
    if area == 0 or max(0.0, right - left) * max(0.0, bottom - top) < LEAST_SEEN * area:
        return None
    return left, top, right, bottom


def _moved(before: np.ndarray, after: np.ndarray, size: tuple[int, int]) -> torch.Tensor:
    """Where each pixel was, from two views: `[2, H, W]`."""
    y, x = np.meshgrid(np.arange(size[0]), np.arange(size[1]), indexing="ij")
    was = [(after[i, i] * at + after[i, 2] - before[i, 2]) / before[i, i] - at for i, at in ((0, x), (1, y))]
    return torch.from_numpy(np.stack(was).astype(np.float32))


def _ball(side: int) -> tuple[np.ndarray, np.ndarray]:
    """A tennis ball: colours `[side, side, 3]` and how much of each pixel it covers."""
    y, x = np.mgrid[:side, :side].astype(np.float32) - (side - 1) / 2
    radius = side / 2 - 1
    length = np.sqrt(x**2 + y**2)
    mask = np.clip(radius - length + 0.5, 0, 1)
    light = 1 - 0.45 * np.sqrt((x + radius / 3) ** 2 + (y + radius / 3) ** 2) / radius
    seam = np.abs(np.sqrt((x - 0.9 * radius) ** 2 + y**2) - 0.9 * radius) < 1.6
    colour = np.where(seam[..., None], [240, 240, 235], [205, 222, 50]) * light[..., None]
    return np.clip(colour, 0, 255).astype(np.float32), mask


def _paste(frame: np.ndarray, sprite: np.ndarray, mask: np.ndarray, x: int, y: int) -> Box | None:
    side = len(mask)
    top, left = max(y, 0), max(x, 0)
    bottom, right = min(y + side, frame.shape[0]), min(x + side, frame.shape[1])
    if bottom <= top or right <= left:
        return None
    part = (slice(top - y, bottom - y), slice(left - x, right - x))
    alpha = mask[part][..., None]
    under = frame[top:bottom, left:right].astype(np.float32)
    frame[top:bottom, left:right] = (sprite[part] * alpha + under * (1 - alpha)).astype(np.uint8)
    seen = (right - left) * (bottom - top) >= LEAST_SEEN * side * side
    return (float(left), float(top), float(right), float(bottom)) if seen else None
