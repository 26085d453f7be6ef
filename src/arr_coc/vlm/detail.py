"""Level of detail: a large image is shown as views, each at a scale of its own, at the price of one small image.

    reduced image -> text -> region (upright, at a larger scale) -> closer, where the print is still small -> views

A view is an ordinary image of the prompt, so that every family can read it, and glance and gaze prune it as any other. A model
that was trained on several images gets an overview of the whole image first; its budget is part of the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from arr_coc.adapters.base import Visual
from arr_coc.adapters.processor import Message
from arr_coc.devices import Stopwatch
from arr_coc.errors import BudgetError, PromptError
from arr_coc.layer.inference import LayerPredictor
from arr_coc.relevance.regions import MAX_ANGLE, Page, best_window, find_page, is_about_everything, letter_height
from arr_coc.relevance.selector import ArrCoc, is_sure
from arr_coc.relevance.straighten import Pose, find_pose
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.selectors.cues import EmbeddingScorer
from arr_coc.texture import TextureArray
from arr_coc.types.budget import Budget, Limit, divide, limit
from arr_coc.types.grid import Grid
from arr_coc.types.image import image_size
from arr_coc.types.pyramid import STRAIGHTENED, Pyramid, Region, View
from arr_coc.vlm.request import DETAILS, Request, SelectionRequest, check_straighten

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

VIEW_CELLS = 1024  # of a region: what a model reads of an ordinary image
OVERVIEW_CELLS = 256
OVERVIEW_SHARE = 0.125  # of the budget
MIN_OVERVIEW = 8  # cells: with fewer, an overview shows nothing
LARGE = 1_600_000  # px: smaller images are shown as they are under "auto"
MIN_GAIN = 1.25  # how much larger a region must be shown than the whole image would be
MAX_SCALE = 1.0  # pixels shown per original pixel
MAX_ENLARGE = 2.0  # pixels shown per original pixel of a straightened image
LEGIBLE = 12.0  # px, the height of letters: smaller print is looked at closer
MIN_ENLARGE = 1.2  # closer by less than this is not worth what it leaves out
REDUCED = 1024  # px, the longer side of the image that regions are found on
EVERYTHING = "whole: the question is about all of the image, so all of it is shown at a coarse scale, without holes"


def show_views(vlm: VLM, request: Request, watch: Stopwatch) -> Request:
    """The request with every large image replaced by its views, in `images` and in the conversations."""
    every = [image for row in request.images for image in row]
    if not any(_may_have_views(one, request.detail) or _may_be_straightened(one, request.straighten) for one in every):
        return request
    assert request.questions is not None
    rows, talks, number = [], [], 0
    budgets = request.selection.budget
    with watch.stage("views"):
        for row, question, talk in zip(request.images, request.questions, request.conversations, strict=True):
            shown: list[Sequence[Any]] = []
            for image in row:
                budget = budgets[number] if isinstance(budgets, list | tuple) and number < len(budgets) else budgets
                found = views_of(vlm, image, request.detail, question, budget, number, request.straighten)
                shown.append([image] if found is None else found)
                number += 1
            rows.append(tuple(view for views in shown for view in views))
            talks.append(_repeat_images(talk, [len(views) for views in shown]))
    return replace(request, images=tuple(rows), conversations=tuple(talks))


def of_look(
    vlm: VLM, images: Sequence[Any], detail: str, question: str = "", budget: Any = "auto", straighten: str = "off"
) -> tuple[Any, ...]:
    """What a look shows of its images: for one question, or for any."""
    if detail not in DETAILS:
        raise PromptError(f"expected detail as one of {', '.join(DETAILS)}, got {detail!r}")
    check_straighten(straighten)
    found = [views_of(vlm, image, detail, question, budget, number, straighten) for number, image in enumerate(images)]
    return tuple(one for image, views in zip(images, found, strict=True) for one in (views or [image]))


def views_of(
    vlm: VLM,
    image: Any,
    detail: str,
    question: str = "",
    budget: Any = "auto",
    number: int = 0,
    straighten: str = "auto",
) -> list[ImageSource] | None:
    """The views of one image, or what it is straightened to; None where it is shown as it is.

    Without a question (a look), only the texture decides.
    """
    may_turn, may_enlarge = _may_be_straightened(image, straighten), _may_have_views(image, detail)
    if not may_turn and not may_enlarge:
        return None
    pyramid = Pyramid(image)
    size = pyramid.size
    reduced = pyramid.level(pyramid.level_for(REDUCED / max(size)))
    pose = find_pose(np.asarray(reduced.convert("L")), size) if may_turn else Pose()
    found: list[ImageSource] | None = None
    if detail == "mixed":
        from arr_coc.vlm.mixed import mixed_source

        mixed = mixed_source(vlm, image, question, budget, number, pose)
        found = None if mixed is None else [mixed]
    elif may_enlarge:
        found = _enlarged(vlm, pyramid, reduced, pose, detail, question, budget, number)
    if found is None and (pose.region is not None or pose.doubt):
        found = [_straightened(vlm, pyramid, pose, number)]
    if found is None and may_turn and size == reduced.size:  # decoded already
        found = [ImageSource(reduced, size, vlm.embeddings, notes=pyramid.notes)]
    return found


def _straightened(vlm: VLM, pyramid: Pyramid, pose: Pose, number: int) -> ImageSource:
    """All of an image's text, upright, with as many pixels as the image has; with a doubt, the image as it is."""
    notes = (*pyramid.notes, *([f"not straightened: {pose.doubt}"] if pose.doubt else []))
    if pose.region is None:
        picture = pyramid.level(0)
        return ImageSource(picture, picture.size, vlm.embeddings, notes=notes)
    view = View(pose.region, straightened_size(pose.region, pyramid.size), STRAIGHTENED, number)
    notes = (*notes, f"shown as {view}")
    return ImageSource(pyramid.crop(pose.region, view.size), view.size, vlm.embeddings, notes=notes, view=view)


def straightened_size(region: Region, original: tuple[int, int]) -> tuple[int, int]:
    """The size at which a region is shown: as many pixels as the image has, at most `MAX_ENLARGE` times its scale."""
    width, height = region.size
    scale = min(MAX_ENLARGE, max(1.0, math.sqrt(original[0] * original[1] / (width * height))))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _enlarged(
    vlm: VLM, pyramid: Pyramid, reduced: Any, pose: Pose, detail: str, question: str, budget: Any, number: int
) -> list[ImageSource] | None:
    """The views of a large image in a known pose; None where they would not show its text larger."""
    room, own, cell = view_pixels(vlm)
    size = pyramid.size
    page = page_in_pose(vlm, pyramid, reduced, pose)
    if page is None and detail == "auto":
        return None
    upright = 0 if page is None else round(page.region.angle / 90) * 90 % 360
    maker, whole = _ViewMaker(vlm, pyramid, cell, number), Region.whole(size, upright)
    if is_about_everything(question):
        read = limit(budget, VIEW_CELLS)
        if detail == "auto" and (read.k is None or read.everything):
            return None
        return [maker.make(whole, "overview", min(room, (read.k or VIEW_CELLS) * cell**2), EVERYTHING)]
    region = maker.make(whole if page is None else page.region, "region", room)
    letters = None if page is None else letter_height(np.asarray(region.picture.convert("L"), np.float32) / 255)
    region, enlarged = _closer(maker, region, 2.0 if page is None else LEGIBLE / (letters or LEGIBLE), question, room)
    assert region.view is not None
    if detail == "auto":
        scale = math.sqrt(room / (size[0] * size[1]))  # of the whole image in one view
        if region.view.scale < MIN_GAIN * scale:
            return None
        if pose.region is not None:
            straight = straightened_size(pose.region, size)
            if straight[0] * straight[1] <= room and straight[0] > region.view.scale * pose.region.size[0]:
                return None  # straightened, its text is larger, at no higher price
        own_scale = min(1.0, math.sqrt(own / (size[0] * size[1])))  # of the model's own processor
        if (letters or 0.0) * enlarged < LEGIBLE and own_scale > region.view.scale:
            return None  # the print is too small in a view, and larger without
    views = [region]
    several = (getattr(vlm.model.config, "max_images", None) or 2) > 1  # whether the model reads several images
    if several and not region.view.region.is_whole:
        views.insert(0, maker.make(whole, "overview", min(room, OVERVIEW_CELLS * cell**2)))
    return _within_budget(views, budget)


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


def _may_have_views(image: Any, detail: str) -> bool:
    """Whether an image is of a kind that has a size, and large enough."""
    size = None if detail == "off" else image_size(image)
    return size is not None and (detail != "auto" or size[0] * size[1] > LARGE)


def _may_be_straightened(image: Any, straighten: str) -> bool:
    return straighten != "off" and image_size(image) is not None


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


class _ViewMaker:
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


def _closer(
    maker: _ViewMaker, page: ImageSource, enlarge: float, question: str, room: float
) -> tuple[ImageSource, float]:
    """The part of a page that the question is about, up to `enlarge` times as large, and how much larger it is.

    It is the page itself where the original has no more detail, or where nothing tells which part matters.
    """
    assert page.view is not None
    enlarge = min(enlarge, MAX_SCALE / page.view.scale)
    relevance = maker.relevance(page, question) if question and enlarge >= MIN_ENLARGE else None
    if relevance is None:
        return page, 1.0
    height, width = relevance.shape
    wide, high = width / enlarge, height / enlarge  # as many cells as before, at the larger scale
    left, top = best_window(relevance, (wide, high))
    left, top = min(left, width - wide), min(top, height - high)
    across, down = page.view.region.size[0] / width, page.view.region.size[1] / height
    part = page.view.region.part(left * across, top * down, (left + wide) * across, (top + high) * down)
    made = maker.make(part, "region", room)
    assert made.view is not None
    return made, made.view.scale / page.view.scale


def _within_budget(views: list[ImageSource], budget: Any) -> list[ImageSource]:
    """Without the overview where the budget is too small for it."""
    if len(views) == 1 or isinstance(budget, list | tuple):
        return views
    known = limit(budget, 2 * VIEW_CELLS).k
    if known is None or OVERVIEW_SHARE * known >= MIN_OVERVIEW:
        return views
    region = views[-1]
    region.notes = (*region.notes, f"budget of {budget}: too small for an overview, so the region alone is shown")
    return [region]


def split_budgets(
    selection: SelectionRequest, visuals: Sequence[Visual], sources: Sequence[ImageSource | None], can_glance: bool
) -> SelectionRequest:
    """The request with a budget and a glance for each visual: the views of one image share that image's.

    Under glance="auto" with a count or a share, as many cells of a view are encoded as are read, so that the price does not
    depend on the image's size. `can_glance`: False where all is encoded, for several questions or because the family or the
    selector cannot choose before encoding.
    """
    views = [None if source is None or _is_one_image(source.view) else source.view for source in sources]
    if not any(views) or selection.shared or selection.allocation is not None:
        return selection
    groups: dict[tuple[str, int], list[int]] = {}
    for index, view in enumerate(views):
        groups.setdefault(("visual", index) if view is None else ("image", view.image), []).append(index)
    budgets, glances = (
        _one_each(what, len(groups), name)
        for what, name in ((selection.budget, "budget"), (selection.glance, "glance"))
    )
    found: dict[int, tuple[Budget, Budget]] = {}
    for members, budget, glance in zip(groups.values(), budgets, glances, strict=True):
        shown = [view for view in (views[i] for i in members) if view is not None]
        if not shown:
            found[members[0]] = budget, glance
            continue
        sizes = [visuals[i].n for i in members]
        read, encoded = limit(budget, sum(sizes)), limit(glance, sum(sizes), "glance")
        automatic = encoded.k is None and encoded.mass is None
        if shown[0].why == EVERYTHING and read.everything and automatic:
            found[members[0]] = "all", "all"
            continue
        kept, made = _parts(read, budget, sizes, shown), _parts(encoded, glance, sizes, shown)
        for i, keep, encode in zip(members, kept, made, strict=True):
            if isinstance(keep, int):
                encode = keep if automatic and can_glance else max(encode, keep) if isinstance(encode, int) else encode
            found[i] = keep, encode
    order = range(len(visuals))
    each = [found[i][0] for i in order]
    if selection.selector.early:  # it spends its budget before encoding
        return replace(selection, budget=each)
    return replace(selection, budget=each, glance=[found[i][1] for i in order])


def _is_one_image(view: View | None) -> bool:
    """Whether a view is an image of its own, as a straightened one is, and no part of a large one."""
    return view is not None and view.role == STRAIGHTENED


def _parts(whole: Limit, given: Budget, sizes: list[int], views: Sequence[View]) -> list[Budget]:
    """The part of each view in a limit for all of them. What is no count, or says something in a note, is for each view."""
    if whole.k is None or whole.note or whole.everything:
        return [given] * len(views)
    overview = round(OVERVIEW_SHARE * whole.k) if len(views) > 1 else 0
    weights = [size if view.role == "region" else 0 for size, view in zip(sizes, views, strict=True)]
    rest = min(whole.k - overview, sum(weights)) if any(weights) else 0
    parts = divide(rest, weights) if any(weights) else [0] * len(sizes)
    left = whole.k - sum(parts)
    return [
        min(size, left) if view.role == "overview" else part
        for part, size, view in zip(parts, sizes, views, strict=True)
    ]


def _one_each(given: Budget | Sequence[Budget], images: int, what: str) -> list[Budget]:
    """A budget for each image of the caller."""
    if not isinstance(given, list | tuple):
        return [given] * images  # type: ignore[list-item]
    if len(given) != images:
        raise BudgetError(f"expected one {what} for each of the {images} pictures, got {len(given)}")
    return list(given)


def _repeat_images(talk: Sequence[Message], counts: Sequence[int]) -> tuple[Message, ...]:
    """A conversation in which each image's part stands once for each of its views."""
    left = iter(counts)
    changed: list[Message] = []
    for message in talk:
        content = message["content"]
        if not isinstance(content, str):
            content = [part for part in content for _ in range(next(left) if part.get("type") == "image" else 1)]
        changed.append({**message, "content": content})
    return tuple(changed)
