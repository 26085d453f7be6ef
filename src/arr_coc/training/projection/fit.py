"""From a folder of images to a validated projection: gather, fit, validate, and use more dimensions if needed.

Some images are held out of the fit to validate it. If there are too few to hold any out, the same images do both, and the
result says so. Questions are split in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding.encoder import Encoder
from arr_coc.embedding.projection import DIMS, MIN_QUESTIONS, TEXT_WEIGHT, Moments, Projection, fit_projection, spectrum
from arr_coc.errors import DataError, ProjectionError, whole_number
from arr_coc.evaluation.data import read_samples
from arr_coc.files import read_bytes
from arr_coc.training.projection.gather import CellSampling, Progress, gather_moments
from arr_coc.training.projection.quality import ProjectionQuality, QualityThresholds, compare_projections
from arr_coc.types.workers import WorkerMap

MORE_DIMS = 32  # tried if fewer miss a threshold
MAX_HELD_OUT = 64  # images
HOLD_OUT_EVERY = 10  # one image in so many is held out
QUESTIONS_PER_BATCH = 256
TEMPLATES = ("Where is the {}?", "Is there a {} in the picture?", "the {}", "What colour is the {}?", "Find the {}.")
THINGS = (
    "dog", "ladder", "bicycle", "window", "spoon", "mountain", "keyboard", "flower", "bridge", "hat", "river", "clock", "child",
    "fence", "sandwich", "lamp", "boat", "shoe", "tree", "guitar", "horse", "price tag", "curtain", "truck", "bottle", "beach",
    "umbrella", "door", "cake", "motorcycle", "street sign", "pillow", "bird", "roof", "plate of food", "newspaper", "wheel",
    "cloud", "sofa", "cup of coffee", "snow", "telephone", "woman in a coat", "traffic light", "carpet", "fish", "bench", "mirror",
    "tomato", "staircase", "airplane", "book", "grass", "bus", "glass of water", "cat", "poster", "hand", "candle", "tower",
    "suitcase", "bowl of fruit", "road", "kite", "shop window", "ball", "oven", "sheep", "handbag", "monument", "fire", "bed",
    "camera", "bread", "garden", "train", "painting", "rock", "tent", "knife", "crowd of people", "skateboard", "shelf", "rain",
    "number on the shirt", "butterfly", "basket", "statue", "television", "field", "engine", "elephant", "shadow", "ice cream",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class FitResult:
    """A projection, and the quality of every number of dimensions that was tried."""

    projection: Projection
    tried: tuple[ProjectionQuality, ...]  # the last is the projection's
    thresholds: QualityThresholds
    spectrum: torch.Tensor  # [D] the shares of plain principal components, largest first
    unreadable: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    resumed: int = 0

    @property
    def good(self) -> bool:
        return not self.thresholds.missed(self.tried[-1])

    def to_dict(self) -> dict[str, Any]:
        names = ("encoder", "width", "dims", "pictures", "cells", "questions", "text_weight", "mode")
        return {name: getattr(self.projection, name) for name in names} | {
            "good": self.good,
            "tried": [asdict(one) | {"missed": self.thresholds.missed(one)} for one in self.tried],
            "thresholds": asdict(self.thresholds),
            "component_shares": [round(float(share), 6) for share in self.projection.variance],
            "unreadable": [{"file": file, "why": why} for file, why in self.unreadable],
            "notes": list(self.notes),
        }


def fit_images(
    images: Sequence[Path],
    make: Callable[[], Encoder],
    *,
    dims: int = DIMS,
    sampling: CellSampling = CellSampling(),  # noqa: B008
    questions: Sequence[str] | None = None,
    text_weight: float = TEXT_WEIGHT,
    thresholds: QualityThresholds = QualityThresholds(),  # noqa: B008
    step_up: bool = True,
    workers: int | WorkerMap = 1,
    state: Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> FitResult:
    """Fit a projection to the features of `images`, and validate it.

    make: opens the encoder. questions: what will be asked; by default everyday objects. step_up: try 32 dimensions if
    fewer miss a threshold. state: a file that keeps what is done until the fit is complete.
    """
    if whole_number(dims) is None:
        raise ProjectionError(f"expected a number of dimensions, at least 1, got {dims!r}")
    check_image_count(len(images), dims)
    fitting, held_out, notes = split_images(images, dims)
    encoder = make()
    if dims > encoder.width:  # before the images are encoded
        raise ProjectionError(f"expected 1 to {encoder.width} dimensions for this encoder, got {dims}")
    part, resumed = gather_moments(
        fitting, encoder, sampling, workers=workers, make=make, state=state, fresh=fresh, progress=progress
    )
    asked, judges = split_questions(everyday_questions() if questions is None else questions)
    texts = text_moments(encoder, asked)
    if texts.count < MIN_QUESTIONS:
        notes.append(
            f"{texts.count} questions are too few to use in the fit or to centre: expected at least {MIN_QUESTIONS}"
        )
    projections: list[Projection] = []
    no_step_up = ""  # why there is no wider projection
    fit = partial(fit_projection, part.features, texts, encoder=encoder.identity, text_weight=text_weight)
    for k in [dims, MORE_DIMS] if step_up and dims < MORE_DIMS <= encoder.width else [dims]:
        try:
            check_image_count(part.pictures, k, len(part.unreadable))
            projections.append(fit(k, pictures=part.pictures, mode=sampling.mode))
        except ProjectionError as error:
            if k == dims:
                raise
            no_step_up = f"there is no step up to {MORE_DIMS} dimensions: {error}"
    unreadable = list(part.unreadable)
    by_dims = {str(one.dims): one for one in projections}
    try:
        figures = compare_projections(encoder, by_dims, _subsample(held_out), judges, sampling.mode, unreadable)
    except DataError:
        notes.append(
            f"none of the {len(held_out)} pictures held out could be read: the fit is judged on its own pictures"
        )
        broken = {file for file, _ in part.unreadable}
        own = _subsample([image for image in fitting if str(image) not in broken])
        figures = compare_projections(encoder, by_dims, own, judges, sampling.mode, unreadable)
    tried: list[ProjectionQuality] = []
    for chosen in projections:  # the first that is good enough, or the widest
        tried.append(figures[str(chosen.dims)])
        missed = thresholds.missed(tried[-1])
        if not missed:
            break
    if len(tried) > 1:
        why = "; ".join(thresholds.missed(tried[0]))
        notes.append(f"stepped up from {tried[0].dims} to {chosen.dims} dimensions, because {why}")
    if missed:
        notes.append(f"{chosen.dims} dimensions are not good enough: {'; '.join(missed)}")
        notes += [no_step_up] if no_step_up else []
    if chosen.dims > DIMS:
        notes.append(
            f"the texture's channels hold the first {DIMS} of {chosen.dims} dimensions; scores use all of them"
        )
    return FitResult(
        projection=replace(chosen, quality=asdict(tried[-1])),
        tried=tuple(tried),
        thresholds=thresholds,
        spectrum=spectrum(part.features),
        unreadable=tuple(sorted(set(unreadable))),
        notes=tuple(notes),
        resumed=resumed,
    )


def check_image_count(pictures: int, dims: int, unreadable: int = 0) -> None:
    """Refuse fewer images than dimensions."""
    if pictures < dims:
        skipped = f" ({unreadable} could not be read)" if unreadable else ""
        raise ProjectionError(
            f"{pictures} pictures{skipped} are too few to fit {dims} dimensions: expected at least as many pictures as "
            "dimensions, and better a hundred times as many"
        )


def split_images(images: Sequence[Path], dims: int) -> tuple[Sequence[Path], Sequence[Path], list[str]]:
    """Images to fit on, images to validate on, and notes about the split."""
    count = min(MAX_HELD_OUT, len(images) // HOLD_OUT_EVERY, len(images) - dims)
    if count <= 0:
        note = f"{len(images)} pictures are too few to hold any out: the fit is judged on the pictures it was made from"
        return images, images, [note]
    step = len(images) / count
    held_out = {int((number + 0.5) * step) for number in range(count)}
    return [p for n, p in enumerate(images) if n not in held_out], [images[n] for n in sorted(held_out)], []


def _subsample(images: Sequence[Path]) -> Sequence[Path]:
    """At most MAX_HELD_OUT of them, evenly spread."""
    return images[:: max(1, len(images) // MAX_HELD_OUT)][:MAX_HELD_OUT]


def text_moments(encoder: Encoder, questions: Sequence[str]) -> Moments:
    """The moments of the questions' vectors."""
    found = Moments.empty(encoder.width)
    for start in range(0, len(questions), QUESTIONS_PER_BATCH):
        found = found + Moments.of(encoder.text(questions[start : start + QUESTIONS_PER_BATCH]))
    return found


def everyday_questions() -> list[str]:
    """The default questions: each of THINGS in one of the TEMPLATES."""
    return [TEMPLATES[number % len(TEMPLATES)].format(thing) for number, thing in enumerate(THINGS)]


def split_questions(questions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Questions to fit with and others to validate with; a single one is used for both."""
    if len(questions) < 2:
        return list(questions), list(questions)
    return list(questions[0::2]), list(questions[1::2])


def read_questions(path: str | Path) -> list[str]:
    """The distinct questions of a text file with one per line, or of a folder with `samples.jsonl`, in order."""
    place = Path(path)
    if place.is_dir():
        found = [sample.question for picture in read_samples(place).pictures for sample in picture.samples]
    else:
        data = read_bytes(place, "a file of questions", DataError)
        try:
            found = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
        except UnicodeDecodeError:
            raise DataError(f"expected questions as text, one per line, in {str(place)!r}: it is not UTF-8") from None
    questions = list(dict.fromkeys(question for question in found if question))
    if not questions:
        raise DataError(f"expected questions in {str(place)!r}, one per line, found none")
    return questions
