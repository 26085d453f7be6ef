"""`detail="mixed"`: one prompt image whose cells have different sizes.

    page -> levels (its scale, a half, a quarter, ...) -> relevance, on the page -> tiling -> encode the chosen cells -> prompt

The page (the part with text, upright) is shown at the scale that its print needs, what surrounds it at coarser scales. The
relevance of the page's cells is found before anything is encoded, as in a glance; the tiling then spends the budget, so that
what is encoded is what is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from arr_coc.adapters.base import Visual
from arr_coc.adapters.mixed import own_grid, process
from arr_coc.adapters.processor import PromptProcessor, VisionInputs
from arr_coc.errors import BudgetError, PromptError, SelectorError
from arr_coc.relevance.regions import is_about_everything, letter_height
from arr_coc.relevance.selector import is_sure
from arr_coc.relevance.straighten import Pose
from arr_coc.relevance.tiling import Tiling, tile
from arr_coc.selectors.base import Choice, Downscale, ImageSource, SelectionInput, Selector
from arr_coc.selectors.registry import call_glance
from arr_coc.types.budget import Budget, limit
from arr_coc.types.grid import Grid
from arr_coc.types.levels import Levels
from arr_coc.types.pyramid import Pyramid, Region, View
from arr_coc.vlm.request import SelectionRequest
from arr_coc.vlm.view import (
    EVERYTHING,
    LEGIBLE,
    MAX_SCALE,
    MIN_GAIN,
    REDUCED,
    ViewMaker,
    page_in_pose,
    view_pixels,
)

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

ROLE = "mixed"  # of its view
MAX_FINER = 2.0  # how much larger than in a view the page is shown at most
# Height of letters where the model's own scale is no smaller, and pixels shown per original pixel.
LARGER = (LEGIBLE, 2.0)
MIN_FINER = 1.2  # larger by less than this is not worth a level
COARSEST = 32  # cells: of the coarsest level, which shows all of the image
MAX_COARSER = 4  # levels: 1/2, 1/4, 1/8 and 1/16 of the finest
MAX_POSITIONS = 96  # along a side of the page: beyond, its finest cells are less than 1 apart
STRETCH = 1.1  # how far a whole image of few cells may be out of shape, so that its cells are as many as the budget
EVENLY = ("describe", "void")  # rules of a choice that mean all of the image


class MixedSource(ImageSource):
    """An image at several scales, and what its relevance is found on."""

    def __init__(
        self,
        levels: Levels,
        pictures: Sequence[Image.Image],
        reference: ImageSource,
        finer: tuple[float, float],
        inside: torch.Tensor,
        usual: int,
        view: View,
        notes: tuple[str, ...],
    ) -> None:
        """`pictures`: one for each level. `reference`: the page in about as many cells as a model usually reads, from the same
        corner as level 0, which has `finer` times as many cells, down and across. `inside` `[height, width]`: the finest cells on the image. `usual`: how
        many cells the model's own processor makes of the image."""
        super().__init__(reference.picture, view.region.original, reference.embeddings, notes=notes, view=view)
        self.levels, self.pictures, self.reference = levels, pictures, reference
        self.finer, self.inside, self.usual = finer, inside, usual

    def texture(self, watch: Any = None) -> Any:
        return self.reference.texture(watch)

    @property
    def grid(self) -> Grid:
        """The reference's cells."""
        width, height = self.reference.picture.size
        side = self.view.size[0] // self.levels.width if self.view is not None else 1
        return Grid(1, height // side, width // side)

    def on_page(self, values: torch.Tensor) -> torch.Tensor:
        """Values `[n]` of the reference's cells as those of level 0: `[h, w]`."""
        page, grid = self.levels.views[0], self.grid
        plane = values.double().view(1, 1, grid.h, grid.w)
        axes = [
            (torch.arange(count).double() + 0.5) / (finer * length) * 2 - 1
            for count, finer, length in zip((page.h, page.w), self.finer, (grid.h, grid.w), strict=True)
        ]
        y, x = torch.meshgrid(*axes, indexing="ij")
        places = torch.stack([x, y], -1)[None]
        found = F.grid_sample(plane, places, mode="bilinear", padding_mode="border", align_corners=False)[0, 0]
        return torch.where((x < 1) & (y < 1), found, 0.0)  # level 0 may be a row or a column larger than the page

    def on_levels(self, page: torch.Tensor) -> torch.Tensor:
        """Values `[h, w]` of level 0 as those of all cells `[N]`: the mean of what a cell covers, 0 outside the page."""
        levels = self.levels
        side = 2**levels.coarser
        plane = torch.zeros(-(-levels.height // side) * side, -(-levels.width // side) * side, dtype=torch.double)
        plane[levels.top : levels.top + page.shape[0], levels.left : levels.left + page.shape[1]] = page
        found = [page.flatten()]
        for level, view in enumerate(levels.views[1:], start=1):
            found.append(F.avg_pool2d(plane[None, None], 2**level)[0, 0, : view.h, : view.w].flatten())
        return torch.cat(found).float()


class Tiles(Selector):
    """A selector's relevance, spent on cells of different sizes. Other images are chosen from by the selector itself."""

    early = True  # what is encoded is what is read
    glances = True
    kinds = ("image", "video")

    def __init__(self, base: Selector) -> None:
        self.base, self.name = base, base.name

    def before_encoding(self, selection: SelectionInput) -> Choice | Downscale | torch.Tensor:
        source = selection.source
        if not isinstance(source, MixedSource):
            return self.base.before_encoding(selection)
        levels = source.levels
        if levels.coarser == 0 and source.view is not None and source.view.why == EVERYTHING:
            return Choice(selection.candidates, strategy=EVERYTHING, auto=levels.n)
        chosen, why = self._on_reference(selection, source)
        even = is_about_everything(selection.question.text) or chosen.rule in EVENLY
        k = selection.k
        if k is None:
            k = chosen.auto if chosen.auto is not None else len(chosen.keep)
            k = source.usual if chosen.rule == "everything" else k
        values = chosen.relevance
        if values is None:
            values = torch.zeros(source.grid.n).index_fill_(0, chosen.keep, 1.0)
        relevance = source.on_page(values).clamp_min(0)
        # Nothing may be left out where nothing tells what matters. A selector without scores says so itself.
        everywhere = even or (chosen.relevance is not None and not is_sure(chosen))
        tiling = tile(levels, relevance, source.inside, k, holes=False if everywhere else None, even=even)
        return Choice(
            tiling.cells,
            relevance=source.on_levels(relevance),
            scores={name: source.on_levels(source.on_page(one)) for name, one in chosen.scores.items()},
            tensions=chosen.tensions,
            strategy="; ".join(
                part for part in (why and f"replaced ({why})", chosen.strategy, _said(source, tiling, even)) if part
            ),
            rule=chosen.rule,
            coupled_by=chosen.coupled_by,
            auto=len(tiling.cells),
        )

    def _on_reference(self, selection: SelectionInput, source: MixedSource) -> tuple[Choice, str]:
        """The selector's own choice on the page."""
        grid = source.grid
        inner = replace(
            selection,
            grid=grid,
            k=None if selection.k is None else min(selection.k, grid.n),
            candidates=torch.arange(grid.n),
            source=source.reference,
            tokens=None,
            probe=None,
        )
        found, why = call_glance(self.base, inner)
        if isinstance(found, Downscale):
            raise SelectorError(f"selector {self.name!r} wants smaller images, which have cells of one size each")
        return found, why


def _said(source: MixedSource, tiling: Tiling, even: bool) -> str:
    """What a tiling shows, in words."""
    assert source.view is not None
    counts = torch.bincount(source.levels.level(tiling.cells), minlength=len(source.levels.views)).tolist()
    shown = ", ".join(
        f"{count} at scale {source.view.scale / 2**level:.2g}" for level, count in enumerate(counts) if count
    )
    if tiling.complete:
        rest = "the whole image is covered" + (", evenly and without holes" if even else "")
    else:
        rest = f"{100 * tiling.holes:.0f}% of the image is left out"
    return f"cells of different sizes: {shown or 'none'}; {rest}"


@dataclass(frozen=True)
class _Frame:
    """Where the cells of level 0 lie. Lengths are pixels of the original, unless they are cells."""

    region: Region  # the page: its left top corner is that of level 0
    unit: tuple[float, float]  # width and height of a cell
    height: int  # cells, of the whole image
    width: int
    page: tuple[int, int, int, int]  # top, left, height and width of level 0, in cells
    coarser: int

    def part(self, top: int, left: int, rows: int, columns: int) -> Region:
        """A rectangle of cells, from the frame's corner."""
        wide, high = self.unit
        x, y = (left - self.page[1]) * wide, (top - self.page[0]) * high
        found = self.region.part(x, y, x + columns * wide, y + rows * high)
        whole = Region.whole(found.original)
        same = not found.angle and np.allclose(found.centre, whole.centre) and np.allclose(found.size, whole.size)
        return whole if same else found

    @classmethod
    def around(cls, page: Region, unit: float, rows: int, columns: int) -> _Frame:
        """All of an image around a page of `rows` x `columns` cells, as upright as the page."""
        (width, height), size = page.original, torch.tensor(page.size, dtype=torch.float64)
        corners = torch.tensor([[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]])
        low, high = (page.place(corners) * size / unit).aminmax(dim=0)  # in cells from the page's corner
        across, down = (high - low.clamp_max(0)).tolist()
        coarser = _coarser(down, across)
        side = 2**coarser
        left, top = (math.ceil(max(0.0, -edge) / side - 1e-6) * side for edge in low.tolist())
        rows, columns = rows + rows % 2, columns + columns % 2  # whole cells of the next level
        right, bottom = (math.ceil(edge - 1e-6) for edge in high.tolist())
        return cls(
            page, (unit, unit), top + max(bottom, rows), left + max(right, columns), (top, left, rows, columns), coarser
        )

    @classmethod
    def all_of(cls, size: tuple[int, int], rows: int, columns: int) -> _Frame:
        """All of an image as the page, in `rows` x `columns` cells."""
        unit = size[0] / columns, size[1] / rows
        return cls(Region.whole(size), unit, rows, columns, (0, 0, rows, columns), _coarser(rows, columns))


def _coarser(rows: float, columns: float) -> int:
    """How many coarser levels an image gets: until the coarsest is small."""
    for level in range(MAX_COARSER):
        if math.ceil(rows / 2**level) * math.ceil(columns / 2**level) <= COARSEST:
            return level
    return MAX_COARSER


def mixed_source(
    vlm: VLM, image: Any, question: str = "", budget: Any = "auto", number: int = 0, pose: Pose | None = None
) -> MixedSource | None:
    """One image as levels; None where all of it is read, at the model's own scale. `pose`: how its page lies."""
    check_mixes(vlm)
    pyramid, processor = Pyramid(image), vlm.adapter.image_processor
    cell = processor.patch_size * processor.merge_size
    own = own_grid(processor, pyramid.size)
    read = limit("auto" if isinstance(budget, list | tuple) else budget, own[0] * own[1])
    about_all = is_about_everything(question)
    if read.everything if not about_all else read.k is None or read.everything:
        return None
    if about_all:
        grid = _shrunk(own, read.k or 1)
        frame, step = _Frame.all_of(pyramid.size, *grid), 1.0
        frame = replace(frame, coarser=0)
        picture = pyramid.crop(Region.whole(pyramid.size), (grid[1] * cell, grid[0] * cell))
        reference, finer = ImageSource(picture, picture.size, vlm.embeddings), (1.0, 1.0)
    else:
        frame, reference, finer, step = _page_frame(vlm, pyramid, own, cell, number, pose or Pose())
    while max(frame.page[2:]) * step > MAX_POSITIONS:
        step /= 2
    levels = Levels.make(frame.height, frame.width, frame.page, frame.coarser, step)
    pictures = _pictures(pyramid, frame, levels, cell)
    whole = frame.part(0, 0, frame.height, frame.width)
    view = View(whole, (frame.width * cell, frame.height * cell), ROLE, number, EVERYTHING if about_all else "")
    return MixedSource(
        levels, pictures, reference, finer, _inside(frame, whole), own[0] * own[1], view,
        (*pyramid.notes, f"shown as {view}"),
    )  # fmt: skip


def _pictures(pyramid: Pyramid, frame: _Frame, levels: Levels, cell: int) -> list[Image.Image]:
    """One picture of whole cells for each level. Those beyond the second are reduced from it."""
    found = []
    for level, view in enumerate(levels.views[:2]):
        top, left = frame.page[:2] if level == 0 else (0, 0)
        shown = frame.part(top, left, view.h * 2**level, view.w * 2**level)
        found.append(pyramid.crop(shown, (view.w * cell, view.h * cell)))
    for level, view in enumerate(levels.views[2:], start=1):
        pixels, side = np.asarray(found[1]), 2**level
        missing = [(0, count * side * cell - have) for count, have in zip((view.h, view.w), pixels.shape, strict=False)]
        found.append(Image.fromarray(np.pad(pixels, (*missing, (0, 0)), "edge")).reduce(side))
    return found


def _page_frame(
    vlm: VLM, pyramid: Pyramid, own: tuple[int, int], cell: int, number: int, pose: Pose
) -> tuple[_Frame, ImageSource, tuple[float, float], float]:
    """Where the finest cells lie, what relevance is found on, how much finer they are than its cells, and their step."""
    size = pyramid.size
    reduced = pyramid.level(pyramid.level_for(REDUCED / max(size)))
    page = page_in_pose(vlm, pyramid, reduced, pose)
    own_scale = min(own[1] * cell / size[0], own[0] * cell / size[1])
    reference = None
    if page is not None:
        reference = ViewMaker(vlm, pyramid, cell, number).make(page.region, "region", view_pixels(vlm)[0])
    if reference is None or reference.view is None or reference.view.scale < MIN_GAIN * own_scale:
        picture = pyramid.crop(Region.whole(size), (own[1] * cell, own[0] * cell))
        reference = ImageSource(picture, size, vlm.embeddings)
        finer = _finer(reference, own_scale, LARGER) if page is not None else min(MAX_FINER, MAX_SCALE / own_scale)
        finer = finer if finer >= MIN_FINER else 1.0
        rows, columns = round(own[0] * finer), round(own[1] * finer)
        by_side = rows / own[0], columns / own[1]
        return _Frame.all_of(size, rows, columns), reference, by_side, 1.0 if page is not None else 1 / finer
    finer = _finer(reference, reference.view.scale, (LEGIBLE, MAX_SCALE))
    columns, rows = (math.ceil(side / cell * finer - 1e-6) for side in reference.picture.size)
    frame = _Frame.around(reference.view.region, cell / (reference.view.scale * finer), rows, columns)
    return frame, reference, (finer, finer), 1.0


def _finer(reference: ImageSource, scale: float, wanted: tuple[float, float]) -> float:
    """How much larger than on the reference the finest cells show the page, as its print needs it.

    `wanted`: the height of letters in pixels, and how many pixels are shown for one of the original at most.
    """
    height, most = wanted
    letters = letter_height(np.asarray(reference.picture.convert("L"), np.float32) / 255)
    finer = min(MAX_FINER, height / (letters or height), most / scale)
    return finer if finer >= MIN_FINER else 1.0


def _shrunk(grid: tuple[int, int], cells: int) -> tuple[int, int]:
    """Rows and columns of about the same shape, at most `cells` together, and as many as that shape allows."""
    high, wide = grid
    if high * wide <= cells:
        return grid
    least = max(1, math.floor(high * math.sqrt(cells / (high * wide))))
    found = []
    for rows in {least, min(high, cells, least + 1)}:
        even = rows * wide / high  # columns of exactly the same shape
        columns = max(1, min(wide, cells // rows, max(round(even), math.floor(even * STRETCH))))
        if columns * STRETCH >= even or rows == least:
            found.append((rows * columns, -abs(math.log(columns / even)), rows, columns))
    return max(found)[2:]


def _inside(frame: _Frame, whole: Region) -> torch.Tensor:
    """Which of the finest cells `[height, width]` have their centre on the image, and at least the one in the middle."""
    boxes = Grid(1, frame.height, frame.width).boxes(torch.arange(frame.height * frame.width), (1, 1)).double()
    corners = whole.corners(boxes * torch.tensor(whole.size * 2, dtype=torch.float64))
    x, y = corners.mean(1).unbind(-1)
    width, height = whole.original
    found = ((x >= 0) & (x <= width) & (y >= 0) & (y <= height)).view(frame.height, frame.width)
    found[frame.height // 2, frame.width // 2] |= not bool(found.any())
    return found


def preprocess_mixed(
    prompter: PromptProcessor,
    images: Sequence[Sequence[ImageSource]],
    videos: Sequence[Sequence[ImageSource]],
    fps: float,
) -> VisionInputs:
    """The processor's output for images of which some are levels."""
    levels = [
        [(one.levels, one.pictures) if isinstance(one, MixedSource) else None for one in row] for row in images
    ]  # fmt: skip
    return process(
        prompter, [[one.picture for one in row] for row in images], levels,
        [[one.picture for one in row] for row in videos], fps,
    )  # fmt: skip


def tiled(
    selection: SelectionRequest, visuals: Sequence[Visual], sources: Sequence[ImageSource | None]
) -> SelectionRequest:
    """The request with a count for each image of levels, and a selector that spends it on tiles.

    A share is of the cells that the model's own processor makes of the image. What is encoded is what is read: a smaller
    glance lowers the budget.
    """
    if selection.allocation is not None:
        return selection
    if selection.shared:
        raise BudgetError("expected a budget for each picture with detail='mixed', got shared=True: leave it out")
    budgets = []
    for number, source in enumerate(sources):
        given = [_of(one, number, len(visuals), name) for name, one in (("budget", selection.budget), ("glance", selection.glance))]  # fmt: skip
        if not isinstance(source, MixedSource):
            budgets.append(given[0])
            continue
        most = source.levels.views[0].n
        counts = [_count(one, source.usual, most, name) for one, name in zip(given, ("budget", "glance"), strict=True)]
        budgets.append(min((one for one in counts if isinstance(one, int)), default=counts[0]))
    return replace(
        selection, budget=budgets, glance="auto", selector=Tiles(selection.glance_selector),
        glance_selector=Tiles(selection.glance_selector),
    )  # fmt: skip


def _of(given: Budget | Sequence[Budget], number: int, count: int, what: str) -> Budget:
    if not isinstance(given, list | tuple):
        return given  # type: ignore[return-value]
    if len(given) != count:
        raise BudgetError(f"expected one {what} for each of the {count} pictures, got {len(given)}")
    return given[number]


def _count(given: Budget, usual: int, most: int, what: str) -> Budget:
    """A count of cells; what the selector decides (auto, a mass) stays as it is."""
    if isinstance(given, int):
        limit(given, usual, what)
        return min(given, most)
    known = limit(given, usual, what)
    return given if known.k is None else known.k


def check_mixes(vlm: VLM) -> None:
    """Raise where a model cannot read one image of different cells."""
    if not vlm.adapter.mixes:
        raise PromptError(
            f"expected a model of the Qwen families for detail='mixed', got {vlm.adapter.family}, whose positions are not "
            "rows and columns of one grid: ask with detail='views'"
        )
