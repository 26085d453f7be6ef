"""Lessons: pictures with their questions, looked at and encoded once, ready to be learned from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from arr_coc.adapters.sources import image_source
from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation.data import Data, Picture, Sample, read_samples
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.grid import Cells
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.judging import Seen, picture
from arr_coc.look import Look
from arr_coc.selectors import Sight, Words
from arr_coc.selectors.base import Function
from arr_coc.texture import TextureArray
from arr_coc.vlm import VLM

AHEAD = 4  # pictures for each process, waiting to be looked at


@dataclass(eq=False)
class Asked:
    """One question, and where its answer stands."""

    sample: Sample
    words: torch.Tensor  # [T, W]
    groups: tuple[torch.Tensor, ...]  # of cells: any one suffices
    seen: tuple[torch.Tensor | None] | None = None  # what the model looks at, once it was asked: None where it is wrong


@dataclass(eq=False)
class Lesson:
    """One picture: its views with all of their tokens, and what is asked about it."""

    name: str
    grid: Cells
    views: list[Seen]
    asked: list[Asked]
    look: Look | None = field(default=None, repr=False)  # kept where the model itself is asked, too

    @property
    def shape(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(view.shape for view in self.views)


def read(folder: Path, limit: int | None = None) -> Data:
    """A folder with `samples.jsonl`; or one sentence."""
    if not folder.is_dir():
        raise DataError(f"expected a folder with pictures and samples.jsonl, got {str(folder)!r}")
    return read_samples(folder, limit)


def apart(found: Sequence[Lesson], one_in: int = 10) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons to learn from, and one in ten to measure on, by a hash of its name."""
    back = [zlib.crc32(Path(one.name).name.encode()) % one_in == 0 for one in found]
    return [one for one, kept in zip(found, back, strict=True) if not kept], [
        one for one, kept in zip(found, back, strict=True) if kept
    ]


def sight_of(vlm: VLM, look: Look, question: str) -> Sight:
    """What a selector would see of a look at one picture, once it is encoded."""
    caught: list[Sight] = []

    def catch(sight: Sight) -> torch.Tensor:
        caught.append(sight)
        return sight.candidates[:1]

    vlm.prepare(look=look, text=question, budget=1, selector=Function(catch))
    if len(caught) != 1:
        raise DataError(f"expected one picture to a question, got {len(caught)}")
    return caught[0]


def lessons(
    vlm: VLM, data: Data, config: LayerConfig, *, keep_looks: bool = False, share: tuple[int, int] = (0, 1), workers: int = 0,
    complain: Callable[[str], None] = lambda why: None, tick: Callable[[int, int], None] = lambda done, total: None,
) -> list[Lesson]:  # fmt: skip
    """Every picture that has a question with evidence, or (`keep_looks`) with an answer.

    `share` (i, n): only every n-th picture, from the i-th on. `workers`: processes that look at the pictures while the model
    encodes them. What cannot be used is told to `complain`.
    """
    found: list[Lesson] = []
    pictures = [
        one for one in data.pictures if one.kind == "image" and any(_useful(s, keep_looks) for s in one.samples)
    ]
    pictures = pictures[share[0] :: share[1]]
    for number, (one, look, sight, bare) in enumerate(_seen(vlm, pictures, config, workers, complain)):
        lesson = _lesson(vlm, one, look if keep_looks else None, sight, bare)
        if lesson.asked:
            found.append(lesson)
        tick(number + 1, len(pictures))
    if not found:
        raise DataError(f"expected questions with evidence boxes in {data.name!r}, found none that can be learned from")
    return found


def _useful(sample: Sample, by_answer: bool) -> bool:
    return bool(sample.evidence) or (by_answer and bool(sample.answers))


def _seen(
    vlm: VLM, pictures: Sequence[Picture], config: LayerConfig, workers: int, complain: Callable[[str], None]
) -> Iterator[tuple[Picture, Look, Sight, list[Seen]]]:
    if workers == 0:
        for one in pictures:
            looked = _looked(vlm, one, complain)
            if looked is not None:
                yield one, *looked, _bare(one.image, looked[1].grid, config)
        return
    waiting: list[tuple[Picture, Look, Sight, Future[list[Seen]]]] = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for one in pictures:
            looked = _looked(vlm, one, complain)
            if looked is not None:
                waiting.append((one, *looked, pool.submit(_bare, one.image, looked[1].grid, config)))
            if len(waiting) > AHEAD * workers:
                first = waiting.pop(0)
                yield *first[:3], first[3].result()
        for first in waiting:
            yield *first[:3], first[3].result()


def _looked(vlm: VLM, one: Picture, complain: Callable[[str], None]) -> tuple[Look, Sight] | None:
    try:
        look = vlm.look(one.still)
        return look, sight_of(vlm, look, one.samples[0].question)
    except (ArrCocError, OSError) as error:
        complain(f"{one.name}: {error}")
        return None


def _bare(image: Any, grid: Cells, config: LayerConfig) -> list[Seen]:
    """What the texture tells about every view of a picture, in half precision: there may be thousands."""
    source = image_source(image if not isinstance(image, Path) else str(image))
    torch.set_num_threads(1)
    texture = TextureArray.from_image(source.picture)
    made = (picture([texture], view, config) for view in grid.views)
    return [Seen(one.channels.half(), one.pixels.half()) for one in made]


def _lesson(vlm: VLM, one: Picture, look: Look | None, sight: Sight, bare: list[Seen]) -> Lesson:
    assert sight.tokens is not None
    tokens, start, views = sight.tokens.detach().half().cpu(), 0, []
    for seen in bare:
        t, h, w = seen.shape
        stop = start + t * h * w
        views.append(Seen(seen.channels, seen.pixels, tokens[start:stop].view(t, h, w, -1)))
        start = stop
    asked = []
    for sample in one.samples:
        if not _useful(sample, look is not None):
            continue
        words = Words(sample.question, vlm.prompter.ids(sample.question), vlm.adapter.embed)
        groups = evidence_cells(sample.evidence, sight.grid, one.size) if sample.evidence else []
        asked.append(
            Asked(sample, words.embeddings.detach().half().cpu(), tuple(group for group in groups if len(group)))
        )
    usable = [question for question in asked if question.groups or look is not None]
    return Lesson(one.name, sight.grid, views, usable, look)
