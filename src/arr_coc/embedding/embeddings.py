"""An encoder, its projection and a cache: encode an image once, ask many questions.

    embeddings = arr_coc.Embeddings("labels")
    texture = arr_coc.TextureArray.from_image(image, embeddings=embeddings)  # embedding_00 .. 15, computed on first use
    embeddings.scores(texture, ["Where is the dog?", "Where is the cat?"], grid=(44, 20))  # [2, 880]

- An image is encoded on first use, and not again while the texture lives or the cache holds it.
- A further question costs its text encoding and one small matrix product; a repeated question only the product.
- A score is the cosine between a cell and a question in the compressed space (`projection.py`), averaged over the cell
  or pixel that is read. It uses all k dimensions of the projection; the texture's 16 channels hold the first 16 of them
  (padded with zeros if there are fewer).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from arr_coc.embedding.cache import EmbeddingCache, content_key
from arr_coc.embedding.encoder import Encoder, Mode, open_encoder
from arr_coc.embedding.field import Field
from arr_coc.embedding.projection import Projection
from arr_coc.errors import ArrCocError, ProjectionError
from arr_coc.texture.array import TextureArray
from arr_coc.texture.layout import EMBEDDING_NAMES
from arr_coc.types.image import ImageLike, Numbers, read_picture

CACHED_QUESTIONS = 4096
SHIPPED = Path(__file__).parent / "projections"


@dataclass(frozen=True)
class EncoderRuns:
    """How many images and questions were encoded."""

    pictures: int = 0
    questions: int = 0


class Embeddings:
    """Compressed dense features of images, and the scores of questions on them."""

    def __init__(
        self,
        encoder: Encoder | str | Path,
        projection: Projection | str | Path | None = None,
        *,
        cache: EmbeddingCache | None = None,
        mode: Mode = "fast",
    ) -> None:
        """Combine an encoder with a projection.

        encoder: an encoder, or a name for `open_encoder`. projection: one, or its file; by default the one that ships
        for the encoder. cache: by default 256 MB of memory. mode: "fast" is one pass of the encoder, "native" covers
        the image with windows at full size.
        """
        self.encoder = encoder if isinstance(encoder, Encoder) else open_encoder(encoder)
        if projection is None:
            projection = shipped_projection(self.encoder)
        self.projection = projection if isinstance(projection, Projection) else Projection.load(projection)
        check_projection(self.projection, self.encoder)
        if mode not in get_args(Mode):
            raise ArrCocError(f"expected the mode 'fast' or 'native', got {mode!r}")
        self.cache = EmbeddingCache() if cache is None else cache
        self.mode: Mode = mode
        self._questions: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._runs = [0, 0]
        self._lock = threading.Lock()

    @property
    def dims(self) -> int:
        return self.projection.dims

    @property
    def identity(self) -> str:
        """An id of everything that compressed features depend on except the image."""
        return f"{self.encoder.identity}/{self.projection.identity}/{self.mode}"

    @property
    def runs(self) -> EncoderRuns:
        """How many images and questions this object has encoded."""
        return EncoderRuns(*self._runs)

    def field(self, image: ImageLike | TextureArray | Field) -> Field:
        """An image's features, to be read by cell, level or point. A texture keeps them for further questions."""
        if isinstance(image, Field):
            return image
        if isinstance(image, TextureArray):
            texture = image
            return texture.once(self._key, lambda: self._encode(texture.pixels, texture.pixels.device))
        return self._encode(read_picture(image, max_side=None).pixels, self.encoder.device)

    def compressed(self, image: ImageLike | TextureArray | Field) -> torch.Tensor:
        """An image's features on the encoder's own cells, each of length 1: float32 `[k, h, w]`."""
        return self.field(image).features

    def attach(self, texture: TextureArray, features: torch.Tensor) -> Field:
        """Give a texture known compressed features `[k, h, w]`, so that it is not encoded."""
        return texture.once(self._key, lambda: Field(features, texture.size))

    def channels(self, texture: TextureArray) -> torch.Tensor:
        """The texture's embedding channels `[16, h, w]`."""
        return _to_channels(self.compressed(texture))

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """An image `[3, H, W]` in [0, 1] to `[16, h, w]`, as a function that a texture can be supplied with."""
        return _to_channels(self.compressed(pixels))

    @property
    def _key(self) -> str:
        return f"field of {self.identity}"

    def _encode(self, pixels: torch.Tensor, device: torch.device) -> Field:
        """Pixels are hashed first, so only an unknown image is moved to the encoder's device."""

        def make() -> torch.Tensor:
            with self._lock:
                self._runs[0] += 1
            return self.projection.compress(self.encoder.dense(pixels, self.mode).features)

        key = content_key(pixels, self.encoder.identity, self.projection.identity, self.mode)
        features = self.cache.get(key, make).to(device)
        return Field(features, (int(pixels.shape[-2]), int(pixels.shape[-1])))

    def query(self, questions: Sequence[str]) -> torch.Tensor:
        """Questions in the compressed space, each of length 1: float32 `[Q, k]`; new ones are encoded in one batch."""
        if isinstance(questions, str):
            raise ArrCocError("expected a list of questions, got one text: put it into brackets")
        asked = list(questions)
        with self._lock:
            known = {one: self._questions[one] for one in asked if one in self._questions}
            for one in known:
                self._questions.move_to_end(one)
        fresh = list(dict.fromkeys(one for one in asked if one not in known))
        if fresh:
            vectors = self.projection.compress_text(self.encoder.text(fresh).cpu())
            known |= dict(zip(fresh, vectors, strict=True))
            with self._lock:
                self._runs[1] += len(fresh)
                self._questions.update({one: known[one] for one in fresh})
                while len(self._questions) > CACHED_QUESTIONS:
                    self._questions.popitem(last=False)
        return torch.stack([known[one] for one in asked]) if asked else torch.zeros(0, self.dims)

    def scores(
        self,
        image: ImageLike | TextureArray | Field,
        questions: Sequence[str],
        *,
        grid: tuple[int, int] | None = None,
        level: Numbers | None = None,
        xy: Numbers | None = None,
    ) -> torch.Tensor:
        """The score of each question in each cell: float32 `[Q, N]`, from -1 to 1.

        Cells are the encoder's own, those of a `grid` (rows, columns), the pixels of a pyramid `level`, or points `xy`
        `[N, 2]` at one level or at one each. A texture or a field is encoded once, however often it is asked; an image
        is looked up by its content each time.
        """
        if grid is not None and (level is not None or xy is not None):
            raise ArrCocError("expected a grid, a level, or points at a level, got a grid and one of the others")
        field = self.field(image)
        if grid is not None:
            features = field.grid(*grid).flatten(1)
        elif xy is not None:
            features = field.sample(xy, 0.0 if level is None else level).T
        elif level is not None:
            features = field.level(level).flatten(1)  # type: ignore[arg-type]
        else:
            features = field.cells()
        return self.query(questions).to(features.device) @ features

    def relation(self, texture: TextureArray, question: str) -> Field | None:
        """How much each place has to do with a question, `[1, h, w]`, if the encoder knows better than by cosines.

        What is read of the image is kept in the texture. None: use the cosines of `query` and `field`.
        """
        if self.mode != "fast":
            return None

        def read() -> torch.Tensor | None:
            with self._lock:
                self._runs[0] += 1
            return self.encoder.relation_input(texture.pixels)

        if type(self.encoder).relation_input is Encoder.relation_input:
            return None
        found = texture.once(f"relation to {self.encoder.identity}", read)
        return None if found is None else Field(self.encoder.relate(found, [question]), texture.size)

    def with_empty_cache(self) -> Embeddings:
        """The same encoder, projection and mode with an empty cache and no known questions."""
        return type(self)(self.encoder, self.projection, mode=self.mode)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy starts without known questions and counts from zero."""
        return partial(type(self), cache=self.cache, mode=self.mode), (self.encoder, self.projection)

    def __repr__(self) -> str:
        return f"Embeddings({self.encoder.identity}, {self.dims} dimensions, {self.mode})"


def _to_channels(features: torch.Tensor) -> torch.Tensor:
    """`[k, h, w]` truncated or zero-padded to the texture's 16 channels."""
    count = len(EMBEDDING_NAMES)
    return torch.cat([features[:count], features.new_zeros(max(0, count - len(features)), *features.shape[1:])])


def check_projection(projection: Projection, encoder: Encoder) -> None:
    """Refuse a projection of another encoder's features."""
    if projection.encoder != encoder.identity or projection.width != encoder.width:
        raise ProjectionError(
            f"this projection was fitted to the encoder {projection.encoder!r} of {projection.width} dimensions, got "
            f"{encoder.identity!r} of {encoder.width}: fit one with arr-coc fit-embeddings"
        )


def shipped_projection(encoder: Encoder) -> Projection:
    """The projection that ships with the package for this encoder."""
    for path in sorted(SHIPPED.glob("*.safetensors")):
        found = Projection.load(path)
        if found.encoder == encoder.identity:
            return found
    raise ProjectionError(
        f"no projection ships for the encoder {encoder.identity!r}: fit one with arr-coc fit-embeddings, and pass its file"
    )
