"""Knowing: three scores for every cell, each in [0, 1] within its image.

- information: is there anything to read or see: edges, detail, nearness of an edge;
- salience: does it stand out, does it move, is it near the centre;
- coupling: what does it have to do with the question (see `coupling.py`).

The first two depend on the texture only. They are computed once per image and grid, and cached in the texture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch

from arr_coc.selectors.base import SelectionInput
from arr_coc.selectors.scoring import pool_channels, score_cells
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

NEAR_CELLS = 2.0  # distance in cells beyond which an edge is not near
TEXT_THRESHOLD = 0.25  # text likelihood from which a cell contains text
PAGE_THRESHOLD = 0.12  # (share of text cells) x (share of the background) from which an image is a page
NO_PAGE = 0.06  # the same below which it has no part that is one: documents have .08 and more, photographs .03
TONE_BINS = 32
BLURRED = 2  # px: of the blurred picture one in so many along each side is counted
CHANNELS = ("edges", "edges_inverted", "highpass", "distance", "saliency", "eccentricity", "text")
SUPPLIED = ("previous_relevance", "fixation", "current_attention", "previous_attention", "gaze")


@dataclass(frozen=True, eq=False)
class CellScores:
    """Scores of each candidate: `[M]` each, in [0, 1]."""

    information: torch.Tensor
    salience: torch.Tensor
    coupling: torch.Tensor | None  # None: the question was not used
    text: torch.Tensor
    coupled_by: str = ""  # source of the coupling
    trust: float = 1.0  # in the coupling
    background: float = 0.0  # share of the image that has the most frequent tone
    energy: torch.Tensor | None = None  # mean edge strength, not normalised; None without the image itself
    salience_weight: float | None = None  # where the question does not count; None: the texture's, a tenth
    supplied: Mapping[str, torch.Tensor] = field(default_factory=dict)  # from the caller: memory, attention, gaze

    @property
    def text_share(self) -> float:
        """Share of the candidates that contain text."""
        return float((self.text > TEXT_THRESHOLD).float().mean()) if len(self.text) else 0.0

    @property
    def is_page(self) -> bool:
        """Whether the image is a page: text on an even background. Foliage resembles text but has no such background."""
        return self.text_share * self.background > PAGE_THRESHOLD

    @property
    def has_page(self) -> bool:
        """Whether a part of the image may be a page, such as a paper on a table."""
        return self.text_share * self.background >= NO_PAGE

    def by_name(self) -> dict[str, torch.Tensor]:
        found = {"information": self.information, "salience": self.salience}
        return found if self.coupling is None else {**found, "coupling": self.coupling}


def know(selection: SelectionInput) -> CellScores:
    """All scores that need no question. Without the image itself (model inputs only) they are 0."""
    if selection.source is None:
        zero = torch.zeros(len(selection.candidates))
        return CellScores(zero, zero, None, zero)
    frames = selection.textures
    absent = set.intersection(*(set(texture.absent) for texture in frames))
    supplied = {
        name: score_cells(selection, lambda texture, view, name=name: pool_channels(texture, view, (name,))[0])  # type: ignore[misc]
        for name in SUPPLIED
        if name not in absent and all(name in texture.names for texture in frames)
    }
    information, salience, text, energy = cached_scores(selection, "scores", texture_scores)
    background = max(background_share(texture) for texture in frames)
    return CellScores(information, salience, None, text, background=background, energy=energy, supplied=supplied)


def page_likeness(selection: SelectionInput) -> float:
    """Share of cells with text times the share of the background: what `CellScores.is_page` compares. It costs little."""
    text = score_cells(selection, lambda texture, view: pool_channels(texture, view, ("text",))[0].cpu())
    background = max(background_share(texture) for texture in selection.textures)
    return float((text > TEXT_THRESHOLD).float().mean()) * background if len(text) else 0.0


def texture_scores(texture: TextureArray, view: Grid) -> torch.Tensor:
    """Information, salience, text likelihood and edge energy of the cells of one frame of `view`: `[4, h, w]`."""
    channels = pooled_channels(texture, view)
    energy = channels["edges"] + channels["edges_inverted"]
    scores = [information(texture, view, channels), salience(texture, view, channels), channels["text"], energy]
    return torch.stack(scores)


def information(texture: TextureArray, view: Grid, channels: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Amount of detail in each cell: `[h, w]` in [0, 1]."""
    edges = torch.maximum(channels["edges"], channels["edges_inverted"])
    height, width = texture.size
    pixels = channels["distance"] * math.hypot(height, width) / 2
    left, top, right, bottom = view.area
    side = math.sqrt((right - left) * width / view.w * (bottom - top) * height / view.h)
    near = (pixels / (NEAR_CELLS * side)).clamp(max=1)
    return 0.4 * scale_to_max(edges) + 0.3 * scale_to_max(channels["highpass"]) + 0.3 * (1 - near)


def salience(texture: TextureArray, view: Grid, channels: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """How much each cell stands out: `[h, w]` in [0, 1]."""
    motion = texture["motion"]
    # Without a previous frame the motion channel is a constant: there is nothing to pool.
    constant = motion.stride() == (0, 0)
    motion = motion[:1, :1].float() if constant else pool_channels(texture, view, ("motion",))[0]
    stands_out = 0.6 * scale_to_max(channels["saliency"]) + 0.4 * scale_to_max(motion)
    return stands_out * (1 - 0.5 * channels["eccentricity"])


def background_share(texture: TextureArray) -> float:
    """Share of the image whose tone is within one bin of the most frequent tone, cached."""
    return texture.once("background", lambda: float(background(texture)))


def background(texture: TextureArray) -> torch.Tensor:
    """`background_share` on the texture's device: `[]`."""
    lowpass = texture["lowpass"]
    if min(texture.size) > BLURRED * TONE_BINS:  # it is blurred: neighbours have the same tone
        lowpass = lowpass[::BLURRED, ::BLURRED]
    tones = _count_tones(lowpass.float())
    windows = torch.nn.functional.pad(tones, (1, 1)).unfold(0, 3, 1).sum(1)
    return windows.max() / tones.sum().clamp(min=1)


def _count_tones(plane: torch.Tensor) -> torch.Tensor:
    """How many pixels of a plane in [0, 1] are in each of the bins: `[TONE_BINS]`. OpenCV counts bytes fastest."""
    if plane.device.type != "cpu":
        return torch.histc(plane, TONE_BINS, 0, 1)
    bins = np.minimum(plane.numpy() * np.float32(TONE_BINS), TONE_BINS - 1).astype(np.uint8)
    return torch.from_numpy(cv2.calcHist([bins], [0], None, [TONE_BINS], [0, TONE_BINS]).ravel())


def cached_scores(
    selection: SelectionInput, name: str, score: Callable[[TextureArray, Grid], torch.Tensor]
) -> torch.Tensor:
    """A score `[..., M]` of the candidates that does not depend on the question, cached per texture and grid."""
    return score_cells(
        selection, lambda texture, view: texture.once(f"{name} {view!r}", lambda: score(texture, view).cpu())
    )


def pooled_channels(texture: TextureArray, view: Grid) -> dict[str, torch.Tensor]:
    """The channels that scores are computed from, pooled to the cells of one frame of `view`, cached."""
    return texture.once(
        f"pooled {view!r}", lambda: dict(zip(CHANNELS, pool_channels(texture, view, CHANNELS), strict=True))
    )


def scale_to_max(values: torch.Tensor) -> torch.Tensor:
    """Non-negative values divided by their maximum; all 0 if the maximum is 0."""
    top = values.max() if values.numel() else values.new_zeros(())
    return torch.where(top > 0, values / top, 0.0)  # no device synchronisation
