"""One view of a large image: where its page lies, how many pixels a view has, and a region made into an image of whole cells.

Views (detail.py) and cells of different sizes (mixed.py) both start from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.layer.inference import LayerPredictor
from arr_coc.relevance.regions import MAX_ANGLE, Page, find_page
from arr_coc.relevance.selector import ArrCoc, is_sure
from arr_coc.relevance.straighten import Pose
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.selectors.cues import EmbeddingScorer
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid
from arr_coc.types.pyramid import Pyramid, Region, View

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

VIEW_CELLS = 1024  # of a region: what a model reads of an ordinary image
MIN_GAIN = 1.25  # how much larger a region must be shown than the whole image would be
MAX_SCALE = 1.0  # pixels shown per original pixel
LEGIBLE = 12.0  # px, the height of letters: smaller print is looked at closer
REDUCED = 1024  # px, the longer side of the image that regions are found on
EVERYTHING = "whole: the question is about all of the image, so all of it is shown at a coarse scale, without holes"


def page_in_pose(vlm: VLM, pyramid: Pyramid, reduced: Any, pose: Pose) -> Page | None:
    """The page on a large image. A page that is tilted a little is found around its text, whatever surrounds it; a page that is
    turned or in perspective is found the same way after it is straightened."""
    turned = pose.region
    if turned is None or (turned.quad is None and abs((turned.angle + 180) % 360 - 180) <= MAX_ANGLE):
        page = find_page(TextureArray.from_image(reduced, embeddings=vlm.embeddings), pyramid.size)
        if page is None or turned is None or page.region.angle:
            return page
        turned = Region.around(pyramid.size, turned.angle)
    scale = reduced.size[0] / pyramid.size[0]
    shown = tuple(max(1, round(side * scale)) for side in turned.size)
    picture = pyramid.crop(turned, (shown[0], shown[1]))
    size = (round(turned.size[0]), round(turned.size[1]))
    page = find_page(TextureArray.from_image(picture, embeddings=vlm.embeddings), size)
    return None if page is None else Page(turned.inside(page.region), page.share)


def view_pixels(vlm: VLM) -> tuple[float, float, int]:
    """How many pixels one view has, how many the model's processor allows, and the side of a cell."""
    processor = vlm.adapter.image_processor
    cell = int(getattr(processor, "patch_size", 14) or 14) * int(getattr(processor, "merge_size", 2) or 2)
    size = getattr(processor, "size", None) or {}
    most = size.get("longest_edge") if isinstance(size, Mapping) else getattr(size, "longest_edge", None)
    room = float(VIEW_CELLS * cell**2)
    if most is None or most <= 16 * cell**2:  # a side, not an area: the family has its own tiles
        return room, 0.0, cell
    return min(room, most), float(most), cell


class ViewMaker:
    """Makes the views of one large image."""

    def __init__(self, vlm: VLM, pyramid: Pyramid, cell: int, number: int) -> None:
        self.vlm, self.pyramid, self.cell, self.number = vlm, pyramid, cell, number

    def make(self, region: Region, role: str, pixels: float, why: str = "") -> ImageSource:
        """A region as an image of whole cells with at most `pixels`, no larger than the original shows it."""
        width, height = region.size
        scale, whole = min(MAX_SCALE, math.sqrt(pixels / (width * height))), region.is_whole
        to_cells = round if whole else math.ceil  # a region grows to whole cells, the whole image cannot
        while True:
            cells = [max(1, to_cells(side * scale / self.cell - 1e-6)) for side in (width, height)]
            if cells[0] * cells[1] * self.cell**2 <= pixels or max(cells) == 1:
                break
            scale *= 0.99
        size = (cells[0] * self.cell, cells[1] * self.cell)
        if not whole:
            region = region.resized((size[0] / scale, size[1] / scale))
        picture = self.pyramid.crop(region, size)
        view = View(region, size, role, self.number, why)
        return ImageSource(
            picture, size, self.vlm.embeddings, notes=(*self.pyramid.notes, f"shown as {view}"), view=view
        )

    def cells_of(self, size: tuple[int, int]) -> int:
        """How many cells the model's processor makes of an image of whole cells, which it enlarges to the fewest it takes."""
        limits = getattr(self.vlm.adapter.image_processor, "size", None) or {}
        least = limits.get("shortest_edge") if isinstance(limits, Mapping) else getattr(limits, "shortest_edge", None)
        larger = math.sqrt(max(1.0, (least or 0) / (size[0] * size[1])))
        if least is None or least < self.cell**2:  # a side, not an area: the family has its own tiles
            larger = 1.0
        return math.prod(math.ceil(side * larger / self.cell - 1e-6) for side in size)

    def relevance(self, source: ImageSource, question: str) -> torch.Tensor | None:
        """The relevance `[h, w]` of a view's cells before anything is encoded; None where nothing relates them to the question."""
        vlm = self.vlm
        width, height = source.picture.size
        grid = Grid(1, max(1, height // self.cell), max(1, width // self.cell))
        selection = SelectionInput(
            grid=grid,
            k=None,
            candidates=torch.arange(grid.n),
            question=Question(question, vlm.prompter.ids(question), vlm.adapter.embed),
            source=source,
            scorer=None if vlm.embeddings is None else EmbeddingScorer(vlm.embeddings),
            layer=None if vlm.layer is None else LayerPredictor(vlm.layer, vlm.adapter.device),
            universal=vlm.universal,
            mass=1.0,
        )
        found = ArrCoc().select(selection)
        if not is_sure(found):
            return None
        assert found.relevance is not None
        return found.relevance.view(grid.h, grid.w)
