"""Images to connected superpixels: k-means (`superpixels.py`), then parts (`connecting.py`), for one weight of place or for all.

Nearly every picture holds together by the first weight. A single picture leaves most of a GPU idle, so all weights run side
by side; in a batch the first goes alone, and the others end at once where it sufficed.
"""

from __future__ import annotations

import torch

from arr_coc.texture.kernels.connecting import Connecting, Weights
from arr_coc.texture.kernels.superpixels import Superpixels
from arr_coc.texture.slic import COMPACTNESS

ALONE = 4  # images of a batch from which on the first weight goes alone


class Segmenting:
    """Buffers for images of one size, and both steps: `ids` int32 `[B, h, w]` come out, numbered row by row."""

    def __init__(self, batch: int, size: tuple[int, int], device: torch.device) -> None:
        self.found = Superpixels(batch, size, device)
        self.small = self.found.small
        self.connecting = Connecting(batch, self.small, device)
        self.ids = self.connecting.ids
        every = len(COMPACTNESS)
        self.portions = [Weights(0, 1), Weights(1, every - 1)] if batch >= ALONE else [Weights(0, every)]

    def write(self, pixels: torch.Tensor) -> torch.Tensor:
        """The ids of images `[B, 3, H, W]` in [0, 1]."""
        self.found.look(pixels)
        self.connecting.begin()
        for weights in self.portions:
            self.connecting.join(self.found.assign(weights, self.connecting), weights)
        return self.connecting.finish()
