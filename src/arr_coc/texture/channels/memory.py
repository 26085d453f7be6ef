"""What was there before: motion against the previous frame, and the memory that a video or a dialogue carries along.

The caller supplies the state, already warped to this frame: `previous_frame` for motion, and maps for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.texture.kernels import planes as kernels
from arr_coc.texture.layout import channel

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray

FADING = 0.9  # share of the old fixation that stays when a frame's relevance is added


@channel(
    "motion",
    family="motion",
    range=(0, 3**0.5),
    cost="cheap",
    supplied_by=("previous_frame",),
    meaning="colour distance to the previous frame",
)
def motion(texture: TextureArray) -> torch.Tensor:
    before = texture.supplied("previous_frame")
    if before is None:
        return texture.constant(0.0)
    made = kernels.motion_plane(texture, before)
    if made is not None:
        return made
    return (texture.pixels - before).square_().sum(0).sqrt_()  # several times faster than a norm over the first axis


@channel(
    "fixation",
    family="memory",
    cost="cheap",
    supplied_by=("fixation", "previous_relevance"),
    meaning="where relevance has dwelt: .9 of the old fixation + .1 of the previous relevance",
)
def fixation(texture: TextureArray) -> torch.Tensor:
    old, new = texture.supplied("fixation"), texture.supplied("previous_relevance")
    parts = [share * given for share, given in ((FADING, old), (1 - FADING, new)) if given is not None]
    return torch.stack(parts).sum(0) if parts else texture.constant(0.0)


def _register_map(name: str, family: str, meaning: str) -> None:
    """A channel that is the caller's map, or zero."""

    @channel(name, family=family, cost="free", supplied_by=(name,), meaning=meaning)
    def supplied_map(texture: TextureArray) -> torch.Tensor:
        given: torch.Tensor | None = texture.supplied(name)
        return texture.constant(0.0) if given is None else given


_register_map("previous_relevance", "memory", "relevance on the previous frame or turn")
_register_map("previous_saliency", "memory", "saliency on the previous frame")
_register_map("previous_attention", "attention", "the model's attention at an earlier layer or turn")
_register_map("current_attention", "attention", "the model's attention so far, accumulated")
_register_map("gaze", "attention", "where a person looks: eye tracking")
