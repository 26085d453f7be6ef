"""Fine-tuning the second reader on a CPU: sparse steps in bfloat16, several questions a picture, resumable.

The documents are those of the first reader, on canvases that both cell sizes divide. A step encodes the cells that its
questions need and some others. Drawing costs as much as training, so each batch is used a few times, with other noise each time.
"""

import copy
import math
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen3VLForConditionalGeneration

from arr_coc.errors import ArrCocError
from arr_coc.training.documents.questions import PLAIN
from arr_coc.training.journal import Journal
from arr_coc.training.loop import (
    Clock,
    StopSignals,
    Task,
    cosine_rate,
    run_steps,
    save_checkpoint,
    step_optimizers,
    update_average,
)  # fmt: skip
from recipes.reader import folder
from recipes.reader import model as first
from recipes.reader.augment import without_augmentation
from recipes.reader.batches import Batch, collate, make_row
from recipes.reader.data import Library
from recipes.reader.forward import ReaderForward, answer, to_patches
from recipes.reader.losses import answer_loss, show
from recipes.reader.receipts import Placement, Receipt, scan
from recipes.reader.recipe import Grid, StepKind
from recipes.second_reader.model import CELL, PATCH, STANDARD, SecondShape, build, warm_start

_WAITING = 4  # batches that were drawn and will be used again
MAX_CELLS = 735  # the first reader's 900 cells of 28 pixels cover 706 thousand pixels, these 753 thousand
FAMILY_GRIDS: tuple[tuple[Grid, float], ...] = (((24, 40), 0.6), ((24, 32), 0.2), ((16, 48), 0.1), ((32, 24), 0.1))


def second_grid(grid: Grid) -> Grid:
    """The grid of a canvas in this reader's cells; `grid` counts the first reader's, in multiples of 8."""
    return grid[0] * first.CELL // CELL, grid[1] * first.CELL // CELL


@dataclass(frozen=True)
class Kind:
    """A kind of step: shares of the cells that are encoded, and read, and room for the questions' text."""

    name: str
    batch: int
    encoded: float
    kept: float
    text: int
    chance: float

    def on(self, grid: Grid) -> StepKind:
        cells = grid[0] * grid[1]
        counts = max(1, round(self.encoded * cells)), max(1, round(self.kept * cells))
        return StepKind(self.name, (grid,), (1.0,), self.batch, *counts, self.text, self.chance, self.chance)


KINDS = (
    Kind("a quarter encoded", 6, 0.25, 0.25, 320, 0.5),
    Kind("half encoded", 4, 0.5, 0.5, 320, 0.2),
    Kind("all", 2, 1.0, 1.0, 320, 0.15),
    Kind("all encoded, an eighth kept", 2, 1.0, 0.125, 200, 0.15),
)


@dataclass(frozen=True)
class Settings:
    seconds: float = 2700.0  # of training, over all calls
    lr: float = 2e-4
    warmup_steps: int = 20
    average: float = 0.98  # decay of the moving average
    uses: int = 2  # of a batch
    save_every: float = 120.0
    measure_every: float = 600.0
    seed: int = 0
    steps: int | None = None  # at most, over all calls
    mix: float = 0.8  # progress of the first reader's mix of documents
    grids: tuple[tuple[Grid, float], ...] = FAMILY_GRIDS
    kinds: tuple[Kind, ...] = KINDS


def make_batch(library: Library, rng: random.Random, settings: Settings) -> Batch:
    """Documents on one canvas."""
    canvas = rng.choices([grid for grid, _ in settings.grids], [chance for _, chance in settings.grids])[0]
    kind = rng.choices(settings.kinds, [one.chance for one in settings.kinds])[0].on(second_grid(canvas))
    documents = [library.document(rng, canvas, settings.mix, coloured=rng.random() < 0.1) for _ in range(kind.batch)]
    grid = kind.grids[0]
    return collate(kind, grid, [make_row(rng, document, grid, kind.text, readings=2) for document in documents])


@dataclass
class Run:
    """Everything that changes during training."""

    model: Qwen3VLForConditionalGeneration
    average: Qwen3VLForConditionalGeneration
    optimizer: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0
    images: int = 0

    def save(self, path: Path) -> None:
        state = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimizer")}
        save_checkpoint(path, state | {"counts": (self.step, self.seconds, self.images)})

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        for name in ("model", "average", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds, self.images = state["counts"]


def start(settings: Settings, shape: SecondShape = STANDARD, source: Path | None = None) -> Run:
    """A run at its start, from the first reader in `source`; without it from random weights."""
    torch.manual_seed(settings.seed)
    model = build(shape)
    if source is not None:
        given = first.build(shape.base)
        found = given.load_state_dict(load_file(source / "model.safetensors"), strict=False)
        if {*found.missing_keys, *found.unexpected_keys} - {"lm_head.weight"}:
            raise ArrCocError(
                f"expected {str(source)!r} to hold a reader of recipes/reader, but its weights do not fit"
            )
        warm_start(model, given.float(), shape)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.0)
    return Run(model, average, optimizer)


def loss(forward: ReaderForward, batch: Batch) -> torch.Tensor:
    """The loss of the answers' characters, with cells dropped as the batch's kind of step says."""
    shown = show(batch)
    with torch.autocast("cpu", torch.bfloat16):
        visual = forward.encode(shown.patches, shown.cells, *batch.grid)
        kept, cells = shown.kept_tokens(visual)
        logits = forward.logits(kept, cells, batch.grid, batch.tokens, batch.segment, batch.place)
    return answer_loss(logits, batch)


@torch.no_grad()
def validate(
    model: Qwen3VLForConditionalGeneration, receipts: list[Receipt], canvas: Grid = (24, 40)
) -> dict[str, float]:
    """Exact match on whole scans, by kind of question, everything read."""
    forward, right, grid = ReaderForward(model), dict[str, list[bool]](), second_grid(canvas)
    size = (grid[0] * CELL, grid[1] * CELL)
    for receipt in receipts:
        document = scan(random.Random(0), receipt, *size, Placement.whole(receipt, *size))
        picture = without_augmentation(torch.from_numpy(document.image.copy())[None, None])
        with torch.autocast("cpu", torch.bfloat16):
            said = answer(forward, to_patches(picture, PATCH), [[PLAIN[q.kind] for q in document.questions]], grid)[0]
        for question, text in zip(document.questions, said, strict=True):
            right.setdefault(question.kind, []).append(text.strip() == question.answer.strip())
    return {kind: round(sum(found) / len(found), 4) for kind, found in right.items()}


class _SecondTask(Task):
    def __init__(
        self, run: Run, settings: Settings, library: Library, receipts: list[Receipt], out: Path, journal: Journal
    ) -> None:  # fmt: skip
        self.counts, self.settings, self.library = run, settings, library
        self.receipts, self.out, self.journal = receipts, out, journal
        self.forward = ReaderForward(run.model)
        self.waiting: deque[tuple[Batch, int]] = deque()  # batches, and how often each may be used
        self.recent: deque[float] = deque(maxlen=50)
        self.drawing = 0.0

    def _next(self) -> Batch:
        if len(self.waiting) < _WAITING:
            started = time.process_time()
            rng = random.Random(f"{self.settings.seed}/{self.counts.step}")
            batch, left = make_batch(self.library, rng, self.settings), self.settings.uses
            self.drawing += time.process_time() - started
        else:
            batch, left = self.waiting.popleft()
        if left > 1:
            self.waiting.append((batch, left - 1))
        return batch

    def step(self, progress: float) -> int:
        run, settings = self.counts, self.settings
        assert isinstance(run, Run)
        batch = self._next()
        run.optimizer.zero_grad(set_to_none=True)
        found = loss(self.forward, batch)
        found.backward()
        rate = cosine_rate(settings.lr, run.step, progress, warmup_steps=settings.warmup_steps)
        step_optimizers([run.optimizer], list(run.model.parameters()), rate)
        update_average(run.average, run.model, settings.average, run.step + 1)
        self.recent.append(found.item())
        if not math.isfinite(self.recent[-1]):
            raise ArrCocError(f"the loss is {self.recent[-1]} at step {run.step}: start again with a smaller --lr")
        return len(batch.images)

    def log(self, progress: float, clock: Clock) -> None:
        run = self.counts
        entry = {
            "minutes": round(run.seconds / 60, 2),
            "step": run.step,
            "loss": round(sum(self.recent) / len(self.recent), 4),
            "images": run.images,
            "drawing": round(self.drawing, 1),
        }
        self.journal.log_step(progress, entry, {"loss/answer": entry["loss"]})

    def validate(self) -> None:
        run = self.counts
        assert isinstance(run, Run)
        found = validate(run.average, self.receipts)
        self.journal.write({"minutes": run.seconds / 60, "step": run.step, "measured": found})
        print(f"  validation scans, everything read: {found}", flush=True)

    def save(self) -> None:
        run = self.counts
        assert isinstance(run, Run)
        run.save(self.out / "checkpoint.pt")
        folder.write(run.average, self.out / "reader", max_cells=MAX_CELLS)


def train(run: Run, library: Library, receipts: list[Receipt], out: Path, settings: Settings) -> Run:
    """Train until the schedule ends or a signal asks to stop; resumes from `out/checkpoint.pt`.

    Writes the checkpoint, the log and the model folder `reader` to `out`. `receipts`: scans to validate on, measured at the
    start, every `measure_every` seconds and at the end. With no seconds the start itself is measured and written.
    """
    if (out / "checkpoint.pt").is_file():
        run.load(out / "checkpoint.pt")
        print(f"resuming at step {run.step}, {run.seconds / 60:.1f} minutes", flush=True)
    with StopSignals() as stop, Journal(out) as journal:
        journal.open(run.step)
        task = _SecondTask(run, settings, library, receipts, out, journal)
        if run.step == 0 and receipts:
            task.validate()
        every = {"log": 20.0, "save": settings.save_every, "validate": settings.measure_every}
        clock = Clock(max(settings.seconds, 1e-9), steps=settings.steps, before=run.seconds, every=every)
        ended = run_steps(task, clock, stop)
        task.save()
        if ended and receipts and run.step:
            task.validate()
    return run
