"""Training data: documents drawn and scanned by the recipe, batches from worker processes, and a supply of them."""

import contextlib
import ctypes
import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Value
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from arr_coc.training.documents import form, notice, receipt, table
from arr_coc.training.documents.drawing import draw_document, draw_within, enrich, fitting_kinds
from arr_coc.training.documents.page import Document, FontSet, PageQuestion
from arr_coc.training.documents.phrasings import say
from arr_coc.training.documents.questions import NOT_FOUND
from arr_coc.training.loop import ignore_first_signal
from recipes.reader.batches import Batch, collate, make_row
from recipes.reader.receipt_variants import (
    FieldPieces,
    WordPieces,
    common_words,
    reprint,
    rerender,
    swap_fields,
    swap_words,
)
from recipes.reader.receipts import Placement, Receipt, scan
from recipes.reader.recipe import DEFAULT_MIX, Grid, Mix, Settings, StepKind, pixels, step_shares

_RUNNING, _PAUSED, _ENDED = range(3)
_MAX_ASIDE = 16  # fresh batches that wait while another kind is wanted
# How often each kind is drawn among papers. Receipts, forms, tables and notices have shares of their own besides.
_PAPERS = {
    "invoice": 4.0, "screen": 4.0, "chart": 3.0, "table": 2.0, "letter": 1.5, "bank slip": 1.0, "ticket": 1.0,
    "timetable": 1.0, "business card": 1.0, "label": 1.0, "scene": 0.5,
}  # fmt: skip
_ASKED_IN_VAIN = (
    "total",
    "date",
    "company",
    "address",
    "heading",
    "invoice number",
    "due date",
    "tax number",
    "IBAN",
    "sign",
)


@dataclass(frozen=True)
class Library:
    """Fonts and scanned receipts, from which documents are made."""

    fonts: FontSet
    receipts: tuple[Receipt, ...] = ()
    common: frozenset[str] = frozenset()
    pieces: FieldPieces = field(default_factory=lambda: FieldPieces([]))
    words: WordPieces = field(default_factory=lambda: WordPieces([]))
    weights: tuple[float, ...] = ()  # how often each receipt is drawn
    photos: tuple[Path, ...] = ()  # photographs without a document
    mix: Mix = DEFAULT_MIX

    @classmethod
    def from_receipts(
        cls, fonts: FontSet, receipts: list[Receipt], mix: Mix = DEFAULT_MIX, photos: Sequence[Path] = ()
    ) -> "Library":
        # A shop with many receipts is drawn more often, but not in proportion: its name would be memorised.
        shops = Counter(receipt.fields.get("company", "") for receipt in receipts)
        weights = tuple(shops[receipt.fields.get("company", "")] ** -0.5 for receipt in receipts)
        pieces = FieldPieces(receipts), WordPieces(receipts)
        return cls(fonts, tuple(receipts), common_words(receipts), *pieces, weights, tuple(photos), mix)

    def _fitting(self, rng: random.Random, width: int, height: int) -> Receipt:
        """A receipt of about the canvas's proportions: the best of a few drawn at random."""
        drawn = rng.choices(self.receipts, self.weights, k=3)
        return min(drawn, key=lambda r: abs(r.image.width / r.image.height - width / height))

    def document(self, rng: random.Random, grid: Grid, progress: float, coloured: bool) -> Document:
        """A document for a canvas of this grid, at times with questions about what it does not show."""
        width, height = pixels(grid)
        if rng.random() < self.mix.at("empty", progress):
            return without_document(rng, width, height, self.photos)
        if rng.random() < self.mix.at("papers", progress):
            drawn = self._paper(rng, width, height)
            if drawn is not None:
                return drawn
        document, family = self._first_families(rng, width, height, grid, progress, coloured)
        if rng.random() < self.mix.at("enriched", progress):
            return enrich(rng, document, family, rephrase=rng.random() < 0.5)
        return document

    def _paper(self, rng: random.Random, width: int, height: int) -> Document | None:
        """One of `_PAPERS` that fills the canvas, or lies on it at its own size; None if none fits."""
        fitting = fitting_kinds(width, height)
        for _ in range(3):
            kind = rng.choices(list(_PAPERS), list(_PAPERS.values()))[0]
            invented = rng.random() < 0.5
            if kind in fitting and rng.random() < 0.5:
                return draw_document(rng, self.fonts, kind, width, height, invented=invented)
            drawn = draw_within(rng, self.fonts, kind, width, height, invented=invented)
            if drawn is not None:
                return drawn
        return None

    def _first_families(
        self, rng: random.Random, width: int, height: int, grid: Grid, progress: float, coloured: bool
    ) -> tuple[Document, str]:
        """A receipt, form, table or notice, and which of them it is."""
        if coloured and rng.random() < 0.65:
            return notice.render(rng, self.fonts, width, height), "notice"
        page_like = grid[0] * grid[1] >= 700 and height >= width * 0.95
        if page_like and self.receipts:
            draw = rng.random()
            scans, rerendered = self.mix.at("scans", progress), self.mix.at("rerendered", progress)
            if draw < scans:
                chosen, kept = swap_words(rng, self._fitting(rng, width, height), self.words)
                chosen = swap_fields(rng, chosen, self.pieces, kept=kept)
                if rng.random() < self.mix.at("reprinted", progress):
                    chosen = reprint(rng, self.fonts, chosen, self.common)
                return scan(rng, chosen, width, height, Placement.varied(rng, chosen, width, height)), "receipt"
            if draw < scans + rerendered:
                drawn = self._fitting(rng, width, height)
                return rerender(rng, self.fonts, drawn, self.common, width, height), "receipt"
        family = rng.random()
        if height >= 400 and height >= width * 0.7 and family < (0.64 if page_like else 0.42):
            return receipt.render(rng, self.fonts, width, height), "receipt"
        if family < (0.80 if page_like else 0.68):
            return form.render(rng, self.fonts, width, height), "form"
        return table.render(rng, self.fonts, width, height), "table"


def _backdrop(rng: random.Random, width: int, height: int) -> np.ndarray:
    """A blank page, a soft gradient, or noise of any grain: `[H, W, 3]` uint8."""
    style = rng.random()
    colours = np.array([[rng.uniform(0, 255) for _ in range(3)] for _ in range(2)])
    if style < 0.3:
        return np.full((height, width, 3), rng.choice((255, 250, rng.randint(0, 255))), np.uint8)
    if style < 0.55:
        share = (
            np.linspace(0, 1, height)[:, None, None] * rng.random()
            + np.linspace(0, 1, width)[None, :, None] * rng.random()
        )
        return (colours[0] + (colours[1] - colours[0]) * share / 2).clip(0, 255).astype(np.uint8)
    grain = rng.choice((1, 2, 4, 9, 20, 60))
    drawn = np.random.default_rng(rng.getrandbits(32)).normal(
        0, rng.uniform(5, 90), (height // grain + 1, width // grain + 1, 3)
    )
    drawn = colours[0] + (drawn if rng.random() < 0.5 else drawn[..., :1])
    picture = Image.fromarray(drawn.clip(0, 255).astype(np.uint8))
    return np.asarray(picture.resize((width, height), rng.choice((Image.Resampling.NEAREST, Image.Resampling.BICUBIC))))


def without_document(rng: random.Random, width: int, height: int, photos: Sequence[Path] = ()) -> Document:
    """A picture with nothing to read, and questions about documents: all of them are asked in vain."""
    if photos and rng.random() < 0.7:
        with Image.open(rng.choice(photos)) as photo:
            across, down = photo.size
            scale = min(across / width, down / height) * rng.uniform(0.5, 1.0)
            left, top = rng.uniform(0, across - width * scale), rng.uniform(0, down - height * scale)
            box = (left, top, left + width * scale, top + height * scale)
            image = np.asarray(photo.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, box=box))
        strays = 0  # it may show the things that these ask for
    else:
        image, strays = _backdrop(rng, width, height), 3
    asked = [PageQuestion(kind, say(rng, kind), NOT_FOUND, absent=True) for kind in rng.sample(_ASKED_IN_VAIN, 5)]
    document = Document(image, (), tuple(asked), summary="A picture without text.")
    return enrich(rng, document, "backdrop", rephrase=False, strays=strays)


class TrainingBatches(IterableDataset[Batch]):
    """An endless stream of batches. Each worker draws its own, deterministic in seed, worker and count.

    All ranks draw the same kinds of batches at the same counts, with different documents.
    """

    def __init__(self, library: Library, kinds: tuple[StepKind, ...], seed: int, rank: int = 0):
        self.library, self.kinds, self.seed, self.rank = library, kinds, seed, rank
        self.progress = Value(ctypes.c_double, 0.0)  # shared with the workers, so that the mix follows the clock
        self._state = Value(ctypes.c_int, _RUNNING)

    def pause(self) -> None:
        """Pause the workers, so that validation has the CPU."""
        self._state.value = _PAUSED

    def resume(self) -> None:
        self._state.value = _RUNNING

    def end(self) -> None:
        """End the stream: every worker finishes its batch and stops, which is faster than killing it."""
        self._state.value = _ENDED

    def kind(self, rng: random.Random, progress: float) -> StepKind:
        return rng.choices(self.kinds, step_shares(self.kinds, progress))[0]

    def document(self, rng: random.Random, kind: StepKind, grid: Grid, progress: float, coloured: bool) -> Document:
        """A document; where the step drops cells, without questions about all of it, which a part cannot answer."""
        drawn = self.library.document(rng, grid, progress, coloured)
        if kind.kept == kind.cells:
            return drawn
        return replace(drawn, questions=tuple(question for question in drawn.questions if not question.whole))

    def make(self, rng: random.Random, progress: float, kind: StepKind | None = None) -> Batch:
        kind = kind or self.kind(rng, progress)
        grid = rng.choices(kind.grids, kind.chances)[0]
        coloured = rng.random() < self.library.mix.at("coloured", progress) * (1.0 if kind.cells < 700 else 0.25)
        readings = rng.choice((2, 4, 6))
        documents = [self.document(rng, kind, grid, progress, coloured) for _ in range(kind.batch)]
        return collate(kind, grid, [make_row(rng, document, grid, kind.text, readings) for document in documents])

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker = info.id if info else 0
        count = 0
        while (state := self._state.value) != _ENDED:
            if state == _PAUSED:
                time.sleep(0.05)
                continue
            name, progress = f"{self.seed}/{worker}/{count}", self.progress.value
            rng = random.Random(name)
            kind = self.kind(rng, progress)
            yield self.make(random.Random(f"{name}/{self.rank}") if self.rank else rng, progress, kind)
            count += 1


def example_batch(library: Library, kind: StepKind) -> Batch:
    """A batch of this kind, always the same and cheap: four documents, repeated."""
    rng, grid = random.Random(kind.name), kind.grids[0]
    documents = [library.document(rng, grid, 0.0, False) for _ in range(4)]
    rows = [make_row(rng, document, grid, kind.text, 4) for document in documents]
    return collate(kind, grid, (rows * kind.batch)[: kind.batch])


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    ignore_first_signal()
    os.nice(10)  # the training process has priority


def make_loader(batches: TrainingBatches, workers: int, pin: bool) -> DataLoader[Batch]:
    """Batches from `workers` processes, in the order in which they are ready."""
    if workers == 0:
        return DataLoader(batches, batch_size=None)
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=2,
        pin_memory=pin,
        worker_init_fn=_start_worker,
        in_order=False,
    )


@dataclass
class _UsedBatch:
    batch: Batch
    times: int = 1


class BatchSupply:
    """Batches on the device: fresh ones if there are any, else the least used one, at most `uses` times each.

    Every use is augmented differently. Without worker processes `background` must be False: rendering in a thread of the
    training process slows both down.
    """

    def __init__(
        self, source: Iterable[Batch], device: str, uses: int = 3, remembered: int = 64, background: bool = True
    ):
        self.uses, self.remembered = uses, remembered
        self.fresh_count = 0
        self._recent: list[_UsedBatch] = []
        self._aside: list[Batch] = []
        self._fresh: queue.Queue[Batch] = queue.Queue(maxsize=8)
        self._failure: BaseException | None = None
        self._stopped = False
        # Worker processes start here, in the calling thread: a fork while other threads run may inherit a held lock.
        batches = iter(source)
        self._direct = None if background else (batch.to(device) for batch in batches)
        self._thread = threading.Thread(target=self._fetch, args=(batches, device), daemon=True)
        if background:
            self._thread.start()

    def _fetch(self, batches: Iterator[Batch], device: str) -> None:
        try:
            for batch in batches:
                if not self._stopped:
                    self._fresh.put(batch.to(device))
        except BaseException as failure:  # raised in the training thread, which must not wait forever
            self._failure = failure

    def _take_fresh(self, wait: bool) -> Batch | None:
        """The next fresh batch of any kind; None if there is none and `wait` is False."""
        if self._aside:
            return self._aside.pop(0)
        while True:
            try:
                return self._fresh.get(block=wait, timeout=1.0 if wait else None)
            except queue.Empty:
                if self._failure is not None:
                    raise RuntimeError("the renderers stopped") from self._failure
                if not wait:
                    return None

    def _take_fresh_like(self, kind: StepKind) -> Batch | None:
        """The first fresh batch of this kind among those that are ready."""
        with contextlib.suppress(queue.Empty):
            while len(self._aside) < _MAX_ASIDE:
                self._aside.append(self._fresh.get_nowait())
        found = next((number for number, batch in enumerate(self._aside) if batch.kind == kind), None)
        return None if found is None else self._aside.pop(found)

    def next(self, like: StepKind | None = None) -> Batch:
        """The next batch to train on.

        `like`: the kind that the other ranks train on in this step. Steps of one kind take equally long, and all ranks wait
        for the slowest. If no batch of that kind is ready, another kind is returned.
        """
        if self._direct is not None:  # in order, so that the kinds are the same on all ranks
            self.fresh_count += 1
            return next(self._direct)
        candidates = [entry for entry in self._recent if entry.times < self.uses]
        alike = [entry for entry in candidates if entry.batch.kind == like]
        batch = None if like is None else self._take_fresh_like(like)
        if batch is None and not alike:
            batch = self._take_fresh(wait=not candidates)
        if batch is None:
            entry = min(alike or candidates, key=lambda entry: entry.times)
            entry.times += 1
            return entry.batch
        self.fresh_count += 1
        self._recent.append(_UsedBatch(batch))
        del self._recent[: -self.remembered]
        return batch

    def next_fresh(self) -> Batch:
        """A batch that was not used before."""
        uses, self.uses = self.uses, 1
        try:
            return self.next()
        finally:
            self.uses = uses

    def stop(self) -> None:
        """Drain a stream that has ended, so that its processes can exit."""
        self._stopped = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._fresh.get(timeout=0.2)


class Renderers:
    """The rendering processes and the supply of their batches. They start with the first batch and end with the block."""

    def __init__(self, library: Library, kinds: tuple[StepKind, ...], settings: Settings) -> None:
        self.library, self.kinds, self.settings = library, kinds, settings
        self._batches: TrainingBatches | None = None
        self._supply: BatchSupply | None = None

    def start(self, seed: int, progress: float, rank: int = 0) -> BatchSupply:
        """Start the processes unless they run already. `progress` is that of the mix."""
        if self._supply is None:
            settings = self.settings
            self._batches = TrainingBatches(self.library, self.kinds, seed, rank)
            self._batches.progress.value = progress
            loader = make_loader(self._batches, settings.workers, pin=settings.on_gpu)
            self._supply = BatchSupply(loader, settings.device, settings.uses, background=settings.workers > 0)
        return self._supply

    @property
    def supply(self) -> BatchSupply:
        assert self._supply is not None
        return self._supply

    def set_progress(self, progress: float) -> None:
        """Progress of the mix."""
        assert self._batches is not None
        self._batches.progress.value = progress

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the processes rest, so that validation has the CPU."""
        if self._batches is not None:
            self._batches.pause()
        yield
        if self._batches is not None:
            self._batches.resume()

    def __enter__(self) -> "Renderers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._batches is not None and self._supply is not None:
            self._batches.end()
            self._supply.stop()
