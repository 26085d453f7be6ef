"""Where documents come from during training: renderers and scanned receipts, mixed by the recipe, in worker processes."""

import ctypes
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Value

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from arr_coc.training.documents import form, notice, receipt, table
from arr_coc.training.documents.page import Document, FontSet
from arr_coc.training.stopping import outlive_first_request
from recipes.reader import rerender as retold
from recipes.reader.batches import Batch, collate, make_row
from recipes.reader.receipts import Placement, Receipt, scan
from recipes.reader.recipe import DEFAULT_MIX, Grid, Mix, StepKind, pixels, shares
from recipes.reader.swap_fields import PieceShelf, transplanted
from recipes.reader.swap_words import WordShelf, patched

_RUNNING, _PAUSED, _ENDED = range(3)


@dataclass(frozen=True)
class Library:
    """Everything documents are made from."""

    fonts: FontSet
    receipts: tuple[Receipt, ...] = ()
    common: frozenset[str] = frozenset()
    pieces: PieceShelf = field(default_factory=lambda: PieceShelf([]))
    words: WordShelf = field(default_factory=lambda: WordShelf([]))
    weights: tuple[float, ...] = ()  # how often each receipt is drawn
    mix: Mix = DEFAULT_MIX

    @classmethod
    def of(cls, fonts: FontSet, receipts: list[Receipt], mix: Mix = DEFAULT_MIX) -> "Library":
        # A shop with many receipts is drawn more often than one with few, but not in proportion: its name would be all
        # that is learned.
        shops = Counter(receipt.fields.get("company", "") for receipt in receipts)
        weights = tuple(shops[receipt.fields.get("company", "")] ** -0.5 for receipt in receipts)
        return cls(
            fonts,
            tuple(receipts),
            retold.common_words(receipts),
            PieceShelf(receipts),
            WordShelf(receipts),
            weights,
            mix,
        )

    def _fitting(self, rng: random.Random, width: int, height: int) -> Receipt:
        """A receipt of about the canvas's proportions: the best of a few drawn at random."""
        drawn = rng.choices(self.receipts, self.weights, k=3)
        return min(drawn, key=lambda r: abs(r.image.width / r.image.height - width / height))

    def document(self, rng: random.Random, grid: Grid, progress: float, coloured: bool) -> Document:
        """A document for a canvas of this grid."""
        width, height = pixels(grid)
        if coloured and rng.random() < 0.65:
            return notice.render(rng, self.fonts, width, height)
        page_like = grid[0] * grid[1] >= 700 and height >= width * 0.95
        if page_like and self.receipts:
            draw, scans, told = rng.random(), self.mix.at("scans", progress), self.mix.at("retold", progress)
            if draw < scans:
                chosen, kept = patched(rng, self._fitting(rng, width, height), self.words)
                chosen = transplanted(rng, chosen, self.pieces, kept=kept)
                return scan(rng, chosen, width, height, Placement.varied(rng, chosen, width, height))
            if draw < scans + told:
                return retold.render(rng, self.fonts, self._fitting(rng, width, height), self.common, width, height)
        family = rng.random()
        if height >= 400 and height >= width * 0.7 and family < (0.64 if page_like else 0.42):
            return receipt.render(rng, self.fonts, width, height)
        return (form if family < (0.80 if page_like else 0.68) else table).render(rng, self.fonts, width, height)


class TrainingBatches(IterableDataset[Batch]):
    """An endless stream of batches; each worker draws its own, deterministic in seed, worker and count.

    Processes that train together have the same kinds of batches at the same counts and, by their `rank`, other documents
    in them.
    """

    def __init__(self, library: Library, kinds: tuple[StepKind, ...], seed: int, rank: int = 0):
        self.library, self.kinds, self.seed, self.rank = library, kinds, seed, rank
        self.progress = Value(ctypes.c_double, 0.0)  # shared with the workers, so that the mix can follow the clock
        self._state = Value(ctypes.c_int, _RUNNING)

    def pause(self) -> None:
        """Let the workers rest, so that measuring has the processor for itself."""
        self._state.value = _PAUSED

    def resume(self) -> None:
        self._state.value = _RUNNING

    def end(self) -> None:
        """End the stream: every worker finishes its batch and stops, which is much quicker than stopping it from outside."""
        self._state.value = _ENDED

    def kind(self, rng: random.Random, progress: float) -> StepKind:
        return rng.choices(self.kinds, shares(self.kinds, progress))[0]

    def make(self, rng: random.Random, progress: float, kind: StepKind | None = None) -> Batch:
        kind = kind or self.kind(rng, progress)
        grid = rng.choices(kind.grids, kind.chances)[0]
        coloured = rng.random() < self.library.mix.at("coloured", progress) * (1.0 if kind.cells < 700 else 0.25)
        readings = rng.choice((2, 4, 6))
        documents = [self.library.document(rng, grid, progress, coloured) for _ in range(kind.batch)]
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


def example(library: Library, kind: StepKind) -> Batch:
    """A batch of this kind, always the same and quickly made: four documents, repeated."""
    rng, grid = random.Random(kind.name), kind.grids[0]
    documents = [library.document(rng, grid, 0.0, False) for _ in range(4)]
    rows = [make_row(rng, document, grid, kind.text, 4) for document in documents]
    return collate(kind, grid, (rows * kind.batch)[: kind.batch])


def _settle_worker(_: int) -> None:
    torch.set_num_threads(1)
    outlive_first_request()
    os.nice(10)  # the training process must never wait for a core


def loader(batches: TrainingBatches, workers: int, pin: bool) -> DataLoader[Batch]:
    """Batches from `workers` processes, in whatever order they get ready."""
    if workers == 0:
        return DataLoader(batches, batch_size=None)
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=2,
        pin_memory=pin,
        worker_init_fn=_settle_worker,
        in_order=False,
    )
