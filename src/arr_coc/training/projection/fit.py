"""From a folder of pictures to a projection that was looked at: gather, fit, validate, and step up where it is not enough.

Some pictures are held out: they have no say in the fit and judge it. Where there are too few to spare any, the same ones do
both, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding.compression import DIMS, FEW, TEXT_WEIGHT, Projection, fit, spectrum
from arr_coc.embedding.encoder import Encoder
from arr_coc.embedding.moments import Moments
from arr_coc.errors import DataError, ProjectionError, whole_number
from arr_coc.training.projection.gather import Part, Rules, Tick, gather
from arr_coc.training.projection.quality import Quality, Thresholds, compare
from arr_coc.training.projection.questions import everyday, halves

WIDER = 32  # dimensions to step up to
JUDGES = 64  # pictures held out, at most
SPARED = 10  # one picture in so many is held out
QUESTIONS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Fitted:
    """A projection, the figures of every number of dimensions that was tried, and what is worth knowing about both."""

    projection: Projection
    tried: tuple[Quality, ...]  # the last is the projection's
    missed: tuple[tuple[str, ...], ...]  # of each: the thresholds it missed, in words
    thresholds: Thresholds
    spectrum: torch.Tensor  # [D] what plain principal components would explain, largest first
    unreadable: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    resumed: int = 0

    @property
    def good(self) -> bool:
        return not self.missed[-1]

    def to_dict(self) -> dict[str, Any]:
        made = self.projection
        return {
            "encoder": made.encoder,
            "width": made.width,
            "dims": made.dims,
            "good": self.good,
            "pictures": made.pictures,
            "cells": made.cells,
            "questions": made.questions,
            "text_weight": made.text_weight,
            "mode": made.mode,
            "tried": [
                one.to_dict() | {"missed": list(missed)} for one, missed in zip(self.tried, self.missed, strict=True)
            ],
            "thresholds": asdict(self.thresholds),
            "component_shares": [round(float(share), 6) for share in made.variance],
            "unreadable": [{"file": file, "why": why} for file, why in self.unreadable],
            "notes": list(self.notes),
        }


def fit_images(
    images: Sequence[Path],
    make: Callable[[], Encoder],
    *,
    dims: int = DIMS,
    rules: Rules = Rules(),  # noqa: B008
    questions: Sequence[str] | None = None,
    text_weight: float = TEXT_WEIGHT,
    thresholds: Thresholds = Thresholds(),  # noqa: B008
    step_up: bool = True,
    workers: int = 1,
    state: Path | None = None,
    fresh: bool = False,
    tick: Tick | None = None,
) -> Fitted:
    """Fit a projection to the features of `images`, and judge it.

    make: opens the encoder. questions: what will be asked; everyday things where nothing is said. step_up: go on to 32
    dimensions where fewer miss a threshold. state: a file that keeps what is done until all is.
    """
    if whole_number(dims) is None:
        raise ProjectionError(f"expected a number of dimensions, at least 1, got {dims!r}")
    enough(len(images), dims)
    fitting, judging, notes = split(images, dims)
    encoder = make()
    if dims > encoder.width:  # before the pictures are encoded, not after
        raise ProjectionError(f"expected 1 to {encoder.width} dimensions for this encoder, got {dims}")
    part, resumed = gather(fitting, encoder, rules, workers=workers, make=make, state=state, fresh=fresh, tick=tick)
    asked, judges = halves(everyday() if questions is None else list(questions))
    features = part.features
    texts = text_moments(encoder, asked)
    if texts.count < FEW:
        notes.append(
            f"{texts.count} questions are too few to have a say in the fit, or to be centred: expected at least {FEW}"
        )
    wanted = [dims, WIDER] if step_up and dims < WIDER <= encoder.width else [dims]
    said: dict[str, Any] = {
        "encoder": encoder.identity, "text_weight": text_weight, "pictures": part.pictures, "mode": rules.mode,
    }  # fmt: skip
    projections: list[Projection] = []
    only = ""  # why there is no wider one
    for number in wanted:
        try:
            enough(part.pictures, number, len(part.unreadable))
            projections.append(fit(features, texts, number, **said))
        except ProjectionError as error:
            if number == dims:
                raise
            only = f"there is no step up to {WIDER} dimensions: {error}"
    unreadable: list[tuple[str, str]] = []
    by_dims = {str(one.dims): one for one in projections}
    try:
        figures = compare(encoder, by_dims, spread_out(judging), judges, rules.mode, unreadable)
    except DataError:
        broken = {file for file, _ in part.unreadable}
        notes.append(
            f"none of the {len(judging)} pictures held out could be read: the fit is judged on its own pictures"
        )
        own = [image for image in fitting if str(image) not in broken]
        figures = compare(encoder, by_dims, spread_out(own), judges, rules.mode, unreadable)
    part = replace(part, unreadable=tuple(sorted({*part.unreadable, *unreadable})))
    return _chosen(projections, figures, thresholds, notes, only, part, spectrum(features), resumed)


def _chosen(
    projections: Sequence[Projection], figures: dict[str, Quality], thresholds: Thresholds, notes: list[str], only: str,
    part: Part, shares: torch.Tensor, resumed: int,
) -> Fitted:  # fmt: skip
    """The first projection that is good enough, or the widest."""
    tried, missed = [], []
    for chosen in projections:
        tried.append(figures[str(chosen.dims)])
        missed.append(tuple(thresholds.missed(tried[-1])))
        if not missed[-1]:
            break
    if len(tried) > 1:
        notes.append(f"stepped up from {tried[0].dims} to {tried[-1].dims} dimensions, because {'; '.join(missed[0])}")
    if missed[-1]:
        notes.append(f"{tried[-1].dims} dimensions are not good enough: {'; '.join(missed[-1])}")
        notes += [only] if only else []
    if chosen.dims > DIMS:
        notes.append(
            f"the texture's channels hold the first {DIMS} of {chosen.dims} dimensions; scores use all of them"
        )
    chosen = replace(chosen, quality=tried[-1].to_dict())
    return Fitted(chosen, tuple(tried), tuple(missed), thresholds, shares, part.unreadable, tuple(notes), resumed)


def enough(pictures: int, dims: int, unreadable: int = 0) -> None:
    """Complain about fewer pictures than dimensions."""
    if pictures < dims:
        left_out = f" ({unreadable} could not be read)" if unreadable else ""
        raise ProjectionError(
            f"{pictures} pictures{left_out} are too few to fit {dims} dimensions: expected at least as many pictures as "
            "dimensions, and better a hundred times as many"
        )


def split(images: Sequence[Path], dims: int) -> tuple[Sequence[Path], Sequence[Path], list[str]]:
    """Pictures to fit on, pictures to judge on, and what is to be said about that."""
    spared = min(JUDGES, len(images) // SPARED, len(images) - dims)
    if spared <= 0:
        note = f"{len(images)} pictures are too few to hold any out: the fit is judged on the pictures it was made from"
        return images, images, [note]
    step = len(images) / spared
    held = {int((number + 0.5) * step) for number in range(spared)}
    return [p for n, p in enumerate(images) if n not in held], [images[n] for n in sorted(held)], []


def spread_out(images: Sequence[Path]) -> Sequence[Path]:
    """As many of them as judge."""
    return images[:: max(1, len(images) // JUDGES)][:JUDGES]


def text_moments(encoder: Encoder, questions: Sequence[str]) -> Moments:
    """The moments of questions' vectors."""
    found = Moments.none(encoder.width)
    for start in range(0, len(questions), QUESTIONS_AT_ONCE):
        found = found + Moments.of(encoder.text(questions[start : start + QUESTIONS_AT_ONCE]))
    return found
