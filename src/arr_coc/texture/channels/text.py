"""Text: how likely a pixel belongs to a line of text, as the texture's text detector says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.errors import ChannelError
from arr_coc.texture.backends import TEXT_DETECTORS
from arr_coc.texture.layout import channel
from arr_coc.texture.supplied import fit
from arr_coc.types.tensors import as_tensor

if TYPE_CHECKING:
    from arr_coc.texture.array import TextureArray


@channel("text", family="text", pool="max", cost="costly", meaning="likelihood that a pixel belongs to a line of text")
def text(texture: TextureArray) -> torch.Tensor:
    own = isinstance(texture.text, str)  # which keeps to what it should: on a GPU nobody waits to see
    detector = TEXT_DETECTORS[texture.text] if isinstance(texture.text, str) else texture.text
    found = as_tensor(detector(texture.pixels), "a text detector's likelihood").float()
    if found.ndim != 2 or 0 in found.shape:
        raise ChannelError(f"a text detector must return a likelihood [h, w], got {list(found.shape)}")
    if not own and not bool(((found >= 0) & (found <= 1)).all()):  # NaN fails too
        raise ChannelError("a text detector must return likelihoods in [0, 1]")
    return fit(found, texture.size, shrink_by="max")
