"""Generated textures without content: noise, splatter, marble, grass, sky, and more. Identical on every machine.

They are what a selector must not take for text or objects: no place of them matters more than another.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from arr_coc.errors import ArrCocError

Size = tuple[int, int]  # (width, height)


def draw_texture(kind: str, variant: int = 0, size: Size = (560, 560)) -> Image.Image:
    """A texture of one of `TEXTURES`, always the same for its kind, variant and size."""
    if kind not in TEXTURES:
        raise ArrCocError(f"expected a texture among {', '.join(TEXTURES)}, got {kind!r}")
    return TEXTURES[kind](np.random.default_rng(zlib.crc32(f"{kind} {variant}".encode())), size)


def scramble(image: Image.Image, variant: int = 0) -> Image.Image:
    """The picture with random phases: its spectrum and colours stay, everything in it is gone."""
    pixels = np.asarray(image.convert("RGB"), np.float64)
    rng = np.random.default_rng(variant)
    # The spectrum of real noise keeps the result real; one phase for all channels keeps the colours together.
    phase = np.angle(np.fft.fft2(rng.standard_normal(pixels.shape[:2])))[..., None]
    phase[0, 0] = 0
    window = np.hanning(pixels.shape[0])[:, None, None] * np.hanning(pixels.shape[1])[None, :, None]
    mean = pixels.mean((0, 1))
    centred = (pixels - mean) * np.sqrt(window)  # without the seam between opposite edges, which would draw a cross
    centred *= (pixels - mean).std() / max(1e-9, centred.std())
    return _image(np.fft.ifft2(np.fft.fft2(centred, axes=(0, 1)) * np.exp(1j * phase), axes=(0, 1)).real + mean)


def _image(values: np.ndarray) -> Image.Image:
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def _colour(rng: np.random.Generator, low: int = 40, high: int = 230) -> np.ndarray:
    return rng.integers(low, high, 3).astype(np.float64)


def fractal(rng: np.random.Generator, size: Size, power: float, stretch: float = 1.0) -> np.ndarray:
    """Noise `[H, W]` whose amplitude falls with frequency to the power of `power`; mean 0, deviation 1."""
    width, height = size
    down, across = np.fft.fftfreq(height)[:, None] * stretch, np.fft.rfftfreq(width)[None]
    radius = np.hypot(down, across)
    radius[0, 0] = 1
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / radius**power
    spectrum[0, 0] = 0
    found = np.fft.irfft2(spectrum, (height, width))
    return found / found.std()


def _noise(rng: np.random.Generator, size: Size) -> Image.Image:
    """Independent pixels of any strength, gray or coloured."""
    channels = int(rng.choice([1, 3]))
    strength = rng.choice([4, 10, 25, 50, 90])
    return _image(_colour(rng) + strength * rng.standard_normal((size[1], size[0], channels)))


def _grain(rng: np.random.Generator, size: Size) -> Image.Image:
    """Noise of larger grains: film, plaster, stone."""
    grains = fractal(rng, size, rng.uniform(0.3, 1.1))[..., None]
    return _image(_colour(rng) + rng.uniform(8, 60) * grains)


def _binary(rng: np.random.Generator, size: Size) -> Image.Image:
    """Black and white blots, from pixels to blobs."""
    field = fractal(rng, size, rng.uniform(0.0, 1.2))
    dark = (field > rng.uniform(-0.8, 0.8))[..., None]
    return _image(np.where(dark, _colour(rng, 0, 90), _colour(rng, 150, 256)))


def _splatter(rng: np.random.Generator, size: Size) -> Image.Image:
    """Drops of paint of many sizes and a few colours."""
    image = Image.new("RGB", size, tuple(int(v) for v in _colour(rng, 170, 250)))
    pen = ImageDraw.Draw(image)
    paints = [tuple(int(v) for v in _colour(rng, 0, 255)) for _ in range(int(rng.integers(2, 7)))]
    for _ in range(int(rng.integers(800, 2500))):
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        reach = float(min(40.0, 1.5 * (1 + rng.pareto(1.6))))
        paint = paints[int(rng.integers(len(paints)))]
        pen.ellipse([x - reach, y - reach * rng.uniform(0.6, 1), x + reach, y + reach], fill=paint)
        if rng.random() < 0.1:
            pen.line([x, y, x + rng.normal(0, 40), y + rng.normal(0, 40)], fill=paint, width=int(rng.integers(1, 4)))
    return image


def _marble(rng: np.random.Generator, size: Size) -> Image.Image:
    """Veins along a warped wave."""
    turn, bands = rng.uniform(0, np.pi), rng.uniform(2, 8)
    across, down = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    wave = bands * (across * np.cos(turn) + down * np.sin(turn)) + rng.uniform(0.4, 1.2) * fractal(rng, size, 1.6)
    veins = (np.abs(np.sin(np.pi * wave)) ** rng.uniform(0.3, 2))[..., None]
    return _image(veins * _colour(rng, 170, 250) + (1 - veins) * _colour(rng, 40, 160))


def _strokes(
    rng: np.random.Generator, size: Size, colours: np.ndarray, count: int, length: float, turn: float
) -> Image.Image:
    image = Image.new("RGB", size, tuple(int(v) for v in colours[0]))
    pen = ImageDraw.Draw(image)
    for _ in range(count):
        x, y = rng.uniform(-20, size[0] + 20), rng.uniform(-20, size[1] + 20)
        angle, reach = rng.normal(turn, 0.35), length * rng.uniform(0.4, 1.4)
        colour = tuple(int(v) for v in (colours[0] + (colours[1] - colours[0]) * rng.random()).clip(0, 255))
        pen.line(
            [x, y, x + reach * np.cos(angle), y + reach * np.sin(angle)], fill=colour, width=int(rng.integers(1, 4))
        )
    return image


def _grass(rng: np.random.Generator, size: Size) -> Image.Image:
    """Blades, mostly upright."""
    dark = np.array([20.0, 50, 10]) + rng.uniform(0, 30, 3)
    light = np.array([110.0, 170, 60]) + rng.uniform(-30, 60, 3)
    return _strokes(rng, size, np.stack([dark, light]), int(rng.integers(6000, 14000)), rng.uniform(14, 40), -np.pi / 2)


def _fur(rng: np.random.Generator, size: Size) -> Image.Image:
    """Hairs along one direction."""
    base = _colour(rng, 30, 150)
    tones = np.stack([base, base + rng.uniform(40, 100)])
    return _strokes(rng, size, tones, int(rng.integers(8000, 16000)), rng.uniform(15, 30), rng.uniform(0, np.pi))


def _sky(rng: np.random.Generator, size: Size) -> Image.Image:
    """A gradient, with or without clouds."""
    ramp = np.linspace(0, 1, size[1])[:, None, None]
    blue = (1 - ramp) * np.array([70.0, 130, 210]) + ramp * np.array([180.0, 210, 240]) + rng.normal(0, 12, 3)
    clouds = (fractal(rng, size, rng.uniform(1.4, 2.0), rng.uniform(1, 2.5)) - rng.uniform(-0.5, 2.5)).clip(0, 1)[
        ..., None
    ]
    return _image(
        blue * np.ones((size[1], size[0], 1)) * (1 - clouds) + 245 * clouds + rng.normal(0, 1.5, (size[1], size[0], 1))
    )


def _gravel(rng: np.random.Generator, size: Size) -> Image.Image:
    """Stones: the cells around random points, each of its own tone."""
    count = int(rng.integers(200, 2500))
    points = rng.uniform(0, 1, (count, 2)) * (size[1], size[0])
    from scipy.spatial import cKDTree

    places = np.stack(np.meshgrid(np.arange(size[1]), np.arange(size[0]), indexing="ij"), -1).reshape(-1, 2)
    near, owner = cKDTree(points).query(places, 2)
    seam = np.clip((near[:, 1] - near[:, 0]) / 4, 0, 1).reshape(size[1], size[0], 1)
    tones = (_colour(rng, 60, 180) + rng.normal(0, 25, (count, 1)))[owner[:, 0]].reshape(size[1], size[0], 3)
    return _image(tones * (0.4 + 0.6 * seam) + rng.normal(0, 6, (size[1], size[0], 1)))


def _weave(rng: np.random.Generator, size: Size) -> Image.Image:
    """Cloth: two crossing waves, and grain."""
    pitch = rng.uniform(5, 18)
    across, down = np.meshgrid(np.arange(size[0]) / pitch, np.arange(size[1]) / pitch)
    threads = np.sin(2 * np.pi * across) * np.sin(2 * np.pi * down) + 0.3 * fractal(rng, size, 0.5)
    return _image(_colour(rng) + rng.uniform(10, 40) * threads[..., None])


def _wood(rng: np.random.Generator, size: Size) -> Image.Image:
    """Long grain along one direction."""
    grain = fractal(rng, size, rng.uniform(0.7, 1.2), rng.uniform(0.03, 0.1))[..., None]
    return _image(
        np.array([150.0, 105, 65]) + rng.normal(0, 20, 3) + rng.uniform(10, 35) * grain * np.array([1, 0.9, 0.7])
    )


def _water(rng: np.random.Generator, size: Size) -> Image.Image:
    """Ripples, longer across than down."""
    ripples = fractal(rng, size, rng.uniform(1.0, 1.6), rng.uniform(0.2, 0.5))
    return _image(np.array([40.0, 90, 130]) + rng.normal(0, 15, 3) + rng.uniform(15, 45) * ripples[..., None])


TEXTURES: dict[str, Callable[[np.random.Generator, Size], Image.Image]] = {
    "noise": _noise,
    "grain": _grain,
    "binary": _binary,
    "splatter": _splatter,
    "marble": _marble,
    "grass": _grass,
    "fur": _fur,
    "sky": _sky,
    "gravel": _gravel,
    "weave": _weave,
    "wood": _wood,
    "water": _water,
}
