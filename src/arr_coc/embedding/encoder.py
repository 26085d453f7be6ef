"""The encoder interface: an image becomes a grid of vectors and a question one vector, in one joint space.

- `dense` and `text` validate inputs and normalise outputs; a subclass only computes.
- Images are read as for the texture array, at their full size.
- `identity` covers weights and settings, but neither device nor dtype: half precision only rounds.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.nn.functional as F

from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError, EncoderError, first_line
from arr_coc.types.image import ImageLike, read_picture

Mode = Literal["fast", "native"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EXPECTED = (
    "expected 'labels', 'open_clip:FOLDER', 'vlm:NAME', 'module:Name', or the folder or hub id of a CLIP, SigLIP or "
    "SigLIP 2 checkpoint"
)


@dataclass(frozen=True, eq=False)
class DenseFeatures:
    """An image's features `[D, h, w]` in the joint space, each of length 1.

    The `h` x `w` cells tile the whole image evenly: cell (i, j) covers rows i*H/h to (i+1)*H/h of H.
    The dtype is float32, or the encoder's own on CUDA.
    """

    features: torch.Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns)."""
        return int(self.features.shape[1]), int(self.features.shape[2])

    def similarity(self, questions: torch.Tensor) -> torch.Tensor:
        """The cosine of each cell with each of the questions `[Q, D]` (from `Encoder.text`): float32 `[Q, h, w]`."""
        return torch.einsum("qd,dhw->qhw", questions.to(self.features.device).float(), self.features.float())


class Encoder(ABC):
    """An image-text encoder. A subclass sets `name` and `width` and implements `identity`, `encode` and `embed`.

    `name` is the kind ("labels", "clip", "siglip", "vlm"); `width` is D, the dimensions of the joint space.
    """

    name: str
    width: int
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype = torch.float32
    attends = False  # whether `attention` says where the encoder itself looks

    @property
    @abstractmethod
    def identity(self) -> str:
        """A stable id of kind, weights and settings. Projections and cached features belong to one identity."""

    @abstractmethod
    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        """An image `[3, H, W]` in [0, 1] on the encoder's device to features `[D, h, w]`, not normalised."""

    @abstractmethod
    def embed(self, questions: list[str]) -> torch.Tensor:
        """Questions, none of them empty, to vectors `[Q, D]`, not normalised."""

    def attention(self, image: ImageLike) -> torch.Tensor:
        """Where the encoder itself looks: the attention of its class token or pooled query, `[h, w]` with the sum 1."""
        if not self.attends:
            raise EncoderError(
                f"expected an encoder with a class token or a pooled query (CLIP, SigLIP), got {self.name}"
            )
        pixels = read_picture(image, max_side=None, device=self.device).pixels
        with torch.no_grad():
            return self.look(pixels).float()

    def look(self, pixels: torch.Tensor) -> torch.Tensor:
        """The attention `[h, w]` for an image `[3, H, W]`, for encoders that have `attends`."""
        raise NotImplementedError

    def relation_input(self, pixels: torch.Tensor) -> torch.Tensor | None:
        """What `relate` reads of an image `[3, H, W]`, computed once for all questions; None: the cosine of features is all."""
        return None

    def relate(self, found: torch.Tensor, questions: list[str]) -> torch.Tensor:
        """How much each cell has to do with each question, `[Q, h, w]`, by a better way than the cosine of features."""
        raise NotImplementedError

    def dense(self, image: ImageLike, mode: Mode = "fast") -> DenseFeatures:
        """An image's features on a grid, each of length 1.

        image: PIL, a torch tensor `[3, H, W]` in [0, 1], or anything else that the texture array reads; any size.
        mode: "fast" is one pass at about the encoder's own size; "native" is overlapping windows at full size.
        """
        if mode not in get_args(Mode):
            raise EncoderError(f"expected the mode 'fast' or 'native', got {mode!r}")
        pixels = read_picture(image, max_side=None, device=self.device).pixels
        with torch.no_grad():
            features = l2_normalize(self.encode(pixels, mode), dim=0)
        return DenseFeatures(features.to(self.dtype) if self.device.type == "cuda" else features)

    def text(self, questions: Sequence[str]) -> torch.Tensor:
        """Questions as vectors of length 1: float32 `[Q, D]`."""
        if isinstance(questions, str):
            raise EncoderError("expected a list of questions, got one text: put it into brackets")
        asked = list(questions)
        for number, question in enumerate(asked, start=1):
            if not isinstance(question, str) or not question.strip():
                got = "an empty one" if isinstance(question, str) else type(question).__name__
                raise EncoderError(f"expected a question with words in it, got {got} (question {number})")
        if not asked:
            return torch.zeros(0, self.width, device=self.device)
        with torch.no_grad():
            return l2_normalize(self.embed(asked), dim=1)

    def __repr__(self) -> str:
        return f"<encoder {self.identity}>"


def l2_normalize(vectors: torch.Tensor, dim: int) -> torch.Tensor:
    """Vectors along `dim` scaled to length 1, in float32; a zero vector stays zero."""
    return F.normalize(vectors.float(), dim=dim)


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


# Opening an encoder by name

Opener = Callable[[str, torch.device, torch.dtype], Encoder]
# By prefix: a function, or "module:function", imported on first use. A whole model as an encoder lies in a higher layer.
_openers: dict[str, Opener | str] = {"vlm": "arr_coc.vlm.token_encoder:open_vlm_tokens"}


def register_encoder(prefix: str, opener: Opener) -> None:
    """Make `open_encoder("prefix:REST")` call `opener(REST, device, dtype)`."""
    _openers[prefix] = opener


def open_encoder(
    name_or_folder: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Encoder:
    """Open an encoder by name. Worker processes call this with the name, so an encoder need not be picklable.

    name_or_folder: "labels"; the folder or hub id of a CLIP, SigLIP or SigLIP 2 checkpoint; "open_clip:FOLDER";
    "vlm:NAME" (a model's own tokens); or "module:Name", an Encoder class or a function without arguments that returns
    one, imported with the working folder on the path.
    dtype: float32 by default; half precision is meant for CUDA.
    """
    name = str(name_or_folder)
    place = check_device(device) or torch.device("cpu")
    dtype = dtype or torch.float32
    if dtype not in DTYPES:
        raise EncoderError(f"expected dtype torch.float32, torch.float16 or torch.bfloat16, got {dtype!r}")
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _openers:
        opener = _openers[prefix]
        if isinstance(opener, str):
            module, function = opener.split(":")
            opener = _openers[prefix] = getattr(importlib.import_module(module), function)
        return opener(rest, place, dtype)
    if name == "labels":
        from arr_coc.embedding.labels import LabelsEncoder

        return LabelsEncoder.open(place, dtype)
    from arr_coc.embedding.checkpoints import open_checkpoint, open_open_clip

    if colon and prefix == "open_clip":
        return open_open_clip(rest, place, dtype)
    if colon and len(prefix) > 1 and prefix.replace(".", "").isidentifier():  # one letter is a drive on Windows
        return _import_encoder(prefix, rest)
    return open_checkpoint(name, place, dtype)


def _import_encoder(module: str, attribute: str) -> Encoder:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except ArrCocError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise EncoderError(f"cannot make the encoder '{module}:{attribute}' ({why}): {EXPECTED}") from error
    finally:
        sys.path.remove(folder)
    if not isinstance(made, Encoder):
        raise EncoderError(f"expected '{module}:{attribute}' to make an Encoder, got {type(made).__name__}")
    return made
