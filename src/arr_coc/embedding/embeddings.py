"""Encode once, ask many times: an encoder, its projection and a cache, as one thing to hold.

    embeddings = arr_coc.Embeddings("labels")
    texture = arr_coc.TextureArray.from_image(image, embeddings=embeddings)    # embedding_00 .. 15, when asked for
    embeddings.scores(texture, ["Where is the dog?", "Where is the cat?"], grid=(44, 20))    # [2, 880]

Notable:
- a picture is encoded when something first asks, and then never again while the texture lives or the cache remembers it;
- a question on a texture costs its text encoding and one small product; a question that was asked before not even the former;
- a score is the cosine between a place and a question in the compressed space (`compression.py`), averaged over the cell or
  the pixel it is read at, and uses all k dimensions of the projection; the texture has 16 channels, which hold the first 16
  of them (zeros where there are fewer).
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from arr_coc.embedding.cache import EmbeddingCache, content_key
from arr_coc.embedding.compression import Projection
from arr_coc.embedding.encoder import Encoder, Mode, open_encoder
from arr_coc.embedding.field import Field
from arr_coc.errors import ArrCocError, ProjectionError
from arr_coc.texture.array import TextureArray
from arr_coc.texture.layout import EMBEDDING_NAMES
from arr_coc.types.image import ImageLike, read_picture
from arr_coc.types.tensors import Numbers

REMEMBERED = 4096  # questions
SHIPPED = Path(__file__).parent / "projections"


@dataclass(frozen=True)
class Runs:
    """How often the encoder worked."""

    pictures: int = 0
    questions: int = 0


class Embeddings:
    """Dense features of pictures in a few dimensions, and what questions find in them."""

    def __init__(
        self,
        encoder: Encoder | str | Path,
        projection: Projection | str | Path | None = None,
        *,
        cache: EmbeddingCache | None = None,
        mode: Mode = "fast",
    ) -> None:
        """Tie them together.

        encoder: an encoder, or what `open_encoder` takes. projection: one, or its file; without, the one that ships with
        the encoder. cache: without one, 256 MB of memory. mode: "fast" is one pass of the encoder, "native" goes over the
        picture in windows.
        """
        self.encoder = encoder if isinstance(encoder, Encoder) else open_encoder(encoder)
        if projection is None:
            self.projection = shipped(self.encoder)
        else:
            self.projection = projection if isinstance(projection, Projection) else Projection.load(projection)
        fits(self.projection, self.encoder)
        if mode not in get_args(Mode):
            raise ArrCocError(f"expected the mode 'fast' or 'native', got {mode!r}")
        self.cache = EmbeddingCache() if cache is None else cache
        self.mode: Mode = mode
        self._start()

    def _start(self) -> None:
        self._questions: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._runs = [0, 0]
        self._lock = threading.Lock()

    @property
    def dims(self) -> int:
        return self.projection.dims

    @property
    def identity(self) -> str:
        """What the compressed features depend on, beside the picture."""
        return f"{self.encoder.identity}/{self.projection.identity}/{self.mode}"

    @property
    def runs(self) -> Runs:
        """How often the encoder has worked for this object: pictures encoded, questions encoded."""
        return Runs(*self._runs)

    # Pictures

    def compressed(self, image: ImageLike | TextureArray | Field) -> torch.Tensor:
        """A picture's features on the encoder's own cells, each of length 1: float32 `[k, h, w]`."""
        return self.see(image).features

    def see(self, image: ImageLike | TextureArray | Field) -> Field:
        """A picture's features, to be read by cell, level or point. A texture remembers them, for any number of questions."""
        if isinstance(image, Field):
            return image
        if isinstance(image, TextureArray):
            texture = image
            return texture.once(f"field of {self.identity}", lambda: self._field(texture.pixels, texture.pixels.device))
        return self._field(read_picture(image, max_side=None).pixels, self.encoder.device)

    def recall(self, texture: TextureArray, features: torch.Tensor) -> Field:
        """Give a texture compressed features `[k, h, w]` that are known already, so that it is not encoded."""
        return texture.once(f"field of {self.identity}", lambda: Field(features, texture.size))

    def channels(self, texture: TextureArray) -> torch.Tensor:
        """For the texture's embedding channels: `[16, h, w]`."""
        return sixteen(self.see(texture).features)

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """A picture `[3, H, W]` in [0, 1] to `[16, h, w]`, as a function that a texture can be supplied with."""
        return sixteen(self.compressed(pixels))

    def _field(self, pixels: torch.Tensor, device: torch.device) -> Field:
        """Its features on `device`. Pixels are hashed first: only a picture that is not known yet travels to the encoder."""

        def encode() -> torch.Tensor:
            with self._lock:
                self._runs[0] += 1
            return self.projection.compress(self.encoder.dense(pixels, self.mode).features)

        key = content_key(pixels, self.encoder.identity, self.projection.identity, self.mode)
        features = self.cache.get(key, encode).to(device)
        return Field(features, (int(pixels.shape[-2]), int(pixels.shape[-1])))

    # Questions

    def query(self, questions: Sequence[str]) -> torch.Tensor:
        """Questions in the compressed space, each of length 1: float32 `[Q, k]`; new ones are encoded in one batch."""
        if isinstance(questions, str):
            raise ArrCocError("expected a list of questions, got one text: put it into brackets")
        wanted = list(questions)
        with self._lock:
            known = {one: self._questions[one] for one in wanted if one in self._questions}
            for one in known:
                self._questions.move_to_end(one)
        fresh = list(dict.fromkeys(one for one in wanted if one not in known))
        if fresh:
            vectors = self.projection.compress_text(self.encoder.text(fresh).cpu())
            known |= dict(zip(fresh, vectors, strict=True))
            with self._lock:
                self._runs[1] += len(fresh)
                self._questions.update({one: known[one] for one in fresh})
                while len(self._questions) > REMEMBERED:
                    self._questions.popitem(last=False)
        return torch.stack([known[one] for one in wanted]) if wanted else torch.zeros(0, self.dims)

    def scores(
        self,
        image: ImageLike | TextureArray | Field,
        questions: Sequence[str],
        *,
        grid: tuple[int, int] | None = None,
        level: Numbers | None = None,
        xy: Numbers | None = None,
    ) -> torch.Tensor:
        """What each question has in common with each place: float32 `[Q, N]`, from -1 to 1.

        The places are the encoder's own cells, the cells of a `grid` (rows, columns), the pixels of a pyramid `level`, or
        points `xy` `[N, 2]` at a level or at one each. A texture or a field (`see`) is encoded once however often it is
        asked; an image is looked up by its content each time.
        """
        if grid is not None and (level is not None or xy is not None):
            raise ArrCocError("expected a grid, a level, or points at a level, got a grid beside another")
        field = self.see(image)
        if grid is not None:
            features = field.grid(*grid).flatten(1)
        elif xy is not None:
            features = field.sample(xy, 0.0 if level is None else level).T
        elif level is not None:
            features = field.level(level).flatten(1)  # type: ignore[arg-type]
        else:
            features = field.own()
        return self.query(questions).to(features.device) @ features

    def anew(self) -> Embeddings:
        """The same encoder and projection with an empty cache, as if nothing had been asked yet."""
        made = copy.copy(self)
        made.cache = EmbeddingCache()
        return made

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without questions and counts from zero; locks do not travel."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"Embeddings({self.encoder.identity}, {self.dims} dimensions, {self.mode})"


def sixteen(features: torch.Tensor) -> torch.Tensor:
    """`[k, h, w]` for the texture's 16 channels: the first 16 dimensions, or all of fewer and zeros after them."""
    room = len(EMBEDDING_NAMES)
    if len(features) >= room:
        return features[:room]
    return torch.cat([features, features.new_zeros(room - len(features), *features.shape[1:])])


def fits(projection: Projection, encoder: Encoder) -> None:
    """Complain about a projection of another encoder's features."""
    if projection.encoder != encoder.identity or projection.width != encoder.width:
        raise ProjectionError(
            f"this projection was fitted to the encoder {projection.encoder!r} of {projection.width} dimensions, got "
            f"{encoder.identity!r} of {encoder.width}: fit one with arr-coc fit-embeddings"
        )


def shipped(encoder: Encoder) -> Projection:
    """The projection that ships for this encoder."""
    for path in sorted(SHIPPED.glob("*.safetensors")):
        found = Projection.load(path)
        if found.encoder == encoder.identity:
            return found
    raise ProjectionError(
        f"no projection ships for the encoder {encoder.identity!r}: fit one with arr-coc fit-embeddings, and name its file"
    )
