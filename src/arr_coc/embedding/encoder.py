"""What an encoder is: a picture as a grid of vectors, a question as one vector, in one space, so that a dot product asks.

Notable:
- `dense` and `text` check what comes in and normalise what goes out; a backend only computes;
- every image kind that the texture array reads is read here too, by the same code, at its full size;
- `identity` names the weights and the settings, never the device or the precision: half precision only rounds.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from arr_coc.devices import check_device
from arr_coc.errors import EncoderError
from arr_coc.types.image import ImageLike, read_picture

Mode = Literal["fast", "native"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LEAST_NORM = 1e-12  # a vector shorter than this has no direction and becomes zero


@dataclass(frozen=True, eq=False)
class Dense:
    """A picture's features `[D, h, w]`, each of length 1, in the joint space.

    The `h` x `w` cells tile the whole picture evenly: cell (i, j) covers rows i*H/h to (i+1)*H/h of its H.
    float32, or the encoder's own precision on CUDA.
    """

    features: torch.Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns)."""
        return int(self.features.shape[1]), int(self.features.shape[2])

    def similarity(self, questions: torch.Tensor) -> torch.Tensor:
        """How near each cell is to each of the questions `[Q, D]` (`Encoder.text`): cosines, float32 `[Q, h, w]`."""
        return torch.einsum("qd,dhw->qhw", questions.to(self.features.device).float(), self.features.float())


class Encoder(ABC):
    """An image-text encoder. A backend has a name and a width, and says how it computes.

    `name` is the kind ("labels", "clip", "siglip", "vlm"), `width` the number of dimensions D of its space.
    """

    name: str
    width: int
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32

    @property
    @abstractmethod
    def identity(self) -> str:
        """A stable name of kind, weights and settings: what belongs to one identity never fits another."""

    @abstractmethod
    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        """The features `[D, h, w]` of a picture `[3, H, W]` in [0, 1] on the encoder's device; of any length."""

    @abstractmethod
    def embed(self, questions: list[str]) -> torch.Tensor:
        """The vectors `[Q, D]` of questions that are not empty; of any length."""

    def dense(self, image: ImageLike, mode: Mode = "fast") -> Dense:
        """A picture's features on a grid, each of length 1.

        image: PIL, a torch tensor `[3, H, W]` in [0, 1], or what else the texture array reads; of any size.
        mode: "fast" is one pass at about the encoder's own size; "native" is overlapping windows at the picture's.
        """
        if mode not in get_args(Mode):
            raise EncoderError(f"expected the mode 'fast' or 'native', got {mode!r}")
        pixels = read_picture(image, max_side=None, device=self.device).pixels
        with torch.no_grad():
            features = unit(self.encode(pixels, mode), dim=0)
        return Dense(features.to(self.dtype) if self.device.type == "cuda" else features)

    def text(self, questions: Sequence[str]) -> torch.Tensor:
        """Questions as vectors of length 1: float32 `[Q, D]`."""
        if isinstance(questions, str):
            raise EncoderError("expected a list of questions, got one text: put it into brackets")
        asked = list(questions)
        for number, question in enumerate(asked, start=1):
            if not isinstance(question, str) or not question.strip():
                came = "an empty one" if isinstance(question, str) else type(question).__name__
                raise EncoderError(f"expected a question with words in it, got {came} (question {number})")
        if not asked:
            return torch.zeros(0, self.width, device=self.device)
        with torch.no_grad():
            return unit(self.embed(asked), dim=1)

    def __repr__(self) -> str:
        return f"<encoder {self.identity}>"


def unit(vectors: torch.Tensor, dim: int) -> torch.Tensor:
    """Vectors along `dim`, each of length 1, in float32; a zero vector stays zero."""
    vectors = vectors.float()
    return vectors / torch.linalg.vector_norm(vectors, dim=dim, keepdim=True).clamp_min(LEAST_NORM)


def fingerprint(tensors: Mapping[str, torch.Tensor], settings: Iterable[object] = ()) -> str:
    """16 hexadecimal digits over named tensors and settings, the same on every machine."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    for setting in settings:
        digest.update(f"{setting}\n".encode())
    return digest.hexdigest()[:16]


def open_encoder(
    name_or_folder: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Encoder:
    """An encoder by name: "labels", "open_clip:FOLDER", "vlm:NAME" (a model's own tokens), or the folder or hub id of a
    CLIP, SigLIP or SigLIP 2 checkpoint.

    dtype: float32 where nothing is said; half precision is meant for CUDA.
    """
    name = str(name_or_folder)
    place = check_device(device) or torch.device("cpu")
    kind = dtype or torch.float32
    if kind not in DTYPES:
        raise EncoderError(f"expected dtype torch.float32, torch.float16 or torch.bfloat16, got {dtype!r}")
    if name == "labels":
        from arr_coc.embedding.labels import Labels

        return Labels.open(place, kind)
    if name.startswith("open_clip:"):
        from arr_coc.embedding.open_clip import open_open_clip

        return open_open_clip(name.removeprefix("open_clip:"), place, kind)
    if name.startswith("vlm:"):
        from arr_coc.vlm.api import load
        from arr_coc.vlm.vlm_tokens import VlmTokens

        vlm = load(name.removeprefix("vlm:"), dtype=kind)
        vlm.model.to(place)
        return VlmTokens(vlm)
    from arr_coc.embedding.checkpoints import open_checkpoint

    return open_checkpoint(name, place, kind)
