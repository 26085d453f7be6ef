"""Reading images: a file, PIL, numpy or torch image becomes one float `Picture`.

Notable:
- all four kinds give the same pixels, and 8-bit images are downscaled by the same 8-bit resampler;
- EXIF orientation is applied and transparency is blended with white before anything else;
- `Picture.notes` lists every change beyond reading.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError, ImageError, first_line, whole_number
from arr_coc.files import read_bytes
from arr_coc.types.grid import cell_boxes, check_grid

# What Pillow's decoders raise on broken files, in addition to its own errors.
DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, RuntimeError, TypeError, LookupError, ArithmeticError, AttributeError,
    struct.error, zlib.error, MemoryError,
)  # fmt: skip

EXIF_ORIENTATION = 0x0112
TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange width and height

ImageLike: TypeAlias = "str | os.PathLike[str] | Image.Image | np.ndarray | torch.Tensor"


Numbers: TypeAlias = "torch.Tensor | np.ndarray | Sequence[Any] | float"


def as_tensor(value: object, what: str) -> torch.Tensor:
    """A tensor, array, list or number as a tensor. `what` names it in the error.

    Arrays are copied: torch takes neither foreign byte orders, negative strides nor read-only memory.
    """
    if isinstance(value, torch.Tensor):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError
        dtype = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(array, dtype=dtype, order="C"))
    except (TypeError, ValueError):
        raise ArrCocError(f"expected {what} as a tensor, an array or numbers, got {type(value).__name__}") from None


@dataclass(frozen=True)
class Picture:
    """One decoded image.

    `pixels` is float32 `[3, H, W]` in [0, 1]; `original_size` is (height, width) after EXIF rotation and before scaling;
    `notes` lists changes to the image beyond reading it.
    """

    pixels: torch.Tensor
    original_size: tuple[int, int]
    notes: tuple[str, ...] = ()

    @cached_property
    def size(self) -> tuple[int, int]:
        """(height, width) in texture pixels."""
        return int(self.pixels.shape[-2]), int(self.pixels.shape[-1])

    def boxes(self, height: int, width: int) -> torch.Tensor:
        """Cells of an even grid as (x0, y0, x1, y1) in original pixels: float64 `[height * width, 4]`, row by row."""
        return cell_boxes(check_grid(height, width), self.original_size)

    def to_original(self, boxes: Numbers) -> torch.Tensor:
        """Map points or boxes `[..., 2 or 4]` (x, y) from texture pixels to original pixels: float64."""
        given = _check_boxes(boxes)
        return given * self._scale(given)

    def from_original(self, boxes: Numbers) -> torch.Tensor:
        """The inverse of `to_original`."""
        given = _check_boxes(boxes)
        return given / self._scale(given)

    def _scale(self, boxes: torch.Tensor) -> torch.Tensor:
        """Original pixels per texture pixel, along the boxes' last axis."""
        (height, width), (original_height, original_width) = self.size, self.original_size
        scale = torch.tensor([original_width / width, original_height / height], dtype=torch.float64)
        return scale.to(boxes.device).repeat(boxes.shape[-1] // 2)


def read_picture(image: ImageLike, *, max_side: int | None = 1024, device: torch.device | str | None = None) -> Picture:
    """Read one image of any supported kind. The longer side is downscaled to `max_side` (None: never).

    The pixels are a copy without gradient.
    """
    longest = max_side if max_side is None or type(max_side) is int else whole_number(max_side) or 0
    if longest is not None and longest < 1:
        raise ImageError(f"max_side must be a whole number of pixels, at least 1, or None; got {max_side!r}")
    place = check_device(device)
    notes: list[str] = []
    planes = _to_planes(image, notes)  # [1|3|4, H, W], uint8 or float32 in [0, 1]
    original_size = (int(planes.shape[-2]), int(planes.shape[-1]))
    if planes.shape[0] == 4:
        planes = _over_white(planes, notes)
    planes = _shrink(planes, longest).contiguous()
    planes = planes.to(place) if place is not None else planes
    unit = planes.float().div_(255) if planes.dtype == torch.uint8 else planes.clamp(0, 1)
    # A gray image is three views of one plane, without a copy.
    return Picture(unit.expand(3, -1, -1), original_size, tuple(notes))


def is_batch(image: object) -> bool:
    """Whether `image` holds several images: a list or tuple, or an array or tensor with four dimensions."""
    return isinstance(image, list | tuple) or (isinstance(image, np.ndarray | torch.Tensor) and image.ndim == 4)


def read_batch(
    images: Sequence[ImageLike] | np.ndarray | torch.Tensor, *, max_side: int | None, device: torch.device | str | None
) -> list[Picture]:
    """Read the images of a batch one by one. An error names the image."""
    if len(images) == 0:
        raise ImageError("expected at least one image, got an empty batch")
    pictures = []
    for number, image in enumerate(images, start=1):
        try:
            pictures.append(read_picture(image, max_side=max_side, device=device))
        except ImageError as error:
            raise ImageError(f"image {number} of {len(images)}: {error}") from None
    return pictures


def _to_planes(image: ImageLike, notes: list[str]) -> torch.Tensor:
    if isinstance(image, str | os.PathLike):
        return _from_file(image, notes)
    if isinstance(image, Image.Image):
        return _from_pil(image, notes)
    if isinstance(image, np.ndarray):
        return _from_numpy(image)
    if isinstance(image, torch.Tensor):
        return _from_torch(image)
    raise ImageError(f"expected a path, a PIL image, a numpy array or a torch tensor, got {type(image).__name__}")


def _from_file(name: str | os.PathLike[str], notes: list[str]) -> torch.Tensor:
    with open_image(name) as opened:
        return _from_pil(opened, notes)


@contextmanager
def open_image(name: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """An image file, opened by Pillow. Whatever fails inside the `with` becomes an `ImageError` that names the file."""
    path = Path(name)
    data = read_bytes(name, "an image file", ImageError)
    try:
        # Between one and two times its limit Pillow only warns. Such scans are legitimate: drop the warning.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as opened:
                yield opened
    except Image.DecompressionBombError:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        raise ImageError(
            f"{str(path)!r} claims more than {limit:.0f} million pixels, the decompression limit; "
            "scale it down first, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from None
    except UnidentifiedImageError:
        raise ImageError(f"{str(path)!r} is not an image in a format that Pillow can read") from None
    except ImageError as error:
        raise ImageError(f"{str(path)!r}: {error}") from None
    except DECODING_ERRORS as error:
        raise ImageError(f"{str(path)!r} is corrupt or truncated ({first_line(error)})") from None


def _from_pil(image: Image.Image, notes: list[str]) -> torch.Tensor:
    if 0 in image.size:
        raise ImageError(f"the image has no pixels (size {image.size[0]}x{image.size[1]})")
    try:
        frames = getattr(image, "n_frames", 1)
        image.load()
        if frames > 1:
            notes.append(f"animated: frame {image.tell() + 1} of {frames} is used")
        if image.getexif().get(0x0112) in range(2, 9):
            image = ImageOps.exif_transpose(image)
            notes.append("rotated as its EXIF orientation says")
    except Image.DecompressionBombError:
        raise
    except DECODING_ERRORS as error:
        raise ImageError(f"the image is corrupt or truncated ({first_line(error)})") from None
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return _from_deep_gray(image, notes)
    try:
        if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
            # Pillow cannot turn gray with premultiplied alpha into RGBA in one step.
            return _split(np.asarray((image.convert("LA") if image.mode == "La" else image).convert("RGBA")))
        mode = "L" if image.mode in ("L", "1") else "RGB"
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))  # `convert` copies in any case
        return _split(pixels[..., None] if mode == "L" else pixels)
    except DECODING_ERRORS as error:
        raise ImageError(
            f"Pillow cannot turn this image of mode {image.mode!r} into RGB ({first_line(error)})"
        ) from None


def _from_deep_gray(image: Image.Image, notes: list[str]) -> torch.Tensor:
    """Gray with more than 8 bits. Pillow's own conversion would clip at 255."""
    values = np.asarray(image).astype(np.float64)
    if image.mode == "F":
        return _float_planes(torch.from_numpy(values).float()[None])
    top = 65535.0
    if values.min() < 0 or values.max() > top:
        raise ImageError(
            f"expected integer pixels from 0 to 65535, got {values.min():.0f} to {values.max():.0f}; rescale them first"
        )
    notes.append("16-bit gray, scaled by 65535")
    return torch.from_numpy((values / top).astype(np.float32))[None]


def _from_numpy(array: np.ndarray) -> torch.Tensor:
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        raise ImageError(
            f"a numpy image is [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], got {list(array.shape)}, which looks "
            "channels-first; use numpy.moveaxis(image, 0, -1), or pass a torch tensor"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[-1] not in (1, 3, 4)):
        raise ImageError(f"a numpy image is [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], got {list(array.shape)}")
    if array.dtype == np.uint16:  # torch has no arithmetic for it
        array = array.astype(np.float32) / 65535.0
    if not (array.dtype == np.uint8 or array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating)):
        raise ImageError(_dtype_message(str(array.dtype), "image.astype('uint8')"))
    return _checked(as_tensor(array[None], "the image") if array.ndim == 2 else _split(array))


def _split(array: np.ndarray) -> torch.Tensor:
    """`[H, W, C]` to contiguous planes `[C, H, W]`. OpenCV is faster than a transposed copy."""
    if array.dtype == np.uint8 and array.size:
        return torch.from_numpy(np.stack(cv2.split(np.ascontiguousarray(array))))
    return as_tensor(np.moveaxis(array, -1, 0), "the image")


def _from_torch(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim == 3 and tensor.shape[0] not in (1, 3, 4) and tensor.shape[-1] in (1, 3, 4):
        raise ImageError(
            f"a torch image is [H, W], [1, H, W], [3, H, W] or [4, H, W], got {list(tensor.shape)}, which looks "
            "channels-last; use image.permute(2, 0, 1), or pass a numpy array"
        )
    if tensor.ndim not in (2, 3) or (tensor.ndim == 3 and tensor.shape[0] not in (1, 3, 4)):
        raise ImageError(f"a torch image is [H, W], [1, H, W], [3, H, W] or [4, H, W], got {list(tensor.shape)}")
    if tensor.dtype == torch.uint16:
        tensor = tensor.to(torch.float32) / 65535
    if not (tensor.dtype in (torch.uint8, torch.bool) or tensor.dtype.is_floating_point):
        raise ImageError(_dtype_message(str(tensor.dtype), "image.to(torch.uint8)"))
    return _checked(tensor.detach()[None] if tensor.ndim == 2 else tensor.detach())


def _dtype_message(dtype: str, remedy: str) -> str:
    return f"expected uint8 from 0 to 255, uint16, bool or floats from 0 to 1, got {dtype}; convert it, e.g. {remedy}"


def _checked(planes: torch.Tensor) -> torch.Tensor:
    if planes.shape[-1] == 0 or planes.shape[-2] == 0:
        raise ImageError(f"the image has no pixels (shape {list(planes.shape)})")
    if planes.dtype == torch.uint8:
        return planes
    return _float_planes(planes.float())


def _float_planes(planes: torch.Tensor) -> torch.Tensor:
    low, high = (float(v) for v in torch.aminmax(planes.detach()))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError("the image holds NaN or infinite values; replace them, e.g. with torch.nan_to_num(image)")
    # Resizing and half precision leave values slightly outside; anything more is a scaling mistake.
    if low < -1e-3 or high > 1 + 1e-3:
        raise ImageError(
            f"float images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; "
            "divide by 255, or undo the normalisation"
        )
    return planes.clamp(0, 1)


def _over_white(planes: torch.Tensor, notes: list[str]) -> torch.Tensor:
    """Blend with white before scaling: afterwards, colour under transparent pixels would bleed into neighbours."""
    top = 255.0 if planes.dtype == torch.uint8 else 1.0
    alpha = planes[3:].float() / top
    if bool((alpha < 1).any()):
        notes.append("transparency blended with white")
    laid = planes[:3].float() * alpha + top * (1 - alpha)
    return laid.round().to(torch.uint8) if planes.dtype == torch.uint8 else laid


def _shrink(planes: torch.Tensor, max_side: int | None) -> torch.Tensor:
    height, width = planes.shape[-2:]
    longest = max(height, width)
    if max_side is None or longest <= max_side:
        return planes
    size = (max(1, round(height * max_side / longest)), max(1, round(width * max_side / longest)))
    if planes.dtype == torch.uint8 and planes.is_cuda:  # the 8-bit resampler exists on the CPU only
        planes = planes.float() / 255
    return F.interpolate(planes[None], size=size, mode="bilinear", antialias=True, align_corners=False)[0]


def _check_boxes(boxes: Numbers) -> torch.Tensor:
    given = as_tensor(boxes, "points or boxes").double()
    if given.ndim == 0 or given.shape[-1] not in (2, 4):
        raise ArrCocError(f"expected points [..., 2] or boxes [..., 4], got {list(given.shape)}")
    return given


def image_size(image: object) -> tuple[int, int] | None:
    """Width and height of an image, upright, without decoding it; None where it is no image."""
    if isinstance(image, Image.Image):
        turned = image.getexif().get(EXIF_ORIENTATION) in TURNED
        return image.size[::-1] if turned else image.size
    if isinstance(image, np.ndarray | torch.Tensor) and image.ndim in (2, 3):
        sides = [int(side) for side in image.shape]
        if len(sides) == 3:
            sides = sides[1:] if isinstance(image, torch.Tensor) else sides[:2]
        return sides[1], sides[0]
    if isinstance(image, str | os.PathLike):
        with open_image(image) as opened:
            return image_size(opened)
    return None


def rgb_image(image: ImageLike) -> tuple[Image.Image, tuple[str, ...]]:
    """The image in RGB, upright, transparency blended with white, and what was changed beyond reading it."""
    plain = isinstance(image, Image.Image) and image.mode == "RGB" and getattr(image, "n_frames", 1) == 1
    if isinstance(image, Image.Image) and plain and image.getexif().get(EXIF_ORIENTATION, 1) == 1:
        return image, ()
    read = read_picture(image, max_side=None)
    pixels = read.pixels.mul(255).round().byte()  # [3, H, W]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy()), read.notes
