"""Pictures and videos as users have them, as the processors want them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from arr_coc.errors import ImageError, PromptError
from arr_coc.frames.clip import Clip
from arr_coc.texture import TextureArray
from arr_coc.types.image import ImageLike, read_picture
from arr_coc.vlm.look import Source

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings

ORIENTATION = 0x0112  # the EXIF tag


def image_source(image: ImageLike, embeddings: Embeddings | None = None) -> Source:
    """Any image as RGB, upright, transparency laid over white."""
    picture = _rgb(image)
    return Source(picture, picture.size, embeddings)


def original_source(image: ImageLike | TextureArray, embeddings: Embeddings | None = None) -> Source:
    """The original of a picture that a processor has seen already: it is looked at where it lies, also on a GPU."""
    if isinstance(image, TextureArray):
        height, width = image.original_size
        return Source(None, (width, height), embeddings, image)
    if isinstance(image, torch.Tensor):
        return Source(image, (image.shape[-1], image.shape[-2]), embeddings)
    return image_source(image, embeddings)


def video_source(video: Any, embeddings: Embeddings | None = None) -> Source:
    """Frames in a list, an array `[T, H, W, 3]` or a tensor `[T, 3, H, W]`, or a clip, as RGB pictures of one size."""
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
            pictures.append(_rgb(frame))
        except ImageError as error:
            raise ImageError(f"frame {number} of {len(frames)}: {error}") from None
    sizes = {picture.size for picture in pictures}
    if len(sizes) > 1:
        raise PromptError(f"expected frames of one size, got {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")
    return Source(pictures, pictures[0].size, embeddings, notes=notes)


def _rgb(image: ImageLike) -> Image.Image:
    if isinstance(image, Image.Image) and image.mode == "RGB" and image.getexif().get(ORIENTATION, 1) == 1:
        return image
    pixels = read_picture(image, max_side=None).pixels  # [3, H, W] in [0, 1]
    return Image.fromarray(pixels.mul(255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy())


def smaller(source: Source, share: float) -> Source:
    """The picture scaled down to a share of its area; boxes stay on the original."""
    width, height = source.picture.size
    side = min(1.0, max(share, 0.0) ** 0.5)
    size = (max(1, round(width * side)), max(1, round(height * side)))
    return Source(source.picture.resize(size, Image.Resampling.BICUBIC), source.size, source.embeddings)


def rows_of(things: Any, rows: int, what: str, is_one: Any) -> list[Sequence[Any]]:
    """Whatever was given for a batch of `rows`, as one list per row."""
    if things is None:
        return [()] * rows
    if rows == 1:
        if is_one(things):
            return [(things,)]
        if not isinstance(things, list | tuple | np.ndarray | torch.Tensor):
            raise PromptError(f"expected {what}s, got {type(things).__name__}")
        nested = isinstance(things, list | tuple) and len(things) == 1 and isinstance(things[0], list | tuple)
        return [tuple(things[0])] if nested and not is_one(things[0]) else [tuple(things)]
    if is_one(things) or not isinstance(things, list | tuple) or len(things) != rows:
        came = 1 if is_one(things) else len(things)
        raise PromptError(f"expected {what}s for each of the {rows} questions (an empty list for none), got {came}")
    for row in things:
        if row is not None and not is_one(row) and not isinstance(row, list | tuple):
            raise PromptError(f"expected {what}s for each of the {rows} questions, got {type(row).__name__} for one")
    return [() if row is None else (row,) if is_one(row) else tuple(row) for row in things]


def is_image(thing: Any) -> bool:
    return not isinstance(thing, list | tuple) and not (
        isinstance(thing, np.ndarray | torch.Tensor) and thing.ndim == 4
    )


def is_video(thing: Any) -> bool:
    """Frames: an array with four dimensions, or a list of images rather than of videos."""
    if isinstance(thing, np.ndarray | torch.Tensor):
        return thing.ndim == 4
    if isinstance(thing, str | os.PathLike | Clip):
        return True
    return isinstance(thing, list | tuple) and len(thing) > 0 and all(is_image(frame) for frame in thing)
