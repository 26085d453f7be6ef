"""What the reader is trained on, for how long, and how the mix changes during training.

All canvases of a class have the same number of cells, so that one compiled network serves every shape of the class, and a
page with dropped cells costs as much as a dense canvas of a smaller class. Small canvases come first, because they teach
letters at a fraction of a page's cost. Whole pages and scanned receipts follow.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from arr_coc.training.loop import Clock, cosine_rate
from recipes.reader.model import CELL

SCHEDULE_SECONDS = 1380.0
LOG_EVERY = 6.0  # seconds

Grid = tuple[int, int]  # columns, rows

PAGE_GRIDS: tuple[Grid, ...] = ((20, 45), (25, 36), (18, 50), (30, 30), (36, 25), (15, 60), (45, 20))
MEDIUM_GRIDS: tuple[Grid, ...] = ((16, 27), (18, 24), (24, 18), (12, 36), (27, 16), (36, 12))
SMALL_GRIDS: tuple[Grid, ...] = ((12, 18), (18, 12), (9, 24), (24, 9), (27, 8), (36, 6))
# The first page grids are those of scanned receipts.
_PAGE_CHANCES = (0.30, 0.26, 0.08, 0.13, 0.14, 0.04, 0.05)


@dataclass(frozen=True)
class StepKind:
    """One kind of training step.

    Of the canvas's cells, `encoded` go through the encoder and `kept` of those reach the language model; `text` is the room
    for questions and answers.
    """

    name: str
    grids: tuple[Grid, ...]
    chances: tuple[float, ...]
    batch: int
    encoded: int
    kept: int
    text: int
    early: float  # share of steps at the start of training
    late: float  # and at the end

    @property
    def cells(self) -> int:
        return self.grids[0][0] * self.grids[0][1]

    def __post_init__(self) -> None:
        sizes = {columns * rows for columns, rows in self.grids}
        if len(sizes) != 1:
            raise ValueError(
                f"expected all grids of {self.name!r} to have the same number of cells, got {sorted(sizes)}"
            )
        if not self.kept <= self.encoded <= self.cells:
            raise ValueError(f"expected kept <= encoded <= cells, got {self.kept}, {self.encoded}, {self.cells}")


def _even(grids: tuple[Grid, ...]) -> tuple[float, ...]:
    return (1 / len(grids),) * len(grids)


# Prefix and text together have a multiple of eight tokens, which attention kernels prefer.
STEP_KINDS: tuple[StepKind, ...] = (
    StepKind("small", SMALL_GRIDS, _even(SMALL_GRIDS), 160, 216, 216, 261, early=0.45, late=0.14),
    StepKind("medium", MEDIUM_GRIDS, _even(MEDIUM_GRIDS), 96, 432, 432, 381, early=0.20, late=0.09),
    StepKind("page, half encoded", PAGE_GRIDS, _PAGE_CHANCES, 96, 432, 432, 381, early=0.26, late=0.20),
    StepKind("page, a quarter encoded", PAGE_GRIDS, _PAGE_CHANCES, 160, 216, 216, 261, early=0.02, late=0.09),
    StepKind("page", PAGE_GRIDS, _PAGE_CHANCES, 64, 900, 900, 441, early=0.07, late=0.33),
    StepKind("page, a quarter kept", PAGE_GRIDS, _PAGE_CHANCES, 64, 900, 216, 437, early=0.0, late=0.05),
    StepKind("page, an eighth kept", PAGE_GRIDS, _PAGE_CHANCES, 64, 900, 112, 149, early=0.0, late=0.05),
    StepKind("page, a sixteenth kept", PAGE_GRIDS, _PAGE_CHANCES, 64, 900, 56, 149, early=0.0, late=0.05),
)

TINY_STEP_KINDS: tuple[StepKind, ...] = (
    StepKind("small", ((6, 4), (4, 6)), (0.5, 0.5), 6, 24, 24, 93, early=0.5, late=0.5),
    StepKind("small, half encoded", ((6, 4),), (1.0,), 6, 12, 12, 93, early=0.3, late=0.3),
    StepKind("small, a part kept", ((6, 4),), (1.0,), 6, 24, 8, 93, early=0.2, late=0.2),
)


@dataclass(frozen=True)
class Mix:
    """Shares that change from early to late with the progress of training, from 0 to 1."""

    scans: tuple[float, float] = (0.10, 0.50)  # scanned receipts among tall pages
    rerendered: tuple[float, float] = (0.25, 0.25)  # rerendered receipts among tall pages
    reprinted: tuple[float, float] = (0.25, 0.35)  # scans whose name and address are printed over with invented ones
    coloured: tuple[float, float] = (0.40, 0.50)  # coloured batches among small and medium canvases
    papers: tuple[float, float] = (
        0.35,
        0.42,
    )  # invoices, charts, screens and other drawings that are none of the first four kinds
    empty: tuple[float, float] = (0.03, 0.05)  # pictures with nothing to read
    enriched: tuple[float, float] = (
        0.40,
        0.50,
    )  # of the first four kinds: richer phrasings, questions about absent things

    def at(self, name: str, progress: float) -> float:
        early, late = getattr(self, name)
        return early + (late - early) * mix_progress(progress)


DEFAULT_MIX = Mix()
FIRST_FAMILIES = Mix(
    reprinted=(0, 0), papers=(0, 0), empty=(0, 0), enriched=(0, 0)
)  # receipts, forms, tables and notices, as they are


def mix_progress(progress: float) -> float:
    """Progress of the mix: it reaches its final state after two thirds of the training."""
    return min(1.0, max(0.0, progress / 0.66))


def step_shares(kinds: tuple[StepKind, ...], progress: float) -> list[float]:
    """Probability of each kind of step at this point of the training."""
    position = mix_progress(progress)
    return [kind.early + (kind.late - kind.early) * position for kind in kinds]


def without_dropped_cells(kinds: tuple[StepKind, ...]) -> tuple[StepKind, ...]:
    """The same canvases with all cells: the baseline for steps that drop cells."""
    dense = [kind for kind in kinds if kind.kept == kind.cells]
    return tuple(
        replace(
            kind,
            early=sum(other.early for other in kinds if other.cells == kind.cells),
            late=sum(other.late for other in kinds if other.cells == kind.cells),
        )
        for kind in dense
    )


def with_batches(kinds: tuple[StepKind, ...], share: float) -> tuple[StepKind, ...]:
    """The same kinds of steps with `share` of the pictures in a batch, at least two."""
    return tuple(replace(kind, batch=max(2, round(kind.batch * share))) for kind in kinds)


def pixels(grid: Grid) -> tuple[int, int]:
    """Width and height of a canvas."""
    return grid[0] * CELL, grid[1] * CELL


@dataclass(frozen=True)
class Settings:
    """The learning rate and the mix of documents follow the share of `schedule_seconds` that has passed."""

    seconds: float | None = None  # of this call, from its start to its end; None: until the schedule ends
    schedule_seconds: float = SCHEDULE_SECONDS  # of training over all calls
    finish: bool = False  # end the schedule within `seconds`
    steps: int | None = None  # stop after so many even if there is time left
    batch_share: float = 1.0  # of the pictures of a batch; a CPU takes small batches
    encoder: bool = (
        True  # train the vision encoder; False: the language model alone, on the tokens of a trained encoder
    )
    lr: float = 2e-3
    warmup_steps: int = 200
    last_lr: float = 0.02  # share of `lr` at the end
    cell_weight: float = 1.0
    colour_weight: float = 0.5
    mix_from: float = 0.0  # progress of the mix at the start: above 0 for a reader that is trained already
    average: float = 0.998  # decay of the moving average
    clip: float = 1.0
    save_every: float = 60.0  # seconds
    measure_every: float = 150.0
    reserve: float = 25.0  # of `seconds`, kept for the last validation and for saving
    workers: int = 15  # rendering processes, for each training process
    uses: int = 3  # of a batch, at most
    seed: int = 0  # of the weights
    document_seed: int = 0
    device: str = "cuda"
    compiled: bool = True
    bfloat16: bool = False  # also on a CPU, where that is faster (AVX-512 BF16)

    def __post_init__(self) -> None:
        if self.finish and self.seconds is None:
            raise ValueError("finish brings the schedule to its end within `seconds`, which must then be given")

    @property
    def half(self) -> bool:
        """Whether the forward pass runs in bfloat16."""
        return self.on_gpu or self.bfloat16

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def mix_at(self, progress: float) -> float:
        """Progress of the mix of documents."""
        return self.mix_from + (1 - self.mix_from) * progress

    def rate(self, step: int, progress: float) -> float:
        """Learning rate of a step."""
        return cosine_rate(self.lr, step, progress, warmup_steps=self.warmup_steps, last=self.last_lr)

    def clock(self, before: float, started: float, now: Callable[[], float] = time.monotonic) -> Clock:
        """The clock of a call that began at `started`, after `before` seconds of training in earlier calls."""
        return Clock(
            self.schedule_seconds, before=before, finish=self.finish, now=now,
            end=math.inf if self.seconds is None else started + self.seconds - self.reserve,
            every={"log": LOG_EVERY, "save": self.save_every, "validate": self.measure_every},
        )  # fmt: skip
