"""`arr_coc.realize`: a texture and a question to an allocation, with a model, an encoder, or neither."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import Encoder
from arr_coc.errors import AllocationError, ArrCocError
from arr_coc.relevance import cascade
from arr_coc.relevance.realizing import Settings, realized
from arr_coc.selectors.base import Sight, Words
from arr_coc.selectors.coupling import couple
from arr_coc.texture import TextureArray
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Budget, limit
from arr_coc.types.grid import Grid
from arr_coc.types.image import ImageLike

if TYPE_CHECKING:
    from arr_coc.vlm.look import Look
    from arr_coc.vlm.model import VLM

CELL = 28  # pixels of a cell where nobody names a grid


def realize(
    texture: TextureArray | ImageLike,
    question: str,
    grid: tuple[int, int] | Grid | None = None,
    budget: Budget = "auto",
    using: Any = None,
    *,
    look: Look | None = None,
    previous: Allocation | None = None,
    **settings: Any,
) -> Allocation:
    """Which cells of a picture matter for a question.

    `grid`: rows and columns of cells; a model knows its own. `budget`: a count, a share ("12.5%"), "mass 90%" (as few
    cells as hold that share of the relevance above its median), "auto" or "all".
    `using`: a wrapped model, or embeddings (or an encoder's name); None: the question is not used, and the result says so.
    `look`: what the model looked at already (`vlm.look(image)`), so that it encodes once for many questions. `previous`: an
    allocation to refine, for the next question about the same picture. Further settings are those of
    `arr_coc.realizing.Settings`.
    """
    if not isinstance(question, str):
        raise ArrCocError(f"expected a question as text, got {type(question).__name__}")
    seen = texture if isinstance(texture, TextureArray) else TextureArray.from_image(texture)
    known = _settings(settings)
    if previous is not None:
        seen = seen.supply(previous_relevance=remembered(previous))
    if using is None or isinstance(using, Embeddings | Encoder | str | Path):
        return _by_texture(seen, question, grid, budget, _embeddings(using), known)
    if look is None and not isinstance(texture, TextureArray) and hasattr(using, "look"):
        look = using.look(texture)  # as it came, not as the texture scaled it
    return _by_model(seen, question, grid, budget, using, look, settings)


def _settings(options: dict[str, Any]) -> Settings:
    unknown = sorted(set(options) - {one.name for one in fields(Settings)})
    if unknown:
        raise ArrCocError(
            f"expected settings among {', '.join(one.name for one in fields(Settings))}, got {', '.join(unknown)}"
        )
    return Settings(**options)


def remembered(previous: Allocation) -> torch.Tensor:
    """An allocation's relevance as a map `[h, w]`, or where its cells lie if it has none."""
    views = previous.grid.views
    if len(views) != 1 or views[0].t != 1:
        raise AllocationError("expected a previous allocation on one grid of a still picture, got tiles or a video")
    kept = torch.zeros(previous.n).index_fill_(0, previous.keep, 1.0)
    worth = previous.relevance if previous.relevance is not None else kept
    return worth.view(views[0].h, views[0].w)


def _embeddings(using: Any) -> Embeddings | None:
    return using if using is None or isinstance(using, Embeddings) else Embeddings(using)


def _by_texture(
    texture: TextureArray, question: str, grid: tuple[int, int] | Grid | None, budget: Budget,
    embeddings: Embeddings | None, settings: Settings,
) -> Allocation:  # fmt: skip
    cells = _grid(texture, grid)
    bound = limit(budget, cells.n)
    asked = None if embeddings is None else partial(couple, embeddings)
    looked: list[cascade.Closely] = []
    if settings.cascade == "on" and (why := cascade.serves(embeddings, texture, cells)):
        raise ArrCocError(f"expected {why}, for cascade='on'")
    if embeddings is not None and (
        settings.cascade == "on" or (settings.cascade == "auto" and cascade.pays(embeddings, texture, cells))
    ):
        asked = partial(cascade.coarse_to_fine, embeddings, looked.append)
    sight = Sight(
        cells, bound.k, torch.arange(cells.n), Words(question, torch.zeros(0, dtype=torch.long)), picture=lambda: texture,
        couple=asked, mass=bound.mass,
    )  # fmt: skip
    choice = realized(sight, settings)
    notes = [*([bound.note] if bound.note else []), *map(str, looked)]
    if embeddings is None and question.strip():
        notes.append("the question was not used: nothing that understands it was passed as using=")
    height, width = texture.original_size
    return Allocation(
        cells, choice.keep, torch.arange(cells.n), "arr-coc", (width, height), relevance=choice.relevance,
        scores=choice.scores, tensions=choice.tensions, strategy=choice.strategy, notes=tuple(notes),
    )  # fmt: skip


def _by_model(
    texture: TextureArray, question: str, grid: tuple[int, int] | Grid | None, budget: Budget, vlm: Any, look: Look | None,
    settings: dict[str, Any],
) -> Allocation:  # fmt: skip
    from arr_coc.relevance.selector import ArrCoc
    from arr_coc.vlm.look import Source
    from arr_coc.vlm.model import VLM

    if not isinstance(vlm, VLM):
        raise ArrCocError(
            f"expected using= as a wrapped model, embeddings or an encoder's name, got {type(vlm).__name__}"
        )
    if settings.get("cascade") == "on":
        raise ArrCocError("expected embeddings as using= for cascade='on', got a model: it encodes all of a picture")
    notes: tuple[str, ...] = ()
    if look is None:
        look, notes = _looked(vlm, texture)
    shown = look.sources("image")
    if look.rows != 1 or len(shown) != 1 or look.sources("video"):
        raise ArrCocError(f"expected a look at one picture, got {len(shown)} and {len(look.sources('video'))} videos")
    height, width = texture.original_size
    if shown[0].size is not None and shown[0].size != (width, height):
        other = " x ".join(map(str, shown[0].size))
        raise ArrCocError(
            f"this texture is of a picture of {width} x {height} px, and the look at one of {other} px: expected one picture"
        )
    source = Source(shown[0].picture, shown[0].size, shown[0].embeddings, texture)
    made = vlm.prepare(
        look=replace(look, images=((source,),)), text=question, budget=budget, selector=ArrCoc(**settings)
    ).allocations[0]
    wanted = None if grid is None else _grid(texture, grid)
    if wanted is not None and [(wanted.h, wanted.w)] != [(view.h, view.w) for view in made.grid.views]:
        raise ArrCocError(f"expected the model's own grid of {made.grid} cells, got {wanted}: leave grid out")
    return replace(made, notes=(*made.notes, *notes))


def _looked(vlm: VLM, texture: TextureArray) -> tuple[Look, tuple[str, ...]]:
    """A look at the texture's own picture, at its original size."""
    if texture.size == texture.original_size:
        return vlm.look(texture.pixels), ()
    pixels = F.interpolate(
        texture.pixels[None], texture.original_size, mode="bicubic", align_corners=False, antialias=True
    )
    note = (
        f"encoded from the texture's {texture.size[1]} x {texture.size[0]} px, scaled to the original's size: "
        "pass look=vlm.look(image) to encode the original"
    )
    return vlm.look(pixels[0].clamp(0, 1)), (note,)


def _grid(texture: TextureArray, grid: tuple[int, int] | Grid | None) -> Grid:
    if isinstance(grid, Grid):
        return grid
    if grid is None:
        height, width = texture.original_size
        return Grid(1, max(1, round(height / CELL)), max(1, round(width / CELL)))
    try:
        rows, columns = (int(side) for side in grid)
    except (TypeError, ValueError):
        raise ArrCocError(f"expected a grid as (rows, columns), got {grid!r}") from None
    if rows < 1 or columns < 1:
        raise ArrCocError(f"expected a grid of at least one cell, got {rows} x {columns}")
    return Grid(1, rows, columns)
