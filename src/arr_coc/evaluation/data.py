"""Questions about images and videos, grouped by picture and checked.

A folder with `samples.jsonl` is the plain format, one question per line:
`{"image", "question", "answer", "kind", "width", "height", "evidence"}`; only `image` and `question` are required.
`evidence` is a list of groups of `[x0, y0, x1, y1]` pixel boxes: all boxes of a group are needed, any one group suffices.
`answers` may list several right answers in place of `answer`. Other keys are kept in `Sample.extra`.

`video` in place of `image` lists the frame files of a clip, or names a folder of frames; `fps` is their frame rate (2).
A fifth number in a box of a video is the frame index, from 0. Without it, the box holds for the whole clip.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.errors import DataError, PromptError, first_line
from arr_coc.files import read_bytes
from arr_coc.types.image import DECODING_ERRORS
from arr_coc.types.question import check_question

SAMPLES = "samples.jsonl"
FIELDS = ("image", "video", "fps", "question", "answer", "answers", "kind", "width", "height", "evidence")
FRAME_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
EXIF_ORIENTATION = 0x0112  # values 5 to 8 swap width and height

Box = tuple[float, ...]  # x0, y0, x1, y1, and for a video optionally the frame index
Evidence = tuple[tuple[Box, ...], ...]
Still = Path | Image.Image
FindFile = Callable[[str], Path | str]  # a file name to its path
Media = tuple[str | tuple[str, ...], float | None]  # an image, or the frames of a video, and its frame rate


class InvalidSample(Exception):
    """One sample cannot be used. The others can."""


RawSample = tuple[int, Mapping[str, Any] | InvalidSample]  # a line, and its fields in the plain format or what is wrong


@dataclass(frozen=True)
class Sample:
    """One question about one picture."""

    question: str
    answers: tuple[str, ...] = ()  # any of them is right; empty where only the evidence is known
    kind: str = "question"
    evidence: Evidence = ()  # groups of boxes, in pixels of the picture
    line: int = 0  # its position in the file
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PictureQuestions:
    """An image, or a video as its frames, with all questions about it."""

    name: str
    image: Still | tuple[Still, ...]  # a tuple: the frames of a video
    size: tuple[int, int]  # width, height after EXIF rotation
    samples: tuple[Sample, ...]
    fps: float | None = None  # of a video; None: the model's default

    @property
    def kind(self) -> str:
        return "video" if isinstance(self.image, tuple) else "image"

    @property
    def still(self) -> Still:
        """The image, where videos are not supported."""
        if isinstance(self.image, tuple):
            raise DataError(f"expected still pictures only, and {self.name!r} is a video")
        return self.image

    @property
    def frames(self) -> tuple[Still, ...]:
        """The frames of a video; for an image a tuple of one."""
        return self.image if isinstance(self.image, tuple) else (self.image,)


@dataclass(frozen=True)
class Data:
    """Pictures with their questions, and the lines that could not be used."""

    name: str
    pictures: tuple[PictureQuestions, ...]
    metric: str = "exact"  # the one that counts as accuracy
    problems: tuple[str, ...] = ()  # lines that were left out, and why
    notes: tuple[str, ...] = ()  # lines that were corrected, and how
    where: str = "entry"  # what `Sample.line` counts

    @property
    def questions(self) -> int:
        return sum(len(picture.samples) for picture in self.pictures)

    def only(self, kinds: Iterable[str]) -> Data:
        """The same data with only the questions of some kinds."""
        wanted = set(kinds)
        known = {sample.kind for picture in self.pictures for sample in picture.samples}
        if wanted - known:
            raise DataError(f"expected kinds among {', '.join(sorted(known))}, got {', '.join(sorted(wanted - known))}")
        pictures = (
            replace(picture, samples=tuple(sample for sample in picture.samples if sample.kind in wanted))
            for picture in self.pictures
        )
        return replace(self, pictures=tuple(picture for picture in pictures if picture.samples))


class DecimalText(float):
    """A JSON number that keeps its spelling: the answer 80.90 must not become 80.9."""

    text: str

    def __new__(cls, text: str) -> DecimalText:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


def read_samples(folder: Path, limit: int | None = None) -> Data:
    """A folder with pictures and `samples.jsonl`; at most `limit` pictures."""
    path = folder / SAMPLES
    if not path.is_file():
        raise DataError(
            f"expected a folder with {SAMPLES} and pictures, got {str(folder)!r}; arr-coc eval --format reads other layouts"
        )

    return collect(folder.name, read_json_lines(path), lambda name: folder / name, limit, where=f"{SAMPLES}, line")


def read_json_lines(path: Path) -> Iterator[RawSample]:
    """Number and object of every line that is not empty."""
    text = read_bytes(path, "a file of the data", DataError).decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_float=DecimalText)
            problem = "" if isinstance(value, dict) else f"expected an object in braces, got {type(value).__name__}"
        except ValueError as error:
            problem = f"this is not JSON ({first_line(error)})"
        yield number, InvalidSample(problem) if problem else value


def collect(
    name: str,
    raw_samples: Iterable[RawSample],
    find: FindFile,
    limit: int | None = None,
    *,
    metric: str = "exact",
    where: str = "entry",
) -> Data:
    """Check samples and group them by picture, in the order in which pictures first appear."""
    by_media: dict[Media, list[tuple[Sample, Mapping[str, Any]]]] = {}
    problems: dict[int, str] = {}
    notes: dict[int, str] = {}
    for line, fields in raw_samples:
        try:
            if isinstance(fields, InvalidSample):
                raise fields
            by_media.setdefault(_parse_media(fields), []).append((_parse_sample(line, fields), fields))
        except InvalidSample as why:
            problems[line] = str(why)
    pictures: dict[str, PictureQuestions] = {}
    for media, parsed in by_media.items():
        if limit is not None and len(pictures) == limit:
            break
        try:
            picture = _open_picture(media, find, pictures)
        except InvalidSample as why:
            problems |= {sample.line: str(why) for sample, _ in parsed}
            continue
        samples = _fit_samples(picture, parsed, where.split(", ")[-1], problems, notes)
        if samples:
            pictures[picture.name] = replace(picture, samples=samples)
    left_out = tuple(f"{where} {line}: {why}" for line, why in sorted(problems.items()))
    if not pictures:
        reasons = f" ({'; '.join(left_out[:3])})" if left_out else ""
        raise DataError(f"expected questions about pictures in {name!r}, found none{reasons}")
    corrected = tuple(f"{where} {line}: {why}" for line, why in sorted(notes.items()))
    return Data(name, tuple(pictures.values()), metric, left_out, corrected, where)


def _parse_media(fields: Mapping[str, Any]) -> Media:
    """The file name of an image, or a tuple of a video's frames (a single name may be their folder) and its frame rate."""
    image, video, fps = (fields.get(key) for key in ("image", "video", "fps"))
    if image is not None and video is not None:
        raise InvalidSample("expected a picture under 'image' or frames under 'video', got both")
    if video is None:
        if not isinstance(image, str) or not image:
            raise InvalidSample("expected the picture's file name under 'image'")
        return image, None
    frames = [video] if isinstance(video, str) else video
    if not isinstance(frames, list) or not frames or not all(isinstance(name, str) and name for name in frames):
        raise InvalidSample("expected a list of frames' file names, or the name of a folder of frames, under 'video'")
    if fps is not None and (isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < float("inf")):
        raise InvalidSample(f"expected frames a second under 'fps' as a positive number, got {fps!r}")
    return tuple(frames), None if fps is None else float(fps)


def _parse_sample(line: int, fields: Mapping[str, Any]) -> Sample:
    try:
        question = check_question(fields.get("question"))
    except PromptError as error:
        raise InvalidSample(f"'question': {error}") from None
    answers = fields.get("answers", fields.get("answer", ()))
    answers = [answers] if isinstance(answers, str | int | float) else answers
    if answers is None or not isinstance(answers, list | tuple):
        raise InvalidSample("expected a text under 'answer', or a list of texts under 'answers'")
    return Sample(
        question,
        tuple(str(answer) for answer in answers),
        str(fields.get("kind", "question")),
        _parse_evidence(fields.get("evidence"), "video" in fields),
        line,
        {key: value for key, value in fields.items() if key not in FIELDS},
    )


def _parse_evidence(groups: Any, video: bool) -> Evidence:
    if groups is None:
        return ()
    try:
        boxes = tuple(tuple(tuple(float(side) for side in box) for box in group) for group in groups)
    except (TypeError, ValueError):
        raise InvalidSample("expected 'evidence' as a list of groups of boxes [x0, y0, x1, y1]") from None
    lengths = (4, 5) if video else (4,)
    if not all(len(box) in lengths and all(abs(side) < float("inf") for side in box) for g in boxes for box in g):
        more = ", optionally followed by the frame" if video else ""
        raise InvalidSample(f"expected every box of 'evidence' as four numbers [x0, y0, x1, y1]{more}")
    return tuple(group for group in boxes if group)


def _open_picture(media: Media, find: FindFile, taken: Mapping[str, PictureQuestions]) -> PictureQuestions:
    """An image or a video without its questions, under a name that is not taken yet."""
    names, fps = media
    title = names if isinstance(names, str) else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    titles = itertools.chain([title], (f"{title} ({number})" for number in itertools.count(2)))
    name = next(one for one in titles if one not in taken)
    if isinstance(names, str):
        path = Path(find(names))
        return PictureQuestions(name, path, read_size(path, names), ())
    frames = _find_frames(names, find)
    sizes = [read_size(frame, frame.name) for frame in frames]
    for frame, (width, height) in zip(frames, sizes, strict=True):
        if (width, height) != sizes[0]:
            raise InvalidSample(
                f"expected frames of one size, got {sizes[0][0]} x {sizes[0][1]} and {width} x {height} ({frame.name!r})"
            )
    return PictureQuestions(name, frames, sizes[0], (), fps)


def _find_frames(names: tuple[str, ...], find: FindFile) -> tuple[Path, ...]:
    """The frame files in order; those of a folder sorted by name."""
    if len(names) > 1:
        return tuple(Path(find(name)) for name in names)
    place = Path(find(names[0]))
    if place.is_dir():
        frames = tuple(sorted(path for path in place.iterdir() if path.suffix.lower() in FRAME_SUFFIXES))
        if not frames:
            raise InvalidSample(f"there are no frames in the folder {names[0]!r}")
        return frames
    if place.is_file() and place.suffix.lower() not in FRAME_SUFFIXES:
        raise InvalidSample(f"expected frames as pictures, got the file {names[0]!r}: extract its frames first")
    return (place,)


def read_size(path: Path, name: str) -> tuple[int, int]:
    """Width and height after EXIF rotation, from the header alone."""
    if not path.is_file():
        raise InvalidSample(f"there is no picture {name!r}")
    try:
        with Image.open(path) as image:
            width, height = image.size
            # getexif() on a PNG without EXIF would decode all of its pixels.
            no_exif = image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys()
            turned = not no_exif and image.getexif().get(EXIF_ORIENTATION, 1) in range(5, 9)
    except DECODING_ERRORS as error:
        raise InvalidSample(f"cannot read the picture {name!r} ({first_line(error)})") from None
    return (height, width) if turned else (width, height)


def _fit_samples(
    picture: PictureQuestions,
    parsed: Iterable[tuple[Sample, Mapping[str, Any]]],
    where: str,
    problems: dict[int, str],
    notes: dict[int, str],
) -> tuple[Sample, ...]:
    """The usable questions about one picture, without duplicates, their boxes clipped to it."""
    samples: dict[Any, Sample] = {}
    for sample, fields in parsed:
        key = (sample.question, sample.answers, sample.kind, sample.evidence)
        if key in samples:
            notes[sample.line] = f"it repeats {where} {samples[key].line} and is asked once"
            continue
        try:
            evidence, changes = _clip_evidence(sample.evidence, picture)
        except InvalidSample as why:
            problems[sample.line] = str(why)
            continue
        # If the line gives another size, its boxes may have been drawn for another picture.
        given = [fields.get(side) for side in ("width", "height")]
        if any(side is not None and side != actual for side, actual in zip(given, picture.size, strict=True)):
            width, height = picture.size
            changes.append(f"the line says {given[0]} x {given[1]} pixels, the picture has {width} x {height}")
        samples[key] = replace(sample, evidence=evidence)
        if changes:
            notes[sample.line] = "; ".join(changes)
    return tuple(samples.values())


def _clip_evidence(evidence: Evidence, picture: PictureQuestions) -> tuple[Evidence, list[str]]:
    """Boxes clipped to the picture without the empty ones, and a sentence for each change."""
    changes: list[str] = []
    groups = []
    width, height = picture.size
    for group in evidence:
        kept = []
        for box in group:
            left, top, right, bottom, *frame = box
            if frame and (frame[0] != int(frame[0]) or not 0 <= frame[0] < len(picture.frames)):
                last = len(picture.frames) - 1
                raise InvalidSample(f"expected a frame between 0 and {last} in a box, got {frame[0]:g}")
            clipped = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)), *frame)
            shown = f"the box {[round(side, 2) for side in box]}"
            if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
                changes.append(f"{shown} is empty or outside the picture of {width} x {height}: left out")
                continue
            if clipped != box:
                changes.append(f"{shown} reaches beyond the picture of {width} x {height}: clipped")
            kept.append(clipped)
        if kept:
            groups.append(tuple(kept))
    return tuple(groups), changes
