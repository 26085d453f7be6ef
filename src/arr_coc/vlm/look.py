"""A look: pictures preprocessed and encoded once, ready for any number of questions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arr_coc.adapters.base import Encoded
from arr_coc.adapters.processor import VisionInputs
from arr_coc.texture import TextureArray
from arr_coc.timing import Stopwatch

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings


class Source:
    """An original picture (or a video's frames), and its texture, built when first asked for."""

    def __init__(
        self,
        picture: Any,
        size: tuple[int, int] | None,
        embeddings: Embeddings | None = None,
        texture: TextureArray | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.picture = picture
        self.size = size  # width, height
        self.embeddings = embeddings  # what fills the texture's embedding channels
        self.notes = notes  # what was done to it, or is wrong with it
        self._texture = texture
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}  # a lock does not travel

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    @property
    def built(self) -> TextureArray | None:
        """The texture, if anybody has asked for it."""
        return self._texture

    def texture(self, watch: Stopwatch | None = None) -> TextureArray:
        with self._lock:
            if self._texture is None:
                with nullcontext() if watch is None else watch.stage("texture"):
                    self._texture = TextureArray.from_image(self.picture, embeddings=self.embeddings)
            return self._texture


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder's answer for every picture of a look, with the depths whose attention it holds."""

    tokens: Sequence[Encoded]
    depths: frozenset[float]


@dataclass(eq=False)
class Look:
    """The pictures of a prompt after preprocessing; encoded when a question first needs it, then kept."""

    vision: VisionInputs
    images: tuple[tuple[Source, ...], ...]  # by row
    videos: tuple[tuple[Source, ...], ...]
    fps: float
    model: Any = field(repr=False)  # whose encodings these are
    attention_at: tuple[float, ...] = ()  # encoder depths whose attention is kept for selectors that want to see it
    encoded: dict[Any, Encoding] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return len(self.images)

    def sources(self, kind: str) -> list[Source]:
        """All originals of a kind, in the order of the batch."""
        return [source for row in (self.images if kind == "image" else self.videos) for source in row]

    def sizes(self) -> Mapping[str, list[tuple[int, int]]]:
        known = {kind: [source.size for source in self.sources(kind)] for kind in ("image", "video")}
        return {kind: [s for s in sizes if s is not None] for kind, sizes in known.items() if None not in sizes}
