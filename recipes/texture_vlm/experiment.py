"""The whole run: principal components, two training stages for all branches together, measurements, the table.

A call finishes within its seconds: the first measurement is timed, and the remaining time is divided between the stages. A
call that was stopped early is resumed by the next one.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.embedding import storage
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import ArrCocError, ProjectionError
from arr_coc.training.journal import Journal
from arr_coc.training.loop import Clock, StopSignals, Task, run_steps, save_checkpoint
from recipes.reader import vocabulary
from recipes.reader.batches import Batch
from recipes.reader.data import BatchSupply, Library, Renderers, example_batch
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import show
from recipes.reader.recipe import StepKind
from recipes.reader.validation import Sheet, answer_sheets
from recipes.texture_vlm import results
from recipes.texture_vlm.branch import KINDS, LIFT, STAGES, Branch, TextureLosses, TextureSettings
from recipes.texture_vlm.model import encoder_identity, write_folder
from recipes.texture_vlm.results import Report

_WRITE_SECONDS = 4.0  # of a call, for writing
_MEASURE_MARGIN = 1.2  # measuring may take longer than it did at first
_FINAL_MIX = 1.0  # the mix of documents at the end of a reader's training


def load_reader(folder: Path, device: str) -> Qwen2VLForConditionalGeneration:
    """A frozen reader in float32."""
    reader = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    words = reader.model.language_model.embed_tokens.num_embeddings
    if words != vocabulary.VOCABULARY_SIZE:
        raise ArrCocError(f"expected a reader, with {vocabulary.VOCABULARY_SIZE} words, got a model with {words}")
    reader.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps `to` without its self
    return reader.eval().requires_grad_(False)


def token_moments(forward: ReaderForward, batch: Batch, cells: int) -> Moments:
    """Moments of the tokens of some random cells of every picture."""
    kind = batch.images.device.type
    shown = show(batch)
    with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        visual = forward.encode(shown.patches, shown.cells, batch.grid[0])
    drawn = torch.randperm(visual.shape[1], device=visual.device)[:cells]
    return Moments.of(visual[:, drawn].flatten(0, 1))


def gather_moments(
    forward: ReaderForward, next_batch: Callable[[], Batch], pictures: int, cells: int, stopped: Callable[[], bool],
    tick: Callable[[int], None],
) -> tuple[Moments, int] | None:  # fmt: skip
    """The moments of the tokens of at least so many pictures, and their number; None if `stopped`."""
    found, seen = Moments.empty(forward.language.embed_tokens.weight.shape[1]), 0
    while seen < pictures:
        if stopped():
            return None
        batch = next_batch()
        found, seen = found + token_moments(forward, batch, cells), seen + len(batch.images)
        tick(seen)
    return found, seen


def save_moments(path: Path, moments: Moments, pictures: int, encoder: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, moments.to_tensors("tokens"), {"encoder": encoder, "pictures": pictures})


def load_moments(path: Path, encoder: str) -> tuple[Moments, int]:
    """What `save_moments` wrote for this encoder."""
    try:
        tensors, note = storage.read(path)
    except storage.DamagedFileError as error:
        raise ProjectionError(f"{str(path)!r} is damaged, remove it: {error}") from None
    if note["encoder"] != encoder:
        raise ArrCocError(f"{str(path)!r} is of another reader's encoder: use another folder for this one's run")
    return Moments.from_tensors(tensors, "tokens"), int(note["pictures"])


@dataclass
class State:
    """Everything that changes in a run, except the branches' weights."""

    stage: int = LIFT  # the current or next stage; the number of stages when all is done
    trained: bool = False  # the stage is trained, but not measured
    step: int = 0  # of this stage
    seconds: float = 0.0  # trained in this stage
    images: int = 0  # of all stages
    measuring: float = 0.0  # seconds that a measurement of all branches takes
    results: dict[str, Report] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # steps and seconds of each finished stage

    def next_stage(self) -> None:
        self.history.append({"stage": STAGES[self.stage], "steps": self.step, "seconds": round(self.seconds, 1)})
        self.stage, self.trained, self.step, self.seconds = self.stage + 1, False, 0, 0.0

    def save(self, path: Path, made_of: dict[str, Any], branches: list[Branch]) -> None:
        """`made_of`: what a call that resumes must have in common with this one."""
        state = {"made of": made_of, "state": asdict(self), "branches": [branch.state_dict() for branch in branches]}
        save_checkpoint(path, state)

    def load(self, path: Path, made_of: dict[str, Any], branches: list[Branch], device: str) -> None:
        saved = torch.load(path, map_location=device, weights_only=True)
        for name, value in made_of.items():
            if saved["made of"].get(name) != value:
                raise ArrCocError(
                    f"{str(path)!r} is of a run with {name} {saved['made of'].get(name)!r}, this call has {value!r}: "
                    "use another folder, or the same settings"
                )
        for entry in fields(self):
            setattr(self, entry.name, saved["state"][entry.name])
        for branch, state in zip(branches, saved["branches"], strict=True):
            branch.start_stage(self.stage)
            branch.load_state_dict(state)


class Experiment(Task):
    """One run in the folder `out`, possibly resumed. As a task of the loop it trains all branches of the current stage."""

    def __init__(
        self, settings: TextureSettings, reader: Qwen2VLForConditionalGeneration, library: Library, sheets: list[Sheet],
        out: Path, journal: Journal | None = None, kinds: tuple[StepKind, ...] = KINDS, started: float | None = None,
    ) -> None:  # fmt: skip
        """`started`: when the call began, by `time.monotonic()`; None: at this moment."""
        self.started = time.monotonic() if started is None else started
        torch.manual_seed(settings.common.seed)
        torch.set_float32_matmul_precision("high")
        self.settings, self.common, self.reader = settings, settings.common, reader
        self.library, self.sheets, self.out, self.kinds = library, sheets, out, kinds
        self.journal, self.stop = journal or Journal(out), StopSignals()
        self.renderers = Renderers(library, kinds, self.common)
        self.encoder = encoder_identity(reader, reader.model.language_model)
        self.shared = ReaderForward(reader, self.common.compiled)  # encodes for all branches
        self.counts = self.state = State()
        self.branches, self.pictures, self.cells = list[Branch](), 0, 0
        self.losses, self.rate, self.first_images = list[TextureLosses](), 0.0, 0

    @property
    def label(self) -> str:  # type: ignore[override]
        return f"{STAGES[self.state.stage]}, "

    def run(self) -> State:
        """Everything that is still to do, until SIGTERM or ctrl-C."""
        with self.stop, self.journal, self.renderers:
            self.journal.open(0)
            if self._make_branches():
                self._resume()
                self._run_stages()
        if self.stop.requested:
            self._print("stopped early; the same command resumes")
        return self.state

    def _run_stages(self) -> None:
        state = self.state
        if not self._measure_start():
            return
        if state.stage < len(STAGES):
            self._supply()
            if self.common.compiled:
                self._compile_all()
        while state.stage < len(STAGES) and not self.stop.requested:
            if not state.trained and not self._train():
                return
            with self.renderers.paused():
                if not self._measure("lift" if state.stage == LIFT else "language"):
                    return
                state.next_stage()
                for branch in self.branches:
                    branch.start_stage(state.stage)
                self.save()
        results.write(self.out, self._about(), state.results)
        self._print(f"wrote {self.out / 'table.md'} after {self._elapsed:.0f} s")

    def _supply(self) -> BatchSupply:
        """The batches. A resumed call draws other documents."""
        return self.renderers.start(self.common.document_seed + self.state.images, _FINAL_MIX)

    # Components and measurements

    def _make_branches(self) -> bool:
        """Fit the components, from an earlier call's moments or from training pictures, and make the branches."""
        path = self.out / "moments.safetensors"
        if not path.is_file():
            wanted = self.settings.pictures
            found = gather_moments(
                ReaderForward(self.reader), lambda: self._supply().next_fresh(), wanted, self.settings.cells,
                lambda: self.stop.requested,
                lambda seen: self.journal.tick(min(1.0, seen / wanted), "components"),
            )  # fmt: skip
            if found is None:
                return False
            save_moments(path, *found, self.encoder)
            self._print(f"components of {found[0].count} tokens of {found[1]} pictures after {self._elapsed:.0f} s")
        moments, self.pictures = load_moments(path, self.encoder)
        self.cells = moments.count
        largest = fit_projection(moments, dims=max(self.settings.dims), encoder=self.encoder, pictures=self.pictures)
        spread = float(moments.covariance.trace())
        self.branches = [Branch(self.reader, largest.first(k), spread, self.settings) for k in self.settings.dims]
        for branch in self.branches:
            branch.start_stage(self.state.stage)
        return True

    def _measure_start(self) -> bool:
        """Measure the reader as it is, and with the components' reconstruction only."""
        if results.DENSE not in self.state.results:
            given = answer_sheets(
                ReaderForward(self.reader), self.sheets, self.common.device, lambda: self.stop.requested
            )
            if given is None:
                return False
            self._add_result(results.DENSE, results.report(given))
        return results.case("pca", self.branches[-1].dims) in self.state.results or self._measure("pca")

    def _measure(self, name: str) -> bool:
        """Measure all branches under the name of one of the table's cases; False if stopped."""
        started = time.monotonic()
        for branch in self.branches:
            self.journal.tick(min(1.0, self._elapsed / self._seconds), f"measuring {branch.dims} dimensions")
            given = answer_sheets(branch.eager_forward, self.sheets, self.common.device, lambda: self.stop.requested)
            if given is None:
                return False
            self._add_result(results.case(name, branch.dims), results.report(given))
        self.state.measuring = max(self.state.measuring, time.monotonic() - started)
        self.save()
        return True

    def _add_result(self, key: str, report: Report) -> None:
        self.state.results[key] = report
        results.write(self.out, self._about(), self.state.results)
        self.journal.write({"stage": self.state.stage, "step": self.state.step, "case": key, "measured": report})
        totals = "  ".join(f"{total} {report[total]['exact']:.3f}" for total in results.TOTALS if total in report)
        self._print(f"  {key}: {totals}")

    # Training

    def _train(self) -> bool:
        """Train the current stage to its end; False if it was stopped before."""
        state, stage = self.state, self.state.stage
        settings = replace(self.settings.for_stage(stage), seconds=self._stage_end(), reserve=0.0, finish=True)
        clock = settings.clock(state.seconds, self.started)
        self._print(f"{STAGES[stage]}: training for {clock.total:.0f} s, ready after {self._elapsed:.0f} s")
        self.first_images = state.images
        finished = run_steps(self, clock, self.stop, max_steps=settings.steps, tick=self.journal.tick)
        if finished and not state.step:
            raise ArrCocError(
                f"no time was left to train the {STAGES[stage]}: give more seconds than {self._seconds:.0f}"
            )
        state.trained = finished
        self.save()
        for branch in self.branches if finished else []:
            language = None if stage == LIFT else branch.half_language_weights()
            write_folder(self.out / f"texture{branch.dims}", branch.projection, branch.lift, language)
        return finished

    def step(self, progress: float) -> int:
        """One step of every branch on the same tokens."""
        batch = self._supply().next()
        self.rate = self.settings.for_stage(self.state.stage).rate(self.state.step, progress)
        self.losses = self._backward(self.state.stage, batch)
        for branch in self.branches:
            branch.update(self.rate)
        return len(batch.images)

    def _backward(self, stage: int, batch: Batch) -> list[TextureLosses]:
        shown, kind = show(batch), batch.images.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            visual = self.shared.encode(shown.patches, shown.cells, batch.grid[0])
        visual, cells = shown.kept_tokens(visual)
        return [branch.backward(stage, visual, cells, batch) for branch in self.branches]

    def _compile_all(self) -> None:
        """Run one batch of every kind in every remaining stage, so that nothing is compiled while the clock runs."""
        torch._dynamo.config.recompile_limit = 32  # every kind of step is compiled frozen and trained
        for stage in range(self.state.stage, len(STAGES)):
            for branch in self.branches:
                branch.set_trainable(stage)
            for kind in self.kinds:
                if not self.stop.requested:
                    self.journal.tick(min(1.0, self._elapsed / self._seconds), f"compiling for {kind.name!r}")
                    self._backward(stage, example_batch(self.library, kind).to(self.common.device))
        for branch in self.branches:
            branch.set_trainable(self.state.stage)
        if self.common.on_gpu:
            torch.cuda.synchronize()
        self._print(f"compiled after {self._elapsed:.0f} s")

    def log(self, progress: float, clock: Clock) -> None:
        state = self.state
        entry = {"stage": state.stage, "step": state.step, "seconds": round(state.seconds, 1)}
        for branch, losses in zip(self.branches, self.losses, strict=True):
            entry[f"answer_loss_{branch.dims}"] = round(losses.answer.item(), 4)
            entry[f"unexplained_{branch.dims}"] = round(losses.unexplained.item(), 4)
        pace = (state.images - self.first_images) / max(1e-6, clock.elapsed)
        entry |= {"learning_rate": round(self.rate, 7), "images_per_second": round(pace, 1)}
        self.journal.log_step(progress, entry, {})

    # Time and files

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def _seconds(self) -> float:
        assert self.common.seconds is not None
        return self.common.seconds

    def _stage_end(self) -> float:
        """When the current stage ends, in seconds after the start of this call."""
        state, now = self.state, self._elapsed
        to_measure = (len(STAGES) - state.stage) * state.measuring * _MEASURE_MARGIN
        left = self._seconds - now - to_measure - _WRITE_SECONDS
        if left < 1:
            need = now + to_measure + _WRITE_SECONDS
            raise ArrCocError(
                f"{self._seconds:.0f} s leave no time to train: {need:.0f} s go to preparation and to measuring"
            )
        if state.stage == LIFT:
            return now + max(1.0, self.settings.first_share * (left + state.seconds) - state.seconds)
        return now + left

    def _resume(self) -> None:
        path = self.out / "checkpoint.pt"
        if path.is_file():
            self.state.load(path, self._made_of, self.branches, self.common.device)
            done = self.state.stage == len(STAGES)
            where = "everything is done" if done else f"{STAGES[self.state.stage]}, step {self.state.step}"
            self._print(f"resuming from {path}: {where}")

    @property
    def _made_of(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "dims": list(settings.dims),
            "hidden": settings.hidden,
            "layers": settings.layers,
            "encoder": self.encoder,
        }

    def save(self) -> None:
        self.state.save(self.out / "checkpoint.pt", self._made_of, self.branches)

    def _about(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder,
            "pictures": self.pictures,
            "cells": self.cells,
            "variance": {str(branch.dims): round(branch.variance, 6) for branch in self.branches},
            "hidden": self.settings.hidden,
            "layers": self.settings.layers,
            "stages": self.state.history,
            "images": self.state.images,
        }

    def _print(self, line: str) -> None:
        print(line, flush=True)
