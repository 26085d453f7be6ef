"""Level of detail: a large image is shown as views, each at a scale of its own, at the price of one small image.

    reduced image -> text -> region (upright, at a larger scale) -> closer, where the print is still small -> views

A view is an ordinary image of the prompt, so that every family can read it, and glance and gaze prune it as any other. A model
that was trained on several images gets an overview of the whole image first; its budget is part of the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arr_coc.adapters.base import Visual
from arr_coc.adapters.processor import Message
from arr_coc.devices import Stopwatch
from arr_coc.errors import BudgetError, PromptError
from arr_coc.relevance.regions import best_window, is_about_everything, letter_height
from arr_coc.relevance.straighten import Pose, find_pose
from arr_coc.selectors.base import ImageSource
from arr_coc.types.budget import Budget, Limit, divide, limit
from arr_coc.types.image import image_size
from arr_coc.types.pyramid import STRAIGHTENED, Pyramid, Region, View
from arr_coc.vlm.mixed import mixed_source
from arr_coc.vlm.request import DETAILS, Request, SelectionRequest, check_straighten
from arr_coc.vlm.view import (
    EVERYTHING,
    LEGIBLE,
    MAX_SCALE,
    MIN_GAIN,
    REDUCED,
    VIEW_CELLS,
    ViewMaker,
    page_in_pose,
    view_pixels,
)

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

OVERVIEW_CELLS = 256
OVERVIEW_SHARE = 0.125  # of the budget
MIN_OVERVIEW = 8  # cells: with fewer, an overview shows nothing
LARGE = 1_600_000  # px: smaller images are shown as they are under "auto"
MAX_ENLARGE = 2.0  # pixels shown per original pixel of a straightened image
MIN_ENLARGE = 1.2  # closer by less than this is not worth what it leaves out


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
    maker, whole = ViewMaker(vlm, pyramid, cell, number), Region.whole(size, upright)
    if is_about_everything(question):
        read = limit(budget, VIEW_CELLS)
        if detail == "auto" and (read.k is None or read.everything):
            return None
        return [_whole(maker, whole, min(room, (read.k or VIEW_CELLS) * cell**2), budget)]
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


def _may_have_views(image: Any, detail: str) -> bool:
    """Whether an image is of a kind that has a size, and large enough."""
    size = None if detail == "off" else image_size(image)
    return size is not None and (detail != "auto" or size[0] * size[1] > LARGE)


def _may_be_straightened(image: Any, straighten: str) -> bool:
    return straighten != "off" and image_size(image) is not None


def _closer(
    maker: ViewMaker, page: ImageSource, enlarge: float, question: str, room: float
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


def _whole(maker: ViewMaker, whole: Region, pixels: float, budget: Any) -> ImageSource:
    """All of an image, at so coarse a scale that every cell of it can be read. A processor may not make it that coarse."""
    made = maker.make(whole, "overview", pixels, EVERYTHING)
    assert made.view is not None
    cells = maker.cells_of(made.view.size)
    if cells * maker.cell**2 <= pixels:
        return made
    made.view = replace(made.view, why="")
    made.notes = (
        *made.notes,
        f"budget of {budget}: the model's processor makes at least {cells} cells of this image, so places are left out",
    )
    return made


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
    if whole.k == 0:
        return [0] * len(views)
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
