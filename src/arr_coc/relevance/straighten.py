"""Which way up the text of a picture is: turned by 90, 180 or 270 degrees, tilted, or in perspective.

    letters -> direction of the lines -> strips of lines -> upright or not (a small network) -> the page's quadrilateral

All of this works on the brightness of a picture of at most `SIDE` px. It needs no model and takes some hundredths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from arr_coc.relevance.regions import text_box
from arr_coc.types.pyramid import Region

WEIGHTS = Path(__file__).with_name("upright.safetensors")
SIDE = 1024  # px, the longer side of what is looked at
AROUND = 31  # px around a pixel, whose mean it must be darker than
CONTRAST = 0.08  # of the range from dark to light: how much darker
LETTER = (4, 110)  # px: the longer side of a letter or of letters that touch
MIN_LETTERS, MIN_STRIPS = 20, 4
MOST_POINTS = 10_000  # pixels of ink that slopes are measured on
POINTS = 6000  # pixels of ink that the search for the direction uses
MOST_AXES, OF_SHARPEST = 3, 0.35  # directions that are looked at, and how sharp against the best
STRIP = (24, 96)  # height and width of a strip in pixels
MOST_OF_LINE = 4  # strips
MOST_STRIPS, ALL_STRIPS = 40, 160  # that are looked at first, and where those say too little
WIDTHS, STRIDES = (16, 32, 48, 64), (2, 2, 2, 1)  # of the network's layers


LEAST_TILT = 3.0  # degrees: models read what is tilted by less
IS_TEXT, MIN_SHARE = 0.0, 0.25  # logit of a strip; share of the strips
CLIP = 4.0  # of a strip's vote for upright
# The mean vote, and in standard errors, from which a page is turned: one whose lines run upwards is wrong as it is, one with level
# lines is most often right.
SIDEWAYS, OVER = (0.5, 2.0), (0.8, 3.0)
CLEAR = 0.8  # mean vote from which a third of the strips are enough
NEAR = 2.0  # heights of a line around the text: what is there belongs to it
ERRORS = 3.0  # standard errors of a slope's change

ENOUGH, ENOUGH_SHARE = 8, 0.6  # strips of text, from which no other direction is looked at
FEW_LETTERS = 80
MIN_LINES = 6  # that are long enough to have a slope
MIN_CHANGE = 0.06  # of a slope across the page: lines that change less are parallel
STRAY, MOST_STRAY = 0.05, 0.4  # from the slope that lines should have, and how much of them may
MAX_SLANT, MAX_BEND = 0.36, 0.6
MARGIN = 0.03  # of the longer side, around the text
# All of a picture is shown where it is at most so many times as large as its text; the second where it is only turned.
MOST_ROOM, MOST_ROOM_TURNED = 1.4, 2.5


@dataclass(frozen=True)
class Letters:
    """The ink of a picture that may be letters: a mask `[H, W]`, their number and the height of most of them in pixels."""

    mask: np.ndarray
    count: int
    height: float


def reduced(gray: np.ndarray) -> np.ndarray:
    """A picture `[H, W]` at the size that is looked at."""
    scale = SIDE / max(gray.shape)
    how = cv2.INTER_AREA if scale < 0.8 else cv2.INTER_LINEAR  # six times as fast, and enough for a small step
    return gray if scale >= 1 else cv2.resize(gray, None, fx=scale, fy=scale, interpolation=how)


def find_letters(gray: np.ndarray) -> Letters:
    """Connected strokes of a letter's size in a uint8 picture, whichever way they are turned."""
    darker = np.bincount(gray[::4, ::4].ravel(), minlength=256).cumsum()
    low, high = np.searchsorted(darker, (0.02 * darker[-1], 0.98 * darker[-1]))
    around = max(3, min(AROUND, *gray.shape) | 1)
    ink = cv2.adaptiveThreshold(
        gray, 1, cv2.ADAPTIVE_THRESH_MEAN_C, cv2.THRESH_BINARY_INV, around, max(4.0, CONTRAST * float(high - low))
    )
    labels, stats = _components(ink, 8)
    wide, tall, area = stats[:, 2], stats[:, 3], stats[:, 4]
    longer, shorter = np.maximum(wide, tall), np.minimum(wide, tall)
    letter = (longer >= LETTER[0]) & (longer <= LETTER[1]) & (longer <= 10 * shorter)
    letter &= (area >= 6) & (area >= 0.12 * wide * tall) & (area <= 0.9 * wide * tall)
    letter[0] = False
    mask = np.take(letter.astype(np.uint8), labels)
    count = int(letter.sum())
    return Letters(mask, count, float(np.median(shorter[letter])) if count else 0.0)


def _components(ink: np.ndarray, connectivity: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of each pixel's component, and left, top, width, height and area of each."""
    runs = np.count_nonzero(ink[:, 1:] > ink[:, :-1]) + len(ink)  # at least as many as components
    small = cv2.CV_16U if runs < 2**16 else cv2.CV_32S  # twice as fast
    _, labels, stats, _ = cv2.connectedComponentsWithStats(ink, connectivity=connectivity, ltype=small)
    return labels, stats


def _inked(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of what is not 0 in a uint8 picture, as `np.nonzero` gives them, in a third of the time."""
    found = cv2.findNonZero(mask)
    points = np.zeros((0, 2), np.int64) if found is None else found.reshape(-1, 2).astype(np.int64)
    return points[:, 1], points[:, 0]


def _points(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some pixels of ink: x and y."""
    y, x = _inked(mask)
    chosen = np.linspace(0, len(y) - 1, min(POINTS, len(y))).astype(int)
    return x[chosen].astype(np.float32), y[chosen].astype(np.float32)


def is_level(mask: np.ndarray) -> bool:
    """Whether rows of ink are sharpest as they are, among directions that are close."""
    x, y = _points(mask)
    near = np.arange(-7.5, 7.6, 1.5)
    return abs(near[np.argmax([_sharpness(x, y, angle, 2.0) for angle in near])]) < LEAST_TILT


def axes(mask: np.ndarray) -> Iterator[float]:
    """Angles in degrees, from about -90 to 90, along which lines of text may run: level ones first, then the sharpest.

    At the right angle, lines and gaps alternate sharply. So do the columns of letters of one width, so there are several.
    """
    x, y = _points(mask)
    coarse = np.arange(-90.0, 90.0, 1.5)
    sharp = np.array([_sharpness(x, y, angle, 3.0) for angle in coarse])
    found: list[float] = []
    for best in np.argsort(-sharp):
        if len(found) == MOST_AXES or sharp[best] < OF_SHARPEST * sharp.max():
            break
        if all(abs((coarse[best] - other + 90) % 180 - 90) > 20 for other in found):
            found.append(float(coarse[best]))
    cross = (found[0] + 180) % 180 - 90  # the columns of a page may be sharper than its lines
    if all(abs((cross - other + 90) % 180 - 90) > 20 for other in found):
        found.append(cross)
    for angle in sorted(found, key=lambda one: abs(one) > 2 * LEAST_TILT):  # most pages are upright
        yield float(max(angle + np.arange(-1.5, 1.6, 0.25), key=lambda one: _sharpness(x, y, one, 1.0)))


def _sharpness(x: np.ndarray, y: np.ndarray, angle: float, step: float) -> float:
    turn = math.radians(angle)
    down = (y * math.cos(turn) - x * math.sin(turn)) / step
    rows = np.bincount((down - down.min()).astype(np.int64))
    return float(np.square(np.diff(rows)).sum())


@dataclass(frozen=True)
class Lines:
    """Parts of level lines of letters, `[n]` each: their middle, their length and height, and their slope."""

    x: np.ndarray
    y: np.ndarray
    length: np.ndarray
    height: np.ndarray
    slope: np.ndarray  # downwards per pixel to the right
    label: np.ndarray  # [H, W / 2], the line of each pixel of ink; -1: none


def _some(points: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Up to about `MOST_POINTS` of many pixels."""
    return [one[:: max(1, len(one) // MOST_POINTS)] for one in points]


def find_lines(letters: Letters) -> Lines:
    """Letters beside each other, joined."""
    reach = max(3, round(0.8 * letters.height))
    even = letters.mask.shape[1] // 2 * 2
    mask = np.maximum(letters.mask[:, :even:2], letters.mask[:, 1:even:2])  # half the width: half the time
    joined = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((1, reach), np.uint8))
    labels, stats = _components(joined, 4)
    wide, tall = 2 * stats[:, 2], stats[:, 3]
    least = max(4.0, 0.7 * letters.height)  # a dashed rule is lower
    kept = (tall >= least) & (wide >= 2 * tall) & (2 * stats[:, 4] >= 0.25 * wide * tall)
    kept[0] = False
    number = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    count = int(kept.sum())
    label = np.where(mask > 0, number[labels], -1)
    rows, columns = _some(_inked((label >= 0).astype(np.uint8)))
    own = label[rows, columns]
    columns = 2 * columns + 0.5
    sums = [np.bincount(own, ones, count) for ones in (None, columns, rows, columns**2, columns * rows)]
    ink = np.maximum(1.0, sums[0])
    x, y = sums[1] / ink, sums[2] / ink
    spread = np.maximum(1e-6, sums[3] / ink - x * x)
    slope = (sums[4] / ink - x * y) / spread
    height = np.maximum(4.0, tall[kept] - np.abs(slope) * wide[kept])
    return Lines(x, y, wide[kept].astype(float), height, slope, label)


def line_strips(
    gray: np.ndarray, lines: Lines, most: int = MOST_STRIPS, most_of_line: int = MOST_OF_LINE
) -> np.ndarray:
    """Parts of level lines, ink bright, as float32 `[n, *STRIP]` of mean 0 and deviation 1; at most `most`."""
    windows = []
    for x, y, length, height, slope in zip(lines.x, lines.y, lines.length, lines.height, lines.slope, strict=True):
        high = 1.5 * height  # with what is above and below
        long = high * STRIP[1] / STRIP[0]
        count = min(most_of_line, max(1, int(length / long)))
        for number in range(count):
            off = length * ((number + 0.5) / count - 0.5)
            across, down = x + off + 0.5, y + slope * off + 0.5  # the middle of a pixel
            windows.append((across - long / 2, down - high / 2, across + long / 2, down + high / 2))
    if not windows:
        return np.zeros((0, *STRIP), np.float32)
    chosen = np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(int)
    strips = np.stack([_strip(gray, windows[number]) for number in chosen])
    flat = strips.reshape(len(strips), -1)
    flat = flat.mean(1, keepdims=True) - flat
    return (flat / (flat.std(1, keepdims=True) + 2.0)).reshape(-1, *STRIP).astype(np.float32)


def _strip(gray: np.ndarray, window: tuple[float, float, float, float]) -> np.ndarray:
    height, width = gray.shape
    left, top, right, bottom = (round(side) for side in window)
    inside = gray[max(0, top) : max(1, bottom), max(0, left) : max(1, right)]
    if top < 0 or left < 0 or bottom > height or right > width:
        inside = cv2.copyMakeBorder(
            inside, max(0, -top), max(0, bottom - height), max(0, -left), max(0, right - width), cv2.BORDER_REPLICATE
        )
    return cv2.resize(inside, STRIP[::-1], interpolation=cv2.INTER_AREA)


def judge(strips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits `[n]` that a strip is level text, and that it is upright rather than upside down.

    A strip and the strip turned by 180 degrees have the same first logit and opposite second ones, whatever the weights.
    """
    if not len(strips):
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    both = torch.from_numpy(np.concatenate([strips, strips[:, ::-1, ::-1]]))[:, None]
    with torch.no_grad():
        found = network(both, _weights()).numpy()
    own, other = found[: len(strips)], found[len(strips) :]
    return (own[:, 0] + other[:, 0]) / 2, own[:, 1] - other[:, 1]


def network(strips: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Strips `[n, 1, *STRIP]` to two numbers each: `[n, 2]`."""
    x = strips
    for number, stride in enumerate(STRIDES):
        x = F.relu(F.conv2d(x, weights[f"{number}.weight"], weights[f"{number}.bias"], stride=stride, padding=1))
    x = torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)
    return F.linear(x, weights["out.weight"], weights["out.bias"])


@lru_cache(maxsize=1)
def _weights() -> dict[str, torch.Tensor]:
    return {name: value.float() for name, value in load_file(WEIGHTS).items()}


@dataclass(frozen=True)
class Levelled:
    """A picture turned so that its lines may be level, and what was found there."""

    angle: float  # degrees, clockwise: the direction of the lines in the picture
    matrix: np.ndarray  # [2, 3] from the picture to here
    gray: np.ndarray
    lines: Lines
    text: np.ndarray  # logit of each strip
    up: np.ndarray

    @property
    def count(self) -> int:
        """Strips that are text."""
        return int((self.text > IS_TEXT).sum())

    @property
    def is_clear(self) -> bool:
        """Whether the picture as it is has level, upright lines, without any doubt."""
        long = self.lines.length >= 4 * self.lines.height
        if not _is_clear(self.text, self.up) or long.sum() < MIN_LINES:
            return False
        return abs(math.degrees(float(np.median(self.lines.slope[long])))) < LEAST_TILT

    @property
    def score(self) -> float:
        """How much text there is, by the network, whatever number of strips it has seen."""
        share = 1 / (1 + np.exp(-self.text))
        return float(share.sum() / math.sqrt(MOST_STRIPS * max(1, len(share))))

    def vote(self, least: float, errors: float) -> tuple[float, bool]:
        """The mean vote for upright, and whether it is at least `least` and so many standard errors away from none."""
        votes = self.up[self.text > IS_TEXT].clip(-CLIP, CLIP)
        if len(votes) < MIN_STRIPS:
            return 0.0, False
        mean, error = float(votes.mean()), float(votes.std() / math.sqrt(len(votes))) + 0.05
        return mean, abs(mean) >= least and abs(mean) >= errors * error

    def look_closer(self) -> Levelled:
        """The same with all strips that there are, up to `ALL_STRIPS`."""
        text, up = judge(line_strips(self.gray, self.lines, ALL_STRIPS))
        return replace(self, text=text, up=up)

    def only_text(self) -> Levelled:
        """The same without lines that the network takes for something else: edges of things behind the page."""
        lines = self.lines
        is_text = judge(line_strips(self.gray, lines, len(lines.x), 1))[0] > IS_TEXT
        box = text_box(np.isin(lines.label, np.nonzero(is_text)[0]).astype(np.float32)) if is_text.any() else None
        if box is None:
            return self
        room = NEAR * float(np.median(lines.height[is_text]))
        left, top, right, bottom = 2 * box[0] - room, box[1] - room, 2 * box[2] + room, box[3] + room
        inside = (lines.x - lines.length / 2 >= left) & (lines.x + lines.length / 2 <= right)
        inside &= (lines.y >= top) & (lines.y <= bottom)
        number = np.where(inside, np.cumsum(inside) - 1, -1).astype(np.int32)
        label = np.where(lines.label >= 0, number[lines.label], -1)
        x, y, length, height, slope = (
            one[inside] for one in (lines.x, lines.y, lines.length, lines.height, lines.slope)
        )
        return replace(self, lines=Lines(x, y, length, height, slope, label))


def _is_clear(text: np.ndarray, up: np.ndarray) -> bool:
    """Whether a third of the strips say enough: level and upright, without any doubt."""
    is_text = text > IS_TEXT
    return (
        int(is_text.sum()) >= ENOUGH
        and bool(is_text.mean() > 0.8)
        and float(up[is_text].clip(-CLIP, CLIP).mean()) > CLEAR
    )


def level(gray: np.ndarray, letters: Letters, angle: float) -> Levelled:
    """The picture turned by `angle`, with its lines and what the network says of them."""
    height, width = gray.shape
    matrix: np.ndarray = np.eye(3)[:2]
    if abs(angle) >= LEAST_TILT:
        turn = math.radians(angle)
        wide = math.ceil(abs(width * math.cos(turn)) + abs(height * math.sin(turn)))
        high = math.ceil(abs(width * math.sin(turn)) + abs(height * math.cos(turn)))
        matrix = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 1.0)
        matrix[:, 2] += ((wide - width) / 2, (high - height) / 2)
        gray = cv2.warpAffine(gray, matrix, (wide, high), borderMode=cv2.BORDER_REPLICATE)
        mask = cv2.warpAffine(letters.mask, matrix, (wide, high), flags=cv2.INTER_NEAREST)
        letters = Letters(mask, letters.count, letters.height)
    lines = find_lines(letters)
    strips = line_strips(gray, lines)
    first = np.arange(len(strips)) % 3 == 0
    text, up = judge(strips[first])
    if not _is_clear(text, up):
        both = np.empty((2, len(strips)), np.float32)
        both[:, first], both[:, ~first] = (text, up), judge(strips[~first])
        text, up = both
    return Levelled(angle, matrix, gray, lines, text, up)


@dataclass(frozen=True)
class Pose:
    """How the text of a picture lies. `region`: what to show, upright; None: the picture as it is. `doubt`: why, where text was found."""

    region: Region | None = None
    doubt: str = ""


def find_pose(gray: np.ndarray, original: tuple[int, int]) -> Pose:
    """The pose of the text of a uint8 picture `[H, W]`, at any scale of an original of `original` size (width, height).

    A page that may be upright is left as it is: it takes sure votes of many strips to turn one.
    """
    gray = reduced(gray)
    letters = find_letters(gray)
    if letters.count < FEW_LETTERS:  # light letters on dark ground
        inverse = find_letters(255 - gray)
        if inverse.count > letters.count:
            gray, letters = 255 - gray, inverse
    if letters.count < MIN_LETTERS:
        return Pose()
    best = level(gray, letters, 0.0) if is_level(letters.mask) else None
    if best is not None and not best.is_clear:
        best = None
    for angle in () if best is not None else axes(letters.mask):  # most pages are upright: no other direction is tried
        found = level(gray, letters, angle)
        if best is None or found.score > 1.15 * best.score:
            best = found
        if found.count >= ENOUGH and found.count >= ENOUGH_SHARE * len(found.text):
            break
    assert best is not None
    if best.count < MIN_STRIPS or best.count < MIN_SHARE * len(best.text):
        return Pose()
    turn = best.angle
    sideways = abs(turn) > 45
    sure_enough = SIDEWAYS if sideways else OVER
    vote, sure = best.vote(*sure_enough)
    if not sure and (sideways or vote < 0):
        best = best.only_text().look_closer()
        vote, sure = best.vote(*sure_enough)
    if sideways and not sure:
        return Pose(doubt="lines of text run upwards, but nothing says surely which way up they are: not turned")
    over = vote < 0 and sure
    bend, steady = perspective(best)
    if sideways or over or bend is not None or not steady or abs(best.angle) >= LEAST_TILT:  # most pages end here
        best = best.only_text()
        bend, steady = perspective(best)
    tilt = (turn + 45) % 90 - 45
    is_flat = not steady or (abs(tilt) < LEAST_TILT and bend is None)  # curled: lines have no direction of their own
    right_angle = round(turn - tilt + 180 * over) % 360
    if is_flat and right_angle == 0:
        return Pose()
    if abs(best.angle) < LEAST_TILT:  # it was not turned to be looked at
        turn -= tilt
    whole = Region.whole(original, right_angle) if is_flat else None
    return Pose(_region(best, bend, turn + 180 * over, gray.shape, original, whole))


def perspective(page: Levelled) -> tuple[np.ndarray | None, bool]:
    """The projection `[3, 3]` after which lines are parallel and strokes stand upright; None where they do already.

    And whether lines are straight, so that there is such a projection.

    Where lines meet, and where strokes do, from how the slope of lines changes down the page and the slant of strokes across it.
    """
    lines = page.lines
    long = lines.length >= 4 * lines.height
    if long.sum() < MIN_LINES:
        return None, True
    middle = np.array(page.gray.shape[::-1]) / 2
    half = float(np.hypot(*middle))
    x, y = (lines.x - middle[0]) / half, (lines.y - middle[1]) / half
    weight = np.minimum(lines.length, 12 * lines.height) ** 2 * long
    a, b, error = _fit(y, lines.slope, weight)
    off = np.abs(lines.slope - a - b * y) > STRAY
    if (weight * off).sum() > MOST_STRAY * weight.sum():
        return None, False
    slant = slants(page)
    a2, b2, error2 = _fit(x, slant, weight * (np.abs(slant) < MAX_SLANT))
    spread = np.quantile(y[long], 0.95) - np.quantile(y[long], 0.05)
    spread2 = np.quantile(x[long], 0.95) - np.quantile(x[long], 0.05)
    least = MIN_CHANGE if abs(page.angle) < LEAST_TILT else MIN_CHANGE / 2  # what is warped anyway is warped well
    if abs(b) * spread < least or abs(b) < ERRORS * error:
        b = 0.0
    if abs(b2) * spread2 < least or abs(b2) < ERRORS * error2:
        b2 = 0.0
    if abs(a2) < least or abs(a2) < ERRORS * error2 or (b == 0 and b2 == 0):  # a slant alone is an italic font
        a2 = 0.0
    if b == 0 and b2 == 0:
        return None, True
    # Both meeting points, (X, Y) = (-1, -a) / b and (U, V) = (-a2, -1) / b2, become infinitely far: they are on the line
    # (p, q, 1) of the third row.
    p, q = np.linalg.solve([[1.0, a], [a2, 1.0]], [b, b2])
    made = np.array([[1.0, -a2, 0.0], [-a, 1.0, 0.0], [p, q, 1.0]])
    if abs(p) + abs(q) > MAX_BEND:
        return None, True
    to = np.array([[1 / half, 0, -middle[0] / half], [0, 1 / half, -middle[1] / half], [0, 0, 1]])
    return np.linalg.inv(to) @ made @ to, True


def _fit(at: np.ndarray, value: np.ndarray, weight: np.ndarray) -> tuple[float, float, float]:
    """Offset, slope and the slope's standard error of a line through values, robust against outliers."""
    w = weight.copy()
    design = np.column_stack([np.ones_like(at), at])
    a = b = 0.0
    error = math.inf
    for _ in range(8):
        normal = design.T @ (design * w[:, None]) + 1e-9 * np.eye(2)
        a, b = np.linalg.solve(normal, design.T @ (w * value))
        rest = np.abs(value - a - b * at)
        scale = max(1e-3, 1.5 * float(np.median(rest[weight > 0]))) if (weight > 0).any() else 1.0
        w = weight / (1 + (rest / scale) ** 2)
    count = w.sum() ** 2 / max(1e-9, np.square(w).sum())  # effective number of lines
    rest = value - a - b * at
    variance = float((w * rest**2).sum() / max(1e-9, w.sum())) / max(1.0, count - 2)
    spread = float((w * at**2).sum() / max(1e-9, w.sum()) - ((w * at).sum() / max(1e-9, w.sum())) ** 2)
    error = math.sqrt(variance / max(1e-9, spread))
    return float(a), float(b), error


def slants(page: Levelled) -> np.ndarray:
    """How far the strokes of each line lean: pixels to the right per pixel downwards."""
    lines = page.lines
    rows, columns = _some(_inked((lines.label >= 0).astype(np.uint8)))
    own = lines.label[rows, columns]
    columns = 2 * columns
    down = rows - (lines.y[own] + lines.slope[own] * (columns - lines.x[own]))
    width = page.gray.shape[1] + 64
    tries = np.arange(-MAX_SLANT, MAX_SLANT + 1e-6, 0.03)
    sharp = np.empty((len(tries), len(lines.x)))
    for number, lean in enumerate(tries):
        bins = own * width + (columns - lean * down).astype(np.int64) + 32
        counts = np.bincount(np.maximum(bins, 0), minlength=len(lines.x) * width)[: len(lines.x) * width]
        sharp[number] = np.square(counts.reshape(len(lines.x), width)).sum(1)
    return tries[sharp.argmax(0)]


def _region(
    page: Levelled,
    bend: np.ndarray | None,
    turn: float,
    shape: tuple[int, ...],
    original: tuple[int, int],
    whole: Region | None,
) -> Region:
    """What to show: the text, or all of the picture where that is hardly more. `whole`: all of it, where it is only turned."""
    to_here = np.vstack([page.matrix, [0, 0, 1]])
    if bend is not None:
        to_here = bend @ to_here
    lines = page.lines
    height, width = shape
    left, top, right, bottom = text_box((lines.label >= 0).astype(np.float32))
    main = (lines.x >= 2 * left) & (lines.x <= 2 * right) & (lines.y >= top) & (lines.y <= bottom)
    x, y, length, tall, slope = (v[main] for v in (lines.x, lines.y, lines.length, lines.height, lines.slope))
    ends = np.concatenate(
        [
            np.column_stack([x + side * length / 2, y + side * slope * length / 2 + more])
            for side in (-1, 1)
            for more in (-tall, tall)
        ]
    )
    ends = ends if bend is None else cv2.perspectiveTransform(ends[None], bend)[0]
    low, high = ends.min(0), ends.max(0)
    margin = MARGIN * (high - low).max()
    frame = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], np.float64)
    frame = cv2.perspectiveTransform(frame, to_here)[0]
    low, high = np.maximum(low - margin, frame.min(0)), np.minimum(high + margin, frame.max(0))
    if np.prod(frame.max(0) - frame.min(0)) <= (MOST_ROOM_TURNED if whole else MOST_ROOM) * np.prod(high - low):
        if whole is not None:
            return whole
        low, high = frame.min(0), frame.max(0)
    box = np.array([[low, [high[0], low[1]], high, [low[0], high[1]]]], np.float64)
    scale = original[0] / width
    quad = cv2.perspectiveTransform(box, np.linalg.inv(to_here))[0] * scale
    if abs((turn - page.angle + 180) % 360 - 180) > 90:
        quad = np.roll(quad, 2, 0)
    if bend is None:
        size = (float(np.hypot(*(quad[1] - quad[0]))), float(np.hypot(*(quad[3] - quad[0]))))
        middle = quad.mean(0)
        return Region((float(middle[0]), float(middle[1])), size, round(turn, 2), original)
    across = (np.hypot(*(quad[1] - quad[0])) + np.hypot(*(quad[2] - quad[3]))) / 2
    down = (np.hypot(*(quad[3] - quad[0])) + np.hypot(*(quad[2] - quad[1]))) / 2
    return Region.in_perspective(quad, original, (float(across), float(down)))
