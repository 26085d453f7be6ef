"""Pictures and videos on a disk, found and measured by their headers: no pixel is read before its turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.errors import first_line
from arr_coc.types.image import DECODING_ERRORS

ORIENTATION = 0x0112  # the EXIF tag; from 5 on the picture lies on its side
PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})  # frames in a folder

Find = Callable[[str], Path | str]  # a file's name to its path


class Broken(Exception):
    """One entry cannot be used; the rest can."""


def named(fields: Any) -> str | tuple[str, ...]:
    """What an entry is about: the name of a picture, or those of a video's frames (one name: their folder)."""
    image, video = fields.get("image"), fields.get("video")
    if image is not None and video is not None:
        raise Broken("expected a picture under 'image' or frames under 'video', got both")
    if video is None:
        if not isinstance(image, str) or not image:
            raise Broken("expected the picture's file name under 'image'")
        return image
    frames = [video] if isinstance(video, str) else video
    if not isinstance(frames, list) or not frames or not all(isinstance(name, str) and name for name in frames):
        raise Broken("expected a list of frames' file names, or the name of a folder of frames, under 'video'")
    return tuple(frames)


def fps_of(fields: Any) -> float | None:
    """Frames a second, where the entry says so."""
    fps = fields.get("fps")
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < float("inf"):
        raise Broken(f"expected frames a second under 'fps' as a positive number, got {fps!r}")
    return float(fps)


def frames_of(names: tuple[str, ...], find: Find) -> tuple[Path, ...]:
    """The frames' files in their order; those of a folder by name."""
    if len(names) > 1:
        return tuple(Path(find(name)) for name in names)
    place = Path(find(names[0]))
    if place.is_dir():
        frames = tuple(sorted(path for path in place.iterdir() if path.suffix.lower() in PICTURES))
        if not frames:
            raise Broken(f"there are no frames in the folder {names[0]!r}")
        return frames
    if place.is_file() and place.suffix.lower() not in PICTURES:
        raise Broken(f"expected frames as pictures, got the file {names[0]!r}: take its frames out first")
    return (place,)


def video_size(frames: tuple[Path, ...]) -> tuple[int, int]:
    """Width and height that all frames share."""
    sizes = {frame: size(frame, frame.name) for frame in frames}
    first = sizes[frames[0]]
    for frame, other in sizes.items():
        if other != first:
            raise Broken(
                f"expected frames of one size, got {first[0]} x {first[1]} and {other[0]} x {other[1]} ({frame.name!r})"
            )
    return first


def size(path: Path, name: str) -> tuple[int, int]:
    """Width and height as the picture is shown, from its header."""
    if not path.is_file():
        raise Broken(f"there is no picture {name!r}")
    try:
        with Image.open(path) as picture:
            width, height = picture.size
            # Asking a PNG file for what it seldom has would read all of its pixels.
            plain = picture.format == "PNG" and not {"exif", "Raw profile type exif"} & picture.info.keys()
            turned = not plain and picture.getexif().get(ORIENTATION, 1) in range(5, 9)
    except DECODING_ERRORS as error:
        raise Broken(f"cannot read the picture {name!r} ({first_line(error)})") from None
    return (height, width) if turned else (width, height)
