"""Knowing: every cell scored three ways, each from 0 to 1 in its own picture.

- information (propositional): is there anything to read or see here at all: edges, detail, nearness of an edge;
- salience (perspectival): does it stand out, does it move, is it near the middle;
- coupling (participatory): what has it to do with the question.

The first two are the texture's and know no question: they are worked out once for a picture and a grid, and kept there.
Coupling asks whoever knows best: see `coupling.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from arr_coc.selectors.base import Sight
from arr_coc.selectors.pixels import area_mean, by_cell, textures
from arr_coc.texture import TextureArray
from arr_coc.types.grid import WHOLE, Grid

NEAR = 2.0  # cells; an edge farther away than this is not near at all
WRITING = 0.25  # likelihood from which a cell holds writing
PAGE = 0.12  # the share of such cells times that of the ground, from which a picture is a page
TONES = 32
LOOKED_AT = ("edges", "edges_inverted", "highpass", "distance", "saliency", "eccentricity", "text")
SUPPLIED = ("previous_relevance", "current_attention", "previous_attention", "gaze")


@dataclass(frozen=True, eq=False)
class Known:
    """What is known about each candidate: `[M]` each, from 0 to 1."""

    information: torch.Tensor
    salience: torch.Tensor
    coupling: torch.Tensor | None  # None: the question was not used
    text: torch.Tensor
    coupled_by: str = ""  # who said so
    trust: float = 1.0  # how sure they were
    ground: float = 0.0  # share of the picture that has the most frequent tone
    supplied: Mapping[str, torch.Tensor] = field(default_factory=dict)  # what the caller knows: memory, attention, gaze

    @property
    def writing(self) -> float:
        """The share of the candidates that hold writing."""
        return float((self.text > WRITING).float().mean()) if len(self.text) else 0.0

    @property
    def written(self) -> bool:
        """Whether the picture is a page: writing on a ground of one tone. Foliage looks like writing, but has no ground."""
        return self.writing * self.ground > PAGE

    def scores(self) -> dict[str, torch.Tensor]:
        """The three ways by name, those that there are."""
        found = {"information": self.information, "salience": self.salience}
        return found if self.coupling is None else {**found, "coupling": self.coupling}


def information(texture: TextureArray, view: Grid) -> torch.Tensor:
    """How much there is inside each cell of one frame of `view`: `[h, w]` from 0 to 1."""
    found = looked_at(texture, view)
    edges = torch.maximum(found["edges"], found["edges_inverted"])
    height, width = texture.size
    pixels = found["distance"] * math.hypot(height, width) / 2
    left, top, right, bottom = view.area
    side = math.sqrt((right - left) * width / view.w * (bottom - top) * height / view.h)
    near = (pixels / (NEAR * side)).clamp(max=1)
    return 0.4 * unit(edges) + 0.3 * unit(found["highpass"]) + 0.3 * (1 - near)


def salience(texture: TextureArray, view: Grid) -> torch.Tensor:
    """How much each cell of one frame of `view` stands out: `[h, w]` from 0 to 1."""
    found = looked_at(texture, view)
    moves = texture["motion"]
    # Without a frame before, nothing moves anywhere: there is nothing to pool.
    moves = moves[:1, :1].float() if moves.stride() == (0, 0) else cells(texture, view, ("motion",))[0]
    return (0.6 * unit(found["saliency"]) + 0.4 * unit(moves)) * (1 - 0.5 * found["eccentricity"])


def ground(texture: TextureArray) -> float:
    """The share of the picture whose tone is within one step of the most frequent one."""
    tones = torch.histc(texture["lowpass"].float(), TONES, 0, 1)
    together = torch.nn.functional.pad(tones, (1, 1)).unfold(0, 3, 1).sum(1)
    return float(together.max() / tones.sum().clamp(min=1))


def know(sight: Sight) -> Known:
    """All that the picture itself tells about the candidates of a sight; coupling is left to others.

    A picture that came as model inputs tells nothing: there are no pixels to look at any more.
    """
    if sight.picture is None:
        nothing = torch.zeros(len(sight.candidates))
        return Known(nothing, nothing, None, nothing)
    told = {
        name: by_cell(sight, partial(_one, name))
        for name in SUPPLIED
        if any(name not in texture.absent for texture in textures(sight))
    }
    informs, stands_out, text = kept(sight, "scores", _scores)
    return Known(
        informs, stands_out, None, text, supplied=told,
        ground=max(one.once("ground", partial(ground, one)) for one in textures(sight)),
    )  # fmt: skip


def _scores(texture: TextureArray, view: Grid) -> torch.Tensor:
    """Information, salience and the likelihood of writing: `[3, h, w]`, from 0 to 1."""
    return torch.stack([information(texture, view), salience(texture, view), looked_at(texture, view)["text"]])


def _one(name: str, texture: TextureArray, view: Grid) -> torch.Tensor:
    return cells(texture, view, (name,))[0]


def kept(sight: Sight, name: str, score: Callable[[TextureArray, Grid], torch.Tensor]) -> torch.Tensor:
    """A score `[..., M]` of the candidates that does not depend on the question: made once for each texture and grid."""
    return by_cell(sight, lambda texture, view: texture.once(f"{name} {view!r}", lambda: score(texture, view).cpu()))


def looked_at(texture: TextureArray, view: Grid) -> dict[str, torch.Tensor]:
    """The channels that scores are made from, on the cells of one frame of `view`: pooled together, once."""
    return texture.once(
        f"looked at {view!r}", lambda: dict(zip(LOOKED_AT, cells(texture, view, LOOKED_AT), strict=True))
    )


def cells(texture: TextureArray, view: Grid, names: tuple[str, ...]) -> torch.Tensor:
    """Channels on the cells of one frame of `view`: `[C, h, w]`, float32, each by its own rule; on tiles the mean."""
    if view.area == WHOLE:
        return texture.grid(view.h, view.w, names).float()
    return torch.stack([area_mean(texture[name], view) for name in names]).float()  # tiles may reach beyond the picture


def unit(values: torch.Tensor) -> torch.Tensor:
    """Values from 0 on, with the largest at 1; all 0 where there is nothing."""
    top = values.max() if values.numel() else values.new_zeros(())
    return torch.where(top > 0, values / top, 0.0)  # nobody waits for a GPU to say which
