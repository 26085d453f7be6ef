"""`Look`: images and videos preprocessed once, for any number of questions. Encodings are cached here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from arr_coc.adapters.base import Encoded, Visual
from arr_coc.adapters.processor import PromptProcessor, VisionInputs
from arr_coc.devices import Stopwatch
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import ImageError, PromptError
from arr_coc.frames.clip import Clip
from arr_coc.selectors.base import ImageSource
from arr_coc.texture import TextureArray
from arr_coc.types.image import ImageLike, rgb_image


class TokenCodec(Protocol):
    """A transform between encoder and language model: the form in which a look caches tokens."""

    @property
    def key(self) -> str:
        """Tokens cached under one key cannot be used under another."""

    def encode(self, visual: Visual, tokens: Encoded) -> Encoded:
        """The form to cache."""

    def decode(self, stored: Encoded) -> Encoded:
        """What selectors and the language model read."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoder's output for all images of a look, and the depths whose attention it holds."""

    tokens: Sequence[Encoded]
    depths: frozenset[float]


@dataclass(eq=False)
class Look:
    """The images of a prompt after preprocessing. They are encoded when a question first needs it, then kept."""

    vision: VisionInputs
    images: tuple[tuple[ImageSource, ...], ...]  # by row
    videos: tuple[tuple[ImageSource, ...], ...]
    fps: float
    model: Any = field(repr=False)  # the model that made the encodings
    attention_at: tuple[float, ...] = ()  # encoder depths whose attention is recorded for selectors
    encoded: dict[Any, Encoding] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return len(self.images)

    @property
    def is_mixed(self) -> bool:
        """Whether an image is shown with cells of different sizes."""
        return any(source.view is not None and source.view.role == "mixed" for source in self.sources("image"))

    def sources(self, kind: str) -> list[ImageSource]:
        """All originals of a kind ("image" or "video"), in the order of the batch."""
        return [source for row in (self.images if kind == "image" else self.videos) for source in row]

    def sizes(self) -> Mapping[str, list[tuple[int, int]]]:
        """(width, height) of the originals by kind, where all are known."""
        known = {kind: [source.size for source in self.sources(kind)] for kind in ("image", "video")}
        return {kind: [s for s in sizes if s is not None] for kind, sizes in known.items() if None not in sizes}


def take_look(
    model: Any,
    prompter: PromptProcessor,
    images: Sequence[Sequence[Any]],
    videos: Sequence[Sequence[Any]],
    fps: float,
    watch: Stopwatch,
    embeddings: Embeddings | None = None,
) -> Look:
    """Run every row's images and videos through the processor."""
    with watch.stage("preprocess"):
        still = tuple(tuple(image_source(image, embeddings) for image in row) for row in images)
        moving = tuple(tuple(video_source(video, embeddings) for video in row) for row in videos)
        look = Look(VisionInputs({}), still, moving, fps, model)
        if look.is_mixed:
            from arr_coc.vlm.mixed import preprocess_mixed

            return replace(look, vision=preprocess_mixed(prompter, still, moving, fps))
        return replace(look, vision=preprocess(prompter, still, moving, fps))


def preprocess(
    prompter: PromptProcessor,
    images: Sequence[Sequence[ImageSource]],
    videos: Sequence[Sequence[ImageSource]],
    fps: float,
) -> VisionInputs:
    return prompter.process(
        [[s.picture for s in row] for row in images], [[s.picture for s in row] for row in videos], fps
    )


def image_source(image: ImageLike | ImageSource, embeddings: Embeddings | None = None) -> ImageSource:
    """Any image as RGB, upright, transparency blended with white. A source stays as it is."""
    if isinstance(image, ImageSource):
        return image
    picture, notes = rgb_image(image)
    return ImageSource(picture, picture.size, embeddings, notes=notes)


def original_source(image: ImageLike | TextureArray, embeddings: Embeddings | None = None) -> ImageSource:
    """The original of an image that was preprocessed already. A tensor stays on its device."""
    if isinstance(image, TextureArray):
        height, width = image.original_size
        return ImageSource(None, (width, height), embeddings, image)
    if isinstance(image, torch.Tensor):
        return ImageSource(image, (image.shape[-1], image.shape[-2]), embeddings)
    return image_source(image, embeddings)


def video_source(video: Any, embeddings: Embeddings | None = None) -> ImageSource:
    """Frames (a list, an array `[T, H, W, 3]`, a tensor `[T, 3, H, W]`) or a clip, as RGB images of one size."""
    if isinstance(video, str | os.PathLike):
        raise PromptError(
            "expected a video as frames (a list of images, an array or a tensor), got a path: pass it as video="
        )
    notes: tuple[str, ...] = ()
    if isinstance(video, Clip):
        video, notes = video.frames, video.notes
    frames = list(video) if isinstance(video, list | tuple | np.ndarray | torch.Tensor) else None
    if not frames:
        raise PromptError(f"expected a video as frames, at least one, got {type(video).__name__}")
    pictures = []
    for number, frame in enumerate(frames, start=1):
        try:
            pictures.append(rgb_image(frame)[0])
        except ImageError as error:
            raise ImageError(f"frame {number} of {len(frames)}: {error}") from None
    sizes = {picture.size for picture in pictures}
    if len(sizes) > 1:
        raise PromptError(f"expected frames of one size, got {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")
    return ImageSource(pictures, pictures[0].size, embeddings, notes=notes)


def downscaled_source(source: ImageSource, share: float) -> ImageSource:
    """The image scaled to a share of its area. `size` stays the original's, so that boxes do, too."""
    width, height = source.picture.size
    side = min(1.0, max(share, 0.0) ** 0.5)
    size = (max(1, round(width * side)), max(1, round(height * side)))
    return ImageSource(
        source.picture.resize(size, Image.Resampling.BICUBIC), source.size, source.embeddings, view=source.view
    )
