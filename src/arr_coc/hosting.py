"""What a server needs: images from outside decoded within limits, a free port, and memory that stays flat."""

from __future__ import annotations

import ctypes
import errno
import io
import itertools
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, UnidentifiedImageError

from arr_coc.errors import ArrCocError, ImageError, first_line
from arr_coc.types.image import DECODING_ERRORS
from arr_coc.vlm.look import image_source

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # safe to decode; others run programs, or are not images
M_ARENA_MAX, ARENAS = -8, 2  # mallopt's name for the number of malloc arenas, and its value here
TRIM_EVERY = 16  # requests

_request_count = itertools.count(1)


@dataclass(frozen=True)
class UploadedImage:
    """An image from outside whose size is known and whose pixels are not decoded yet."""

    width: int
    height: int
    decode: Callable[[], Image.Image]  # upright and in RGB; raises ImageError

    @property
    def megapixels(self) -> float:
        return self.width * self.height / 1e6


def open_upload(data: bytes, name: str, megapixels: float) -> UploadedImage:
    """An image of at most `megapixels` from the bytes of its file. `name` stands for it in errors."""
    most = f"at most {megapixels:g} megapixels"

    def opened(use: Callable[[Image.Image], Any]) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the size, which is checked here, and about odd metadata
                with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                    return use(image)
        except ImageError:
            raise
        except Image.DecompressionBombError:
            raise ImageError(f"expected {most}, got {name} with far more: scale it down") from None
        except UnidentifiedImageError:
            raise ImageError(
                f"{name} is not an image that can be read: send a PNG, JPEG, WebP, GIF, BMP or TIFF file"
            ) from None
        except DECODING_ERRORS as error:
            raise ImageError(f"{name} is corrupt or truncated ({first_line(error)})") from None

    width, height = opened(lambda image: image.size)
    if width * height > megapixels * 1e6:
        raise ImageError(f"expected {most}, got {name} with {width} x {height} pixels: scale it down")

    def decode() -> Image.Image:
        found: Image.Image = opened(lambda image: image_source(image).picture.copy())
        return found

    return UploadedImage(width, height, decode)


def find_port(host: str, port: int | None, ports: Sequence[int]) -> int:
    """The given port, or the first free one of `ports`; raises where none is free, or the host is not this machine."""
    if port is not None and not 0 < port < 65536:
        raise ArrCocError(f"expected a port from 1 to 65535, got {port}")
    for number in ports if port is None else [port]:
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, number))
            return number
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ArrCocError(
                    f"cannot listen on {host}: this machine has no such address: "
                    "expected 127.0.0.1 (this machine only), 0.0.0.0 (every network) or an address of this machine"
                ) from None
            if error.errno != errno.EADDRINUSE:
                raise ArrCocError(f"cannot listen on {host} port {number}: {error.strerror or error}") from None
            if port is not None:
                raise ArrCocError(
                    f"cannot listen on {host} port {port}: it is in use: give another one with --port"
                ) from None
    raise ArrCocError(f"cannot listen on {host}: ports {ports[0]} to {ports[-1]} are all in use: give one with --port")


# glibc gives each thread an arena of its own and keeps freed memory in it: with many threads that each handle megabytes
# of images the server's memory would grow. Other C libraries are left alone.


def limit_malloc_arenas() -> None:
    """Let all threads share a few arenas; call it before threads start."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(M_ARENA_MAX, ARENAS)


def trim_memory() -> bool:
    """Call after a request: every 16th call returns freed memory to the system, and says so."""
    libc = _glibc()
    if libc is None or next(_request_count) % TRIM_EVERY:
        return False
    libc.malloc_trim(0)
    return True


def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
