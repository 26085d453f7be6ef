"""Looks at the pictures that the model itself is asked about, kept as long as there is room."""

from __future__ import annotations

from collections import OrderedDict

import torch

from arr_coc.devices import tensors
from arr_coc.evaluation.data import Still
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM

SHARE = 1 / 3  # of a GPU's free memory
ROOM = 2**31  # bytes, elsewhere


class Looks:
    """A picture is preprocessed and encoded once. When there is no room for another look, the one used longest ago goes."""

    def __init__(self, vlm: VLM, room: int | None = None) -> None:
        """`room` in bytes; None: a third of what the model's GPU has left, or 2 GiB."""
        self.vlm = vlm
        self.room = room if room is not None else _free(vlm.device)
        self.used = 0
        self._kept: OrderedDict[int, tuple[Still, Look, int]] = OrderedDict()  # a picture that is kept keeps its id

    def at(self, image: Still) -> Look:
        if id(image) not in self._kept:
            look = self.vlm.look(image)
            self.vlm.prepare(look=look, text="?", selector="all")  # encodes it
            held = sum(one.nbytes for one in tensors([look.vision.tensors, look.encoded]))
            held += sum(
                3 * width * height for sizes in look.sizes().values() for width, height in sizes
            )  # the pictures
            self._kept[id(image)] = (image, look, held)
            self.used += held
        self._kept.move_to_end(id(image))
        while self.used > self.room and len(self._kept) > 1:
            _, (_, _, freed) = self._kept.popitem(last=False)
            self.used -= freed
        return self._kept[id(image)][1]

    def __len__(self) -> int:
        return len(self._kept)


def _free(device: torch.device) -> int:
    return round(SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else ROOM
