"""A case's picture in layers for a page: the picture once, what was kept and how hot each cell is as small pictures over it.

A layer has a pixel a cell, which the browser enlarges with sharp edges, so a page of many cases stays small; evidence is
drawn as lines.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.draw import overlay as view
from arr_coc.evaluation.data import Picture, Sample
from arr_coc.evaluation.notation import from_views, released, unpacked
from arr_coc.types.evidence import by_moment
from arr_coc.types.grid import WHOLE, Cells, Grid
from arr_coc.types.image import read_picture

SIDE = 640  # longest side of a shown picture, in pixels
FINE = 8  # pixels a cell where views lie over each other
DARK, WARM = 0.72, 0.85  # how opaque a layer is over a dropped cell, and over the hottest
MOMENTS = 3  # of a video, at most

Row = Mapping[str, Any]


class Pictures:
    """Every picture of a page once, as a style that cases refer to by class."""

    def __init__(self, side: int = SIDE) -> None:
        self.side = side
        self.styles: dict[tuple[str, int], str] = {}

    def name(self, picture: Picture, frame: int = 0) -> str:
        """The class of a picture, or of a video's frame."""
        key = (picture.name, frame)
        if key not in self.styles:
            self.styles[key] = _uri(_thumbnail(picture.frames[frame], self.side), "JPEG", quality=72)
        return f"b{list(self.styles).index(key)}"

    def css(self) -> str:
        return "".join(f".b{number}{{background-image:url({uri})}}" for number, uri in enumerate(self.styles.values()))


def moments(picture: Picture, row: Row) -> list[int]:
    """The moments of the grid that a page shows: those with evidence first, then evenly spaced ones."""
    grid = from_views(row["grid"])
    count = grid.t if isinstance(grid, Grid) else 1
    groups = by_moment(picture.samples[row["question"]].evidence, grid, len(picture.frames))
    wanted = list(dict.fromkeys(moment for group in groups for _, moment in group)) if len(groups) < count else []
    even = [count * (2 * number + 1) // (2 * MOMENTS) for number in range(MOMENTS)]
    return sorted(dict.fromkeys([*wanted, *even][:MOMENTS]))


def kept(row: Row, moment: int = 0) -> str:
    """A dark veil over every cell that was not kept."""
    grid = from_views(row["grid"])
    lit = torch.zeros(grid.n)
    lit[unpacked(row["keep"], grid.n)] = 1
    shown = _cells(grid, lit, moment).numpy()
    return _uri(Image.merge("LA", [Image.new("L", shown.shape[::-1], 8), _alpha((1 - shown) * DARK)]), "PNG")


def heat(row: Row, moment: int = 0) -> str:
    """Warm colour by what the selector said of each cell; roots of it, because attention has few large values."""
    grid = from_views(row["grid"])
    warm = _cells(grid, released(row["heat"]).sqrt(), moment)
    colour = Image.fromarray(view.colourise(warm, "ember", -0.35, 1.2))
    colour.putalpha(_alpha(warm.numpy() * WARM))
    return _uri(colour, "PNG")


def frames(picture: Picture, sample: Sample, row: Row, moment: int = 0) -> str:
    """The evidence as rectangles."""
    grid = from_views(row["grid"])
    boxes = {
        box for group in by_moment(sample.evidence, grid, len(picture.frames)) for box, when in group if when == moment
    }
    return "".join(
        f'<rect x="{x0:g}" y="{y0:g}" width="{x1 - x0:g}" height="{y1 - y0:g}"/>' for x0, y0, x1, y1 in sorted(boxes)
    )


def frame_of(picture: Picture, row: Row, moment: int) -> int:
    """The first of a video's frames that a moment holds."""
    grid = from_views(row["grid"])
    count = grid.t if isinstance(grid, Grid) else 1
    return min(moment * -(-len(picture.frames) // count), len(picture.frames) - 1)


def pane(picture: Picture, row: Row, layer: str, pictures: Pictures, moment: int = 0, words: str = "") -> str:
    """One picture with one layer over it."""
    width, height = picture.size
    base = pictures.name(picture, frame_of(picture, row, moment))
    lines = frames(picture, picture.samples[row["question"]], row, moment)
    return (
        f'<div class="pane {base}" style="aspect-ratio:{width}/{height}" role="img" aria-label="{words}">'
        f'{f"""<img alt="" src="{layer}">""" if layer else ""}<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none">{lines}</svg></div>'
    )


def _cells(grid: Cells, values: torch.Tensor, moment: int) -> torch.Tensor:
    """Values `[N]` as a plane: a pixel a cell, or several where views lie over each other."""
    if isinstance(grid, Grid) and grid.area == WHOLE:
        return values.view(grid.t, grid.h, grid.w)[moment]
    most = max(
        FINE * max(one.h / (one.area[3] - one.area[1]), one.w / (one.area[2] - one.area[0])) for one in grid.views
    )
    side = min(round(most), 512)
    return view.plane(view.by_view(grid, values, moment), (side, side))


def _alpha(opaque: np.ndarray) -> Image.Image:
    return Image.fromarray(np.round(opaque * 255).astype(np.uint8))


def _thumbnail(image: Any, side: int) -> Image.Image:
    pixels = read_picture(image, max_side=2 * side).pixels
    small = Image.fromarray(pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().numpy())
    small.thumbnail((side, side))
    return small


def _uri(image: Image.Image, form: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, form, optimize=True, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
