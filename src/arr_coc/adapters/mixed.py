"""One prompt image whose cells have different sizes: its pixels, its tokens in the prompt, and their positions.

Each level of a `Levels` is an image of its own for the processor and the vision encoder, at its own scale; in the prompt, all
of them are one image, level after level, the finest first, so that fine cells are read before anything coarse. Their positions
are those of one common grid (`Levels.positions`). The rest of the prompt has the positions that the model itself gives it
around an image of the common grid's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from arr_coc.adapters.base import Inputs, Visual
from arr_coc.adapters.processor import TOKEN_COUNTS, PromptProcessor, VisionInputs
from arr_coc.errors import PromptError
from arr_coc.types.grid import Cells
from arr_coc.types.levels import Levels

LEVELS = "image_levels"  # among a prompt's inputs: the `Levels` of each image, or None for an ordinary one
PIXELS, SIZES = "pixel_values", "image_grid_thw"


def own_grid(image_processor: Any, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of cells that a Qwen processor makes of an image of `size` (width, height)."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    cell, limits = image_processor.patch_size * image_processor.merge_size, image_processor.size
    try:
        height, width = smart_resize(
            size[1], size[0], factor=cell, min_pixels=limits["shortest_edge"], max_pixels=limits["longest_edge"]
        )
    except ValueError as error:
        raise PromptError(f"the processor refused the pictures: {error}") from error
    return height // cell, width // cell


def process(
    prompter: PromptProcessor,
    images: Sequence[Sequence[Any]],
    levels: Sequence[Sequence[tuple[Levels, Sequence[Any]] | None]],
    videos: Sequence[Sequence[Any]],
    fps: float,
) -> VisionInputs:
    """`PromptProcessor.process` where some images come as levels, each with one picture of whole cells for every level."""
    rows = [
        [image for image, given in zip(some, of, strict=True) if given is None]
        for some, of in zip(images, levels, strict=True)
    ]
    plain = prompter.process(rows, videos, fps)
    tensors = {name: value for name, value in plain.tensors.items() if name not in (PIXELS, SIZES, TOKEN_COUNTS)}
    flat = [given for row in levels for given in row]
    sizes = iter(plain.tensors.get(SIZES, torch.zeros(0, 3, dtype=torch.long)))
    pixels, texts = plain.tensors.get(PIXELS), iter(plain.texts.get("image", ()))
    token, at = prompter.fillers["image"], 0
    found: list[torch.Tensor] = []
    grids: list[torch.Tensor] = []
    filled: list[str] = []
    for given in flat:
        if given is None:
            size = next(sizes)
            count = int(size.prod())
            assert pixels is not None
            found.append(pixels[at : at + count])
            grids.append(size[None])
            filled.append(next(texts))
            at += count
            continue
        made = prompter.processor.image_processor(images=list(given[1]), do_resize=False, return_tensors="pt")
        found.append(made[PIXELS])
        grids.append(made[SIZES])
        filled.append(token * given[0].n)
    tensors |= {
        PIXELS: torch.cat(found),
        SIZES: torch.cat(grids),
        LEVELS: tuple(None if given is None else given[0] for given in flat),
        TOKEN_COUNTS: torch.tensor([text.count(token) for text in filled]),
    }
    return VisionInputs(tensors, {**plain.texts, "image": filled})


def join_levels(grids: list[Cells], levels: Sequence[Levels | None]) -> list[Cells]:
    """The grid of each image, from one grid for each ordinary image and for each level of another."""
    left = iter(grids)
    found: list[Cells] = []
    for one in levels:
        views = [next(left) for _ in range(1 if one is None else len(one.views))]
        found.append(views[0] if one is None else one)
    return found


def positions(
    inputs: Inputs, visuals: Sequence[Visual], merge: int, token: int, own: Callable[[Inputs], torch.Tensor]
) -> torch.Tensor:
    """Every token's position `[3, B, T]`.

    `own`: the model's own positions of a prompt of ordinary images; `token`: that of an image.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    rows = [
        _common_row(ids[row], mask[row].bool(), [v for v in visuals if v.row == row and isinstance(v.grid, Levels)], token)
        for row in range(len(ids))
    ]  # fmt: skip
    width = max(len(one) for one, _, _ in rows)
    common, seen = ids.new_zeros(len(rows), width), mask.new_zeros(len(rows), width)
    for row, (one, _, _) in enumerate(rows):
        common[row, width - len(one) :], seen[row, width - len(one) :] = one, 1
    plain = {name: value for name, value in inputs.items() if name != LEVELS}
    sizes = _common_sizes(inputs[SIZES], inputs[LEVELS], merge)
    found = own({**plain, "input_ids": common, "attention_mask": seen, SIZES: sizes})
    inside = {
        id(one): one.positions(torch.arange(one.n)) for one in inputs[LEVELS] if one is not None
    }  # row and column of each cell
    whole = not any(one.is_floating_point() for one in inside.values())
    out = torch.zeros(3, *ids.shape, dtype=found.dtype if whole else torch.float32)
    for row, (one, places, starts) in enumerate(rows):
        first, known = width - len(one), places >= 0
        out[:, row, known] = found[:, row, places[known] + first].to(out.dtype)
        for visual, start in starts:
            origin, own_places = found[:, row, first + start, None], inside[id(visual.grid)].T
            out[:, row, visual.places] = origin.to(out.dtype)
            out[1:, row, visual.places] += own_places.to(out.dtype)
    return out


def _common_row(
    ids: torch.Tensor, mask: torch.Tensor, mixed: Sequence[Visual], token: int
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[Visual, int]]]:
    """A row with an ordinary image of the common grid's size in place of each image of levels, and without padding.

    Returns its ids; where each token of the row is in it `[T]`, -1 for padding and for images of levels; and their starts.
    """
    stays = mask.clone()
    for visual in mixed:
        stays[visual.places] = False
    places, parts, starts, at, length = torch.full(ids.shape, -1), [], [], 0, 0
    ends = [*(int(visual.places[0]) for visual in mixed), len(ids)]
    for number, end in enumerate(ends):
        kept = at + stays[at:end].nonzero()[:, 0]
        places[kept] = length + torch.arange(len(kept))
        parts.append(ids[kept])
        length += len(kept)
        if number < len(mixed):
            grid = mixed[number].grid
            assert isinstance(grid, Levels)
            starts.append((mixed[number], length))
            parts.append(ids.new_full((math.prod(grid.extent),), token))
            length += len(parts[-1])
            at = int(mixed[number].places[-1]) + 1
    return torch.cat(parts), places, starts


def _common_sizes(sizes: torch.Tensor, levels: Sequence[Levels | None], merge: int) -> torch.Tensor:
    """The patch grid of each image, that of the common grid where it comes as levels: `[images, 3]`."""
    found, at = [], 0
    for one in levels:
        if one is None:
            found.append(sizes[at])
        else:
            height, width = one.extent
            found.append(torch.tensor([1, height * merge, width * merge]))
        at += 1 if one is None else len(one.views)
    return torch.stack(found)
