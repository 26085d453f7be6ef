"""Questions about pictures, as the harness wants them: by picture, checked, with whatever was wrong put into words.

A folder with `samples.jsonl` is the plain format, one question a line:
`{"image", "question", "answer", "kind", "width", "height", "evidence"}`; only `image` and `question` must be there.
`evidence` is a list of groups of `[x0, y0, x1, y1]` pixel boxes: within a group all are needed, any one group suffices.
`answers` may list several right answers in place of `answer`; other keys are carried along.

In place of `image`, `video` lists the files of a clip's frames, or names a folder of them; `fps` may say how many there are
to a second (2). A fifth number in a box of such a line is the frame, from 0; without one, any moment at that place suffices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.errors import DataError, first_line
from arr_coc.evaluation import shown
from arr_coc.evaluation.shown import Broken, Find

SAMPLES = "samples.jsonl"
KNOWN = ("image", "video", "fps", "question", "answer", "answers", "kind", "width", "height", "evidence")

Box = tuple[float, ...]  # x0, y0, x1, y1, and for a video perhaps the frame
Evidence = tuple[tuple[Box, ...], ...]
Still = Path | Image.Image


@dataclass(frozen=True)
class Sample:
    """One question about one picture."""

    question: str
    answers: tuple[str, ...] = ()  # any of them is right; none where only the evidence is known
    kind: str = "question"
    evidence: Evidence = ()  # groups of boxes, in pixels of the picture
    line: int = 0  # where it stands in its file
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A picture, or a video as its frames, and everything that is asked about it."""

    name: str
    image: Still | tuple[Still, ...]  # several: a video's frames
    size: tuple[int, int]  # width, height, upright
    samples: tuple[Sample, ...]
    fps: float | None = None  # of a video; None: the model's usual

    @property
    def kind(self) -> str:
        return "video" if isinstance(self.image, tuple) else "image"

    @property
    def still(self) -> Still:
        """The picture, where only single ones make sense."""
        if isinstance(self.image, tuple):
            raise DataError(f"expected still pictures only, and {self.name!r} is a video")
        return self.image

    @property
    def frames(self) -> tuple[Still, ...]:
        """A video's frames; of a picture itself."""
        return self.image if isinstance(self.image, tuple) else (self.image,)


@dataclass(frozen=True)
class Data:
    """Pictures with their questions, and what could not be used."""

    name: str
    pictures: tuple[Picture, ...]
    metric: str = "exact"  # what counts as accuracy
    problems: tuple[str, ...] = ()  # lines that were left out, and why
    notes: tuple[str, ...] = ()  # lines that were put right, and how
    where: str = "entry"  # what a sample's `line` counts

    @property
    def questions(self) -> int:
        return sum(len(picture.samples) for picture in self.pictures)

    def only(self, kinds: Iterable[str]) -> Data:
        """Only the questions of some kinds."""
        wanted = set(kinds)
        there = {sample.kind for picture in self.pictures for sample in picture.samples}
        if wanted - there:
            raise DataError(f"expected kinds among {', '.join(sorted(there))}, got {', '.join(sorted(wanted - there))}")
        pictures = (
            replace(picture, samples=tuple(sample for sample in picture.samples if sample.kind in wanted))
            for picture in self.pictures
        )
        return replace(self, pictures=tuple(picture for picture in pictures if picture.samples))


@dataclass(frozen=True)
class Entry:
    """A raw question: its place in its file, and the fields of the plain format, or why there are none."""

    line: int
    fields: Mapping[str, Any] | None
    problem: str = ""


def read_samples(folder: Path, limit: int | None = None) -> Data:
    """A folder with pictures and `samples.jsonl`; at most `limit` pictures."""
    path = folder / SAMPLES
    if not path.is_file():
        raise DataError(
            f"expected a folder with {SAMPLES} and pictures, got {str(folder)!r}; name another layout with --format"
        )
    return collect(folder.name, _lines(path), lambda name: folder / name, limit, where=f"{SAMPLES}, line")


class Written(float):
    """A number that remembers how it was written: an answer of 80.90 is not 80.9."""

    def __new__(cls, text: str) -> Written:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __str__(self) -> str:
        return self.text


def json_lines(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Number, value and complaint of each line that is not empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line, parse_float=Written), ""
            except ValueError as error:
                yield number, None, f"this is not JSON ({first_line(error)})"


def _lines(path: Path) -> Iterator[Entry]:
    for number, value, problem in json_lines(path):
        if not problem and not isinstance(value, dict):
            problem = f"expected an object in braces, got {type(value).__name__}"
        yield Entry(number, None if problem else value, problem)


Asked = list[tuple[Entry, Sample]]


def collect(
    name: str, entries: Iterable[Entry], find: Find, limit: int | None = None, *, metric: str = "exact", where: str = "entry"
) -> Data:  # fmt: skip
    """Entries by picture, in the order in which pictures first appear; `find` turns a file's name into a path."""
    order: dict[tuple[str | tuple[str, ...], float | None], Asked] = {}
    problems: dict[int, str] = {}
    notes: dict[int, str] = {}
    for entry in entries:
        try:
            if entry.fields is None:
                raise Broken(entry.problem)
            key = shown.named(entry.fields), None if "video" not in entry.fields else shown.fps_of(entry.fields)
            order.setdefault(key, []).append((entry, _sample(entry)))
        except Broken as why:
            problems[entry.line] = str(why)
    pictures: dict[str, Picture] = {}
    for (names, fps), asked in order.items():
        if limit is not None and len(pictures) == limit:
            break
        try:
            picture = _picture(names, fps, find, pictures)
        except Broken as why:
            problems |= {entry.line: str(why) for entry, _ in asked}
            continue
        samples = _samples(picture, asked, where.split(", ")[-1], problems, notes)
        if samples:
            pictures[picture.name] = replace(picture, samples=samples)
    if not pictures:
        reasons = "; ".join(f"{where} {line}: {why}" for line, why in sorted(problems.items())[:3])
        raise DataError(
            f"expected questions about pictures in {name!r}, found none{f' ({reasons})' if reasons else ''}"
        )
    return Data(
        name,
        tuple(pictures.values()),
        metric,
        tuple(f"{where} {line}: {why}" for line, why in sorted(problems.items())),
        tuple(f"{where} {line}: {why}" for line, why in sorted(notes.items())),
        where,
    )


def _picture(names: str | tuple[str, ...], fps: float | None, find: Find, taken: Mapping[str, Picture]) -> Picture:
    """A picture or a video, without its questions."""
    title = names if isinstance(names, str) else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    name, count = title, 1
    while name in taken:
        count += 1
        name = f"{title} ({count})"
    if isinstance(names, str):
        path = Path(find(names))
        return Picture(name, path, shown.size(path, names), ())
    frames = shown.frames_of(names, find)
    return Picture(name, frames, shown.video_size(frames), (), fps)


def _samples(
    picture: Picture, asked: Asked, where: str, problems: dict[int, str], notes: dict[int, str]
) -> tuple[Sample, ...]:  # fmt: skip
    """The questions about one picture that can be used, none of them twice."""
    samples: dict[Any, Sample] = {}
    for entry, sample in asked:
        same = (sample.question, sample.answers, sample.kind, sample.evidence)
        if same in samples:
            notes[entry.line] = f"it repeats {where} {samples[same].line} and is asked once"
            continue
        try:
            evidence, said = _inside(sample.evidence, picture)
            said += _other_size(entry, picture.size)
            samples[same] = replace(sample, evidence=evidence)
            if said:
                notes[entry.line] = "; ".join(said)
        except Broken as why:
            problems[entry.line] = str(why)
    return tuple(samples.values())


def _sample(entry: Entry) -> Sample:
    fields = entry.fields or {}
    question = fields.get("question")
    if not isinstance(question, str) or not question.strip():
        raise Broken("expected a text under 'question'")
    answers = fields.get("answers", fields.get("answer", ()))
    answers = [answers] if isinstance(answers, str | int | float) else answers
    if answers is None or not isinstance(answers, list | tuple):
        raise Broken("expected a text under 'answer', or a list of texts under 'answers'")
    return Sample(
        question,
        tuple(str(answer) for answer in answers),
        str(fields.get("kind", "question")),
        _evidence(fields.get("evidence"), "video" in fields),
        entry.line,
        {key: value for key, value in fields.items() if key not in KNOWN},
    )


def _evidence(groups: Any, moving: bool) -> Evidence:
    if groups is None:
        return ()
    try:
        boxes = tuple(tuple(tuple(float(side) for side in box) for box in group) for group in groups)
    except (TypeError, ValueError):
        raise Broken("expected 'evidence' as a list of groups of boxes [x0, y0, x1, y1]") from None
    sides = (4, 5) if moving else (4,)
    if not all(len(box) in sides and all(abs(side) < float("inf") for side in box) for group in boxes for box in group):
        more = ", perhaps with the frame behind them" if moving else ""
        raise Broken(f"expected every box of 'evidence' as four numbers [x0, y0, x1, y1]{more}")
    return tuple(group for group in boxes if group)


def _inside(evidence: Evidence, picture: Picture) -> tuple[Evidence, list[str]]:
    """Boxes clipped to the picture; what lies outside or is empty is left out, and said."""
    said: list[str] = []
    groups = []
    width, height = picture.size
    for group in evidence:
        kept = []
        for box in group:
            left, top, right, bottom, *frame = box
            if frame and (frame[0] != int(frame[0]) or not 0 <= frame[0] < len(picture.frames)):
                raise Broken(f"expected a frame between 0 and {len(picture.frames) - 1} in a box, got {frame[0]:g}")
            clipped = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)), *frame)
            told = [round(side, 2) for side in box]
            if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
                said.append(f"the box {told} is empty or outside the picture of {width} x {height}: left out")
                continue
            if clipped != box:
                said.append(f"the box {told} reaches beyond the picture of {width} x {height}: clipped")
            kept.append(clipped)
        if kept:
            groups.append(tuple(kept))
    return tuple(groups), said


def _other_size(entry: Entry, size: tuple[int, int]) -> list[str]:
    """A note where the line says another size than the picture has: then its boxes may be meant for another picture."""
    given = [(entry.fields or {}).get(side) for side in ("width", "height")]
    if any(side is not None and side != real for side, real in zip(given, size, strict=True)):
        return [f"the line says {given[0]} x {given[1]} pixels, the picture has {size[0]} x {size[1]}"]
    return []
