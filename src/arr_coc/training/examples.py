"""Lessons: pictures with their questions, looked at and encoded once, ready to be learned from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation.data import Data, PictureQuestions, Sample, Still, read_samples
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.inference import Seen, picture
from arr_coc.selectors import Question, SelectionInput
from arr_coc.selectors.base import FunctionSelector
from arr_coc.texture import TextureArray
from arr_coc.training.look_cache import Looks
from arr_coc.training.stopping import outlive_first_request
from arr_coc.types.grid import Cells
from arr_coc.vlm.look import Look, image_source
from arr_coc.vlm.model import VLM

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
    image: Still  # to look at again, where the model itself is asked, too

    @property
    def shape(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(view.shape for view in self.views)


def read(folder: Path, limit: int | None = None) -> Data:
    """A folder with `samples.jsonl`; or one sentence."""
    if not folder.is_dir():
        raise DataError(f"expected a folder with pictures and samples.jsonl, got {str(folder)!r}")
    return read_samples(folder, limit)


def apart(data: Data, one_in: int = 10) -> tuple[Data, Data]:
    """Pictures to learn from, and one in ten to measure on, by a hash of its name."""
    parts: tuple[list[PictureQuestions], list[PictureQuestions]] = [], []
    for one in data.pictures:
        parts[zlib.crc32(Path(one.name).name.encode()) % one_in == 0].append(one)
    return replace(data, pictures=tuple(parts[0])), replace(data, pictures=tuple(parts[1]))


def sight_of(vlm: VLM, look: Look, question: str) -> SelectionInput:
    """What a selector would see of a look at one picture, once it is encoded."""
    caught: list[SelectionInput] = []

    def catch(selection: SelectionInput) -> torch.Tensor:
        caught.append(selection)
        return selection.candidates[:1]

    vlm.prepare(look=look, text=question, budget=1, selector=FunctionSelector(catch))
    if len(caught) != 1:
        raise DataError(f"expected one picture to a question, got {len(caught)}")
    return caught[0]


def lessons(
    vlm: VLM, data: Data, config: LayerConfig, *, by_box: bool = True, by_answer: bool = False, looks: Looks | None = None,
    share: tuple[int, int] = (0, 1), workers: int = 0,
    complain: Callable[[str], None] = lambda why: None, tick: Callable[[int, int], None] = lambda done, total: None,
) -> list[Lesson]:  # fmt: skip
    """Every picture that has a question with evidence (`by_box`), or with an answer (`by_answer`).

    `share` (i, n): only every n-th picture, from the i-th on. `workers`: processes that look at the pictures while the model
    encodes them. `looks`: where looks are kept for a model that will be asked itself. What cannot be used is told to
    `complain`.
    """

    def useful(sample: Sample) -> bool:
        return (by_box and bool(sample.evidence)) or (by_answer and answered(sample))

    wanted = [one for one in data.pictures if any(map(useful, one.samples))]
    for one in wanted if share[0] == 0 else []:
        if one.kind != "image":
            complain(f"{one.name}: expected a still picture to learn from, got a video")
    pictures = [one for one in wanted if one.kind == "image"][share[0] :: share[1]]
    found: list[Lesson] = []
    for number, (one, selection, bare) in enumerate(
        _seen(Looks(vlm, room=0) if looks is None else looks, pictures, config, workers, complain)
    ):
        lesson = _lesson(vlm, one, [sample for sample in one.samples if useful(sample)], by_answer, selection, bare)
        if lesson.asked:
            found.append(lesson)
        tick(number + 1, len(pictures))
    return found


def answered(sample: Sample) -> bool:
    """Whether there is an answer to learn from; the first one is."""
    return bool(sample.answers) and bool(sample.answers[0].strip())


def _seen(
    looks: Looks,
    pictures: Sequence[PictureQuestions],
    config: LayerConfig,
    workers: int,
    complain: Callable[[str], None],
) -> Iterator[tuple[PictureQuestions, SelectionInput, list[Seen]]]:
    if workers == 0:
        for one in pictures:
            selection = _looked(looks, one, complain)
            if selection is not None:
                yield one, selection, _bare(one.still, selection.grid, config)
        return
    waiting: list[tuple[PictureQuestions, SelectionInput, Future[list[Seen]]]] = []
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin) as pool:
        for one in pictures:
            selection = _looked(looks, one, complain)
            if selection is not None:
                waiting.append((one, selection, pool.submit(_bare, one.still, selection.grid, config)))
            if len(waiting) > AHEAD * workers:
                first = waiting.pop(0)
                yield *first[:2], first[2].result()
        for first in waiting:
            yield *first[:2], first[2].result()


def _begin() -> None:
    """In a worker process: one thread, and ctrl-C is for whoever started it."""
    torch.set_num_threads(1)
    outlive_first_request()


def _looked(looks: Looks, one: PictureQuestions, complain: Callable[[str], None]) -> SelectionInput | None:
    try:
        return sight_of(looks.vlm, looks.at(one.still), one.samples[0].question)
    except (ArrCocError, OSError) as error:
        complain(f"{one.name}: {error}")
        return None


def _bare(image: Still, grid: Cells, config: LayerConfig) -> list[Seen]:
    """What the texture tells about every view of a picture, in half precision: there may be thousands."""
    source = image_source(image if not isinstance(image, Path) else str(image))
    texture = TextureArray.from_image(source.picture)
    made = (picture([texture], view, config) for view in grid.views)
    return [Seen(one.channels.half().cpu(), one.pixels.half().cpu()) for one in made]


def _lesson(
    vlm: VLM, one: PictureQuestions, samples: list[Sample], by_answer: bool, selection: SelectionInput, bare: list[Seen]
) -> Lesson:
    assert selection.tokens is not None
    tokens, start, views = _halved(selection.tokens), 0, []
    for seen in bare:
        t, h, w = seen.shape
        stop = start + t * h * w
        views.append(Seen(seen.channels, seen.pixels, tokens[start:stop].view(t, h, w, -1)))
        start = stop
    asked = []
    for sample in samples:
        ids = vlm.prompter.ids(sample.question)
        if len(ids) == 0:
            continue
        words = Question(sample.question, ids, vlm.adapter.embed)
        groups = evidence_cells(sample.evidence, selection.grid, one.size) if sample.evidence else []
        asked.append(Asked(sample, _halved(words.embeddings), tuple(group for group in groups if len(group))))
    usable = [question for question in asked if question.groups or (by_answer and answered(question.sample))]
    return Lesson(one.name, selection.grid, views, usable, one.still)


def _halved(values: torch.Tensor) -> torch.Tensor:
    """In half precision on the CPU; what a bfloat16 model says may be larger than half precision holds."""
    most = torch.finfo(torch.float16).max
    return values.detach().float().clamp(-most, most).half().cpu()
