"""`Allocation`: which cells of one image were encoded and kept, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from arr_coc.draw.overlay import Piece, heated, lit, outlined
from arr_coc.errors import AllocationError
from arr_coc.types.grid import WHOLE, Cells, Grid, Mosaic, split_views
from arr_coc.types.image import ImageLike, read_picture
from arr_coc.types.levels import Levels
from arr_coc.types.pyramid import Region, View

NOT_KEPT, NOT_ENCODED = 0.35, 0.15  # brightness of such cells in an overlay
COARSER = 0.8  # brightness of a cell that is twice as large as another


@dataclass(frozen=True, eq=False)
class Allocation:
    """The kept cells of one image or video. Cells are numbered on the full grid; `keep` is a subset of `encoded`."""

    grid: Cells
    keep: torch.Tensor  # [K] sorted
    encoded: torch.Tensor  # [M] sorted
    selector: str
    size: tuple[int, int] | None = None  # (width, height) of the original, where known
    kind: str = "image"  # or "video"
    row: int = 0  # of the batch
    relevance: torch.Tensor | None = None  # [N]
    scores: Mapping[str, torch.Tensor] = field(default_factory=dict)  # each [N]
    tensions: Mapping[str, float] = field(default_factory=dict)  # trust, held, three tensions, weights
    strategy: str = ""
    confidence: float | None = None  # probability that the kept cells show what was asked for; None: not known
    fallback: str = ""  # why the selector's own choice was replaced; empty if it was used
    notes: tuple[str, ...] = ()
    semantics: str = "masked"  # or "removed": what dropping a cell means to the language model
    view: View | None = None  # the part of a large image that was shown; None: all of it
    read: float | None = None  # cells read per language layer on average, a probe included; None: the kept ones
    earlier: torch.Tensor | None = None  # [E] cells that earlier turns of the conversation had read

    def __post_init__(self) -> None:
        for name in ("keep", "encoded"):
            object.__setattr__(self, name, check_cells(getattr(self, name), self.grid, name))
        if self.confidence is not None and not 0 <= self.confidence <= 1:  # NaN fails, too
            raise AllocationError(f"expected a confidence between 0 and 1, got {self.confidence!r}")
        if len(self.encoded) < self.n and not torch.isin(self.keep, self.encoded).all():
            raise AllocationError("expected every kept cell to be an encoded one")

    @property
    def n(self) -> int:
        return self.grid.n

    @property
    def k(self) -> int:
        return len(self.keep)

    @property
    def added(self) -> torch.Tensor:
        """The kept cells that this turn of a conversation added: all of them for a first question."""
        return self.keep if self.earlier is None else self.keep[~torch.isin(self.keep, self.earlier)]

    @property
    def thw(self) -> torch.Tensor:
        """`[K, 3]`: time step, row and column of the kept cells."""
        return self.grid.thw(self.keep)

    @property
    def boxes(self) -> torch.Tensor:
        """`[K, 4]`: pixel boxes of the kept cells on the original image."""
        if self.size is None:
            raise AllocationError("the original image's size is unknown: call grid.boxes(keep, (width, height))")
        if self.view is None:
            return self.grid.boxes(self.keep, self.size)
        return self.view.region.boxes(self._in_region)

    @property
    def corners(self) -> torch.Tensor:
        """`[K, 4, 2]`: the corners of the kept cells on the original image; cells of a turned view are not upright there."""
        if self.view is not None:
            return self.view.region.corners(self._in_region)
        x0, y0, x1, y1 = self.boxes.unbind(-1)
        return torch.stack([torch.stack([x0, x1, x1, x0], -1), torch.stack([y0, y0, y1, y1], -1)], -1)

    @property
    def scale(self) -> float | None:
        """How many pixels were shown for each pixel of the original; None: unknown, the model's processor decides."""
        return None if self.view is None else self.view.scale

    @property
    def cell_scales(self) -> torch.Tensor | None:
        """`[K]`: `scale` of each kept cell, which differ where one image has cells of different sizes."""
        if self.view is None:
            return None
        scales = torch.full((self.k,), self.view.scale)
        return scales / 2 ** self.grid.level(self.keep) if isinstance(self.grid, Levels) else scales

    @property
    def _in_region(self) -> torch.Tensor:
        assert self.view is not None
        unit = self.grid.boxes(self.keep, (1, 1))
        return unit.double() * torch.tensor(self.view.region.size * 2, dtype=torch.float64)

    def overlay(self, image: ImageLike, frame: int = 0) -> Image.Image:
        """The image (or time step `frame` of a video) with all cells darkened that were not kept."""
        light = torch.full((self.n,), NOT_ENCODED)
        light[self.encoded] = NOT_KEPT
        light[self.keep] = 1.0
        if not isinstance(self.grid, Levels):
            return lit(read_picture(image).pixels, self.pieces(light, frame), self.region)
        # Larger cells are a little darker, and all have their borders drawn.
        light[self.keep] = COARSER ** self.grid.level(self.keep).float()
        drawn = lit(read_picture(image).pixels, self.pieces(light, frame), self.region)
        assert self.size is not None
        return outlined(drawn, self.corners * (torch.tensor(drawn.size) / torch.tensor(self.size)))

    def heat(self, image: ImageLike, values: torch.Tensor, frame: int = 0) -> Image.Image:
        """The image with a heat map of `values` `[N]` in [0, 1]."""
        if values.shape != (self.n,):
            raise AllocationError(f"expected one value for each of the {self.n} cells, got shape {list(values.shape)}")
        return heated(read_picture(image).pixels, self.pieces(values.detach().float().cpu(), frame), self.region)

    @property
    def region(self) -> Region | None:
        """The part of the original that was shown; None: all of it."""
        return None if self.view is None else self.view.region

    def pieces(self, values: torch.Tensor, frame: int = 0) -> list[Piece]:
        """Values `[N]` of one time step, as (area, `[h, w]`) for each view of the grid."""
        for grid in self.grid.views:
            if not 0 <= frame < grid.t:
                raise AllocationError(f"expected a frame between 0 and {grid.t - 1}, got {frame}")
        return split_views(self.grid, values, frame)

    def to_dict(self) -> dict[str, Any]:
        views = [[view.t, view.h, view.w] for view in self.grid.views]
        made: dict[str, Any] = {
            "kind": self.kind,
            "row": self.row,
            "grid": views[0] if len(views) == 1 else views,
            "tokens": {"all": self.n, "encoded": len(self.encoded), "kept": self.k},
            "keep": self.keep.tolist(),
            "selector": self.selector,
            "semantics": self.semantics,
            "strategy": self.strategy,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "fallback": self.fallback,
            "tensions": {name: float(value) for name, value in self.tensions.items()},
            "notes": list(self.notes),
        }
        if self.earlier is not None:
            made["tokens"]["added"] = len(self.added)
        if len(self.encoded) < self.n:
            made["encoded"] = self.encoded.tolist()
        if self.size is not None:
            made["size"] = list(self.size)
        if any(view.area != WHOLE for view in self.grid.views):
            made["areas"] = [list(view.area) for view in self.grid.views]
        if self.view is not None:
            made["view"] = self.view.to_dict()
        if isinstance(self.grid, Levels):
            made["levels"] = self.grid.to_dict()
            made["cells"] = [
                {"scale": round(scale, 4), "row": row, "column": column, "box": [round(side, 1) for side in box]}
                for scale, (_, row, column), box in zip(
                    self.cell_scales.tolist() if self.cell_scales is not None else [], self.thw.tolist(),
                    self.boxes.tolist(), strict=True,
                )
            ]  # fmt: skip
        return made

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Allocation:
        """What `to_dict` made: the cells and how they were chosen, without the maps of scores."""
        try:
            views = given["grid"] if isinstance(given["grid"][0], list) else [given["grid"]]
            areas = given.get("areas") or [WHOLE] * len(views)
            grids = tuple(Grid(t, h, w, tuple(area)) for (t, h, w), area in zip(views, areas, strict=True))
            size = tuple(given["size"]) if "size" in given else None
            grid: Cells = grids[0] if len(grids) == 1 else Mosaic(grids)
            if "levels" in given:
                grid = Levels(grids, **given["levels"])
            return cls(
                grid=grid,
                keep=torch.tensor(given["keep"], dtype=torch.long),
                encoded=torch.tensor(given["encoded"]) if "encoded" in given else torch.arange(grid.n),
                size=size,
                view=View.from_dict(given["view"], given["size"]) if "view" in given else None,
                notes=tuple(given["notes"]),
                **{
                    name: given[name]
                    for name in (
                        "kind",
                        "row",
                        "selector",
                        "semantics",
                        "strategy",
                        "confidence",
                        "fallback",
                        "tensions",
                    )
                },
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise AllocationError(
                f"expected an allocation as to_dict writes it, got one that does not fit ({type(error).__name__}: {error})"
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Allocation:
        """What `to_json` made; see `from_dict`."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise AllocationError(f"expected an allocation as JSON, got text that is none ({error})") from None

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def __repr__(self) -> str:
        return f"Allocation({self.k} of {self.n} cells kept, {len(self.encoded)} encoded, by {self.selector})"


def check_cells(cells: object, grid: Cells, what: str = "cells") -> torch.Tensor:
    """Cell numbers or a mask as a sorted, unique `[K]` tensor on the CPU; raises `AllocationError` otherwise."""
    try:
        numbers = torch.as_tensor(cells)
    except (TypeError, ValueError, RuntimeError):
        raise AllocationError(f"expected {what} as cell numbers, got {type(cells).__name__}") from None
    if numbers.dtype == torch.bool:
        if numbers.numel() != grid.n:
            raise AllocationError(
                f"expected a mask of the grid's {grid.n} cells ({grid}), got {numbers.numel()} values"
            )
        numbers = numbers.flatten().nonzero()[:, 0]
    if numbers.numel() == 0:
        return torch.zeros(0, dtype=torch.long)
    if numbers.dtype.is_floating_point or numbers.dtype.is_complex or numbers.ndim != 1:
        raise AllocationError(
            f"expected {what} as a list of whole numbers, got {str(numbers.dtype).removeprefix('torch.')} values "
            f"of shape {list(numbers.shape)}"
        )
    numbers = numbers.detach().to("cpu", torch.long).contiguous()
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= grid.n:
        wrong = low if low < 0 else high
        raise AllocationError(f"expected {what} between 0 and {grid.n - 1} (the grid is {grid}), got {wrong}")
    steps = numbers[1:] - numbers[:-1]
    if (steps <= 0).any():
        at = int((steps <= 0).nonzero()[0, 0])
        first, second = int(numbers[at]), int(numbers[at + 1])
        problem = f"{first} comes twice" if first == second else f"{second} follows {first}"
        raise AllocationError(f"expected {what} in rising order without repeats, but {problem}")
    return numbers
