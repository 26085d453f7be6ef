"""Training examples: pictures with their questions, preprocessed and encoded once."""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from arr_coc.devices import tensors
from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation.data import Data, PictureQuestions, Sample, Still, read_samples
from arr_coc.evaluation.metrics import evidence_cells
from arr_coc.layer.inference import CellFeatures, texture_features
from arr_coc.layer.model import LayerConfig
from arr_coc.selectors import Question, SelectionInput
from arr_coc.selectors.base import FunctionSelector
from arr_coc.texture import TextureArray
from arr_coc.training.loop import ignore_first_signal
from arr_coc.types.grid import Cells
from arr_coc.vlm.look import Look, image_source
from arr_coc.vlm.model import VLM

PREFETCH = 4  # pictures that wait for each worker process
GPU_CACHE_SHARE = 1 / 3  # of a GPU's free memory
CPU_CACHE_BYTES = 2**31


@dataclass(eq=False)
class ExampleQuestion:
    """One question, and the cells of its answer."""

    sample: Sample
    words: torch.Tensor  # [T, W]
    groups: tuple[torch.Tensor, ...]  # of cells: any one group suffices
    # The model's attention [N] once it was measured; (None,) if the model answers wrong.
    attention: tuple[torch.Tensor | None] | None = None


@dataclass(eq=False)
class TrainingExample:
    """One picture: its views with all tokens, and its questions."""

    name: str
    grid: Cells
    views: list[CellFeatures]
    questions: list[ExampleQuestion]
    image: Still  # for losses that run the model

    @property
    def shape(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(view.shape for view in self.views)


class LookCache:
    """Looks at pictures, preprocessed and encoded once. The least recently used looks are dropped when memory is full."""

    def __init__(self, vlm: VLM, max_bytes: int | None = None) -> None:
        """`max_bytes`: None for a third of the GPU's free memory, or 2 GiB on the CPU."""
        self.vlm = vlm
        self.max_bytes = max_bytes if max_bytes is not None else _default_bytes(vlm.device)
        self.used = 0
        self._looks: OrderedDict[int, tuple[Still, Look, int]] = OrderedDict()  # the picture is kept so that its id is

    def at(self, image: Still) -> Look:
        """The look at `image`, from the cache where possible."""
        if id(image) not in self._looks:
            look = self.vlm.look(image, straighten="off")  # its cells are those of the boxes
            self.vlm.prepare(look=look, text="?", selector="all")  # encodes it
            size = sum(one.nbytes for one in tensors([look.vision.tensors, look.encoded]))
            size += sum(3 * w * h for sizes in look.sizes().values() for w, h in sizes)  # the pictures
            self._looks[id(image)] = (image, look, size)
            self.used += size
        self._looks.move_to_end(id(image))
        while self.used > self.max_bytes and len(self._looks) > 1:
            _, (_, _, freed) = self._looks.popitem(last=False)
            self.used -= freed
        return self._looks[id(image)][1]

    def __len__(self) -> int:
        return len(self._looks)


def _default_bytes(device: torch.device) -> int:
    return round(GPU_CACHE_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else CPU_CACHE_BYTES


def read_folder(folder: Path, limit: int | None = None) -> Data:
    """The pictures and questions of a folder with `samples.jsonl`."""
    if not folder.is_dir():
        raise DataError(f"expected a folder with pictures and samples.jsonl, got {str(folder)!r}")
    return read_samples(folder, limit)


def split_data(data: Data, one_in: int = 10) -> tuple[Data, Data]:
    """Training and validation pictures. One picture in ten is for validation, by a hash of its name."""
    parts: tuple[list[PictureQuestions], list[PictureQuestions]] = [], []
    for one in data.pictures:
        parts[zlib.crc32(Path(one.name).name.encode()) % one_in == 0].append(one)
    return replace(data, pictures=tuple(parts[0])), replace(data, pictures=tuple(parts[1]))


def selection_input(vlm: VLM, look: Look, question: str) -> SelectionInput:
    """The input that a selector gets for a look at one picture, after encoding."""
    caught: list[SelectionInput] = []

    def catch(selection: SelectionInput) -> torch.Tensor:
        caught.append(selection)
        return selection.candidates[:1]

    vlm.prepare(look=look, text=question, budget=1, glance="all", selector=FunctionSelector(catch))
    if len(caught) != 1:
        raise DataError(f"expected one picture to a question, got {len(caught)}")
    return caught[0]


def load_examples(
    vlm: VLM, data: Data, config: LayerConfig, *, by_box: bool = True, by_answer: bool = False,
    looks: LookCache | None = None, share: tuple[int, int] = (0, 1), workers: int = 0,
    report: Callable[[str], None] = lambda why: None, tick: Callable[[int, int], None] = lambda done, total: None,
) -> list[TrainingExample]:  # fmt: skip
    """Every picture that has a question with evidence (`by_box`) or with an answer (`by_answer`).

    `share` (i, n): only every n-th picture, starting at the i-th. `workers`: processes that compute textures while the model
    encodes. `looks`: keeps the looks for losses that run the model. `report` receives a line for what cannot be used.
    """

    def is_useful(sample: Sample) -> bool:
        return (by_box and bool(sample.evidence)) or (by_answer and has_answer(sample))

    wanted = [one for one in data.pictures if any(map(is_useful, one.samples))]
    for one in wanted if share[0] == 0 else []:
        if one.kind != "image":
            report(f"{one.name}: expected a still picture to learn from, got a video")
    pictures = [one for one in wanted if one.kind == "image"][share[0] :: share[1]]
    looks = LookCache(vlm, max_bytes=0) if looks is None else looks
    examples = []
    for number, (one, selection, views) in enumerate(_encode(looks, pictures, config, workers, report)):
        samples = [sample for sample in one.samples if is_useful(sample)]
        example = _example(vlm, one, samples, by_answer, selection, views)
        if example.questions:
            examples.append(example)
        tick(number + 1, len(pictures))
    return examples


def has_answer(sample: Sample) -> bool:
    """Whether the sample has an answer to train on. The first one is used."""
    return bool(sample.answers) and bool(sample.answers[0].strip())


def _encode(
    looks: LookCache,
    pictures: Sequence[PictureQuestions],
    config: LayerConfig,
    workers: int,
    report: Callable[[str], None],
) -> Iterator[tuple[PictureQuestions, SelectionInput, list[CellFeatures]]]:
    """The tokens of each picture, and its views without tokens."""
    looked = ((one, selection) for one in pictures if (selection := _look(looks, one, report)) is not None)
    if workers == 0:
        for one, selection in looked:
            yield one, selection, _texture_views(one.still, selection.grid, config)
        return
    waiting: deque[tuple[PictureQuestions, SelectionInput, Future[list[CellFeatures]]]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker) as pool:
        for one, selection in looked:
            waiting.append((one, selection, pool.submit(_texture_views, one.still, selection.grid, config)))
            if len(waiting) > PREFETCH * workers:
                before, taken, views = waiting.popleft()
                yield before, taken, views.result()
        for before, taken, views in waiting:
            yield before, taken, views.result()


def _start_worker() -> None:
    torch.set_num_threads(1)
    ignore_first_signal()


def _look(looks: LookCache, one: PictureQuestions, report: Callable[[str], None]) -> SelectionInput | None:
    try:
        return selection_input(looks.vlm, looks.at(one.still), one.samples[0].question)
    except (ArrCocError, OSError) as error:
        report(f"{one.name}: {error}")
        return None


def _texture_views(image: Still, grid: Cells, config: LayerConfig) -> list[CellFeatures]:
    """The texture channels of every view, in half precision: there may be thousands of pictures."""
    source = image_source(image if not isinstance(image, Path) else str(image))
    texture = TextureArray.from_image(source.picture)
    views = (texture_features([texture], view, config) for view in grid.views)
    return [CellFeatures(view.channels.half().cpu(), view.pixels.half().cpu()) for view in views]


def _example(
    vlm: VLM,
    one: PictureQuestions,
    samples: list[Sample],
    by_answer: bool,
    selection: SelectionInput,
    bare: list[CellFeatures],
) -> TrainingExample:
    assert selection.tokens is not None
    tokens = _to_half(selection.tokens).split([math.prod(view.shape) for view in bare])
    views = [replace(view, tokens=own.view(*view.shape, -1)) for view, own in zip(bare, tokens, strict=True)]
    questions = []
    for sample in samples:
        ids = vlm.prompter.ids(sample.question)
        if len(ids) == 0:
            continue
        words = _to_half(Question(sample.question, ids, vlm.adapter.embed).embeddings)
        groups = evidence_cells(sample.evidence, selection.grid, one.size) if sample.evidence else []
        groups = [group for group in groups if len(group)]
        if groups or (by_answer and has_answer(sample)):
            questions.append(ExampleQuestion(sample, words, tuple(groups)))
    return TrainingExample(one.name, selection.grid, views, questions, one.still)


def _to_half(values: torch.Tensor) -> torch.Tensor:
    """In half precision on the CPU, clamped: bfloat16 values may exceed its range."""
    limit = torch.finfo(torch.float16).max
    return values.detach().float().clamp(-limit, limit).half().cpu()
