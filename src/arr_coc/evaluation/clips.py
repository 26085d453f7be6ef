"""Frames of video files for an evaluation: sampled evenly, once, into a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from PIL import Image

from arr_coc.errors import ArrCocError, VideoError
from arr_coc.evaluation.data import Data, InvalidSample, PictureQuestions
from arr_coc.evaluation.records import cache_folder
from arr_coc.frames.clip import sample_clip

FRAMES, FPS = 16, 1.0  # at most so many frames of a clip, at most so many a second
NOTE = "clip.json"
SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")


def frames_folder() -> Path:
    """The default place of extracted frames."""
    return cache_folder().parent / "frames"


def extract_frames(clip: Path, cache: Path) -> Path:
    """A folder with the sampled frames of a clip as files; they are extracted if they are not there yet.

    The folder appears as a whole, so that an interrupted or a second process does no harm.
    """
    try:
        found = clip.stat()
    except OSError:
        raise InvalidSample(f"there is no clip {clip.name!r}") from None
    key = f"{clip.resolve()} {found.st_size} {found.st_mtime_ns} {FRAMES} {FPS}"
    folder = cache / f"{clip.stem[:40]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        taken = sample_clip(clip, FPS, max_frames=FRAMES)
    except VideoError as error:
        raise InvalidSample(str(error)) from None
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=cache, prefix="new-"))
    try:
        for number, frame in enumerate(taken.frames):
            Image.fromarray(frame).save(temporary / f"{number:03d}.png", compress_level=1)
        (temporary / NOTE).write_text(json.dumps({"fps": taken.fps}))
        with suppress(OSError):  # another process was faster
            os.rename(temporary, folder)
    except OSError as error:
        raise ArrCocError(f"cannot keep frames in {str(cache)!r}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def with_frame_rates(data: Data) -> Data:
    """The data with the frame rates that the extracted frames have."""
    return replace(data, pictures=tuple(_with_rate(picture) for picture in data.pictures))


def _with_rate(picture: PictureQuestions) -> PictureQuestions:
    first = picture.frames[0]
    note = first.parent / NOTE if isinstance(first, Path) else None
    if note is None or not note.is_file():
        return picture
    return replace(picture, fps=float(json.loads(note.read_text())["fps"]))
