"""A file that a visitor sent to a picture, or one sentence why not. It is read where it was put, and nowhere else."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from arr_coc.demo.limits import Limits
from arr_coc.errors import ImageError, first_line
from arr_coc.types.image import DECODING_ERRORS
from arr_coc.vlm.sources import image_source

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # decoded here; others start programs, or are no pictures


@dataclass(frozen=True, eq=False)
class Upload:
    """A visitor's own picture, upright and in RGB, under the name it came with."""

    name: str
    image: Image.Image


def read_upload(path: Path, name: str, folder: Path, limits: Limits) -> Upload:
    """The picture in a file of the upload folder; its size is looked at before a single pixel is decoded."""
    shown = Path(name).name[:80] or "the file"
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ImageError(f"expected a file that was uploaded here, got {shown!r} from elsewhere")
    try:
        size = path.stat().st_size
        if size > limits.megabytes * 1e6:
            raise ImageError(
                f"{shown!r} has {size / 1e6:.1f} MB, and at most {limits.megabytes:g} MB are taken: send a smaller file"
            )
        if size == 0:
            raise ImageError(f"{shown!r} is empty (0 bytes)")
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"{shown!r} did not arrive ({error.strerror}): send it again") from None
    return Upload(shown, _decoded(data, shown, limits))


def _decoded(data: bytes, name: str, limits: Limits) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, which are judged here, and about odd metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > limits.megapixels * 1e6:
                    raise ImageError(
                        f"{name!r} has {width} x {height} pixels, and at most {limits.megapixels:g} megapixels are taken: "
                        "scale it down first"
                    )
                picture: Image.Image = image_source(opened).picture
                return picture.copy()  # decoded, before the file is closed
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(
            f"{name!r} claims far more than {limits.megapixels:g} megapixels, which is the most that is taken"
        ) from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name!r} is not an image that can be read: send a PNG, JPEG, WebP, GIF, BMP or TIFF file"
        ) from None
    except DECODING_ERRORS as error:
        raise ImageError(f"{name!r} is corrupt or truncated ({first_line(error)})") from None
