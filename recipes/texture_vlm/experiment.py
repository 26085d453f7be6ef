"""The whole run: components, two stages of training for all branches side by side, measurements, the table.

A call always goes through to the end within its seconds: measuring is timed when it is first done, and what is left besides
is divided between the stages. A call that was ended early is gone on from by the next one.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.embedding.projection import fit_projection
from arr_coc.errors import ArrCocError
from arr_coc.reader import vocabulary
from arr_coc.training.journal import Journal
from arr_coc.training.stopping import Stopping
from arr_coc.vlm.token_codec import encoder_identity, write_folder
from recipes.reader import source
from recipes.reader.batches import Batch
from recipes.reader.clock import Clock
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import show
from recipes.reader.recipe import StepKind
from recipes.reader.settings import rate
from recipes.reader.validation import Sheet, answers
from recipes.texture_vlm import components, results
from recipes.texture_vlm.branch import Branch, TextureLosses
from recipes.texture_vlm.renderers import Renderers
from recipes.texture_vlm.settings import KINDS, LIFT, STAGES, TextureSettings
from recipes.texture_vlm.state import State

_SPARE = 4.0  # seconds of a call for writing
_SLOWER = 1.2  # measuring may take longer than it did at first


def load_reader(folder: Path, device: str) -> Qwen2VLForConditionalGeneration:
    """A frozen reader in float32."""
    reader = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    words = reader.model.language_model.embed_tokens.num_embeddings
    if words != vocabulary.VOCABULARY_SIZE:
        raise ArrCocError(f"expected a reader, with {vocabulary.VOCABULARY_SIZE} words, got a model with {words}")
    reader.to(torch.device(device))  # type: ignore[arg-type]  # transformers wraps `to` without its self
    return reader.eval().requires_grad_(False)


class Experiment:
    """One run in the folder `out`, possibly the continuation of an earlier call."""

    def __init__(
        self,
        settings: TextureSettings,
        reader: Qwen2VLForConditionalGeneration,
        library: source.Library,
        sheets: list[Sheet],
        out: Path,
        journal: Journal | None = None,
        kinds: tuple[StepKind, ...] = KINDS,
        started: float | None = None,
    ) -> None:
        """`started`: when the call began, by `time.monotonic()`; now, where nothing is said."""
        self.started = time.monotonic() if started is None else started
        torch.manual_seed(settings.common.seed)
        torch.set_float32_matmul_precision("high")
        self.settings, self.common, self.reader = settings, settings.common, reader
        self.library, self.sheets, self.out, self.kinds = library, sheets, out, kinds
        self.journal, self.stop = journal or Journal(out), Stopping()
        self.encoder = encoder_identity(reader, reader.model.language_model)
        self.shared = ReaderForward(reader, self.common.compiled)  # encodes for all branches
        self.state, self.branches, self.pictures, self.cells = State(), list[Branch](), 0, 0

    def run(self) -> State:
        """All that is still to be done, until SIGTERM or ctrl-C."""
        with self.stop, self.journal, Renderers(self.library, self.kinds, self.common, self._seed) as supply:
            self.journal.open(0)
            if self._make_branches(supply):
                self._go_on_from_checkpoint()
                self._stages(supply)
        if self.stop.asked:
            self._say("stopped early; the same command goes on from here")
        return self.state

    def _stages(self, supply: Renderers) -> None:
        state = self.state
        if not self._measure_start():
            return
        if state.stage < len(STAGES):
            supply.start()
            if self.common.compiled:
                self._compile_all()
        while state.stage < len(STAGES) and not self.stop.asked:
            if not state.trained and not self._train(supply):
                return
            supply.pause()
            if not self._measure("lift" if state.stage == LIFT else "language"):
                return
            state.next_stage(STAGES[state.stage])
            for branch in self.branches:
                branch.begin(state.stage)
            self._save()
            supply.resume()
        results.write(self.out, self._about(), state.results)
        self._say(f"wrote {self.out / 'table.md'} after {self._elapsed:.0f} s")

    # The parts

    def _make_branches(self, supply: Renderers) -> bool:
        """Components of the reader's tokens, from an earlier call or from training pictures, and the branches on them."""
        path = self.out / "moments.safetensors"
        if not path.is_file():
            wanted = self.settings.pictures
            found = components.gather(
                ReaderForward(self.reader),
                supply.fresh,
                wanted,
                self.settings.cells,
                lambda: self.stop.asked,
                lambda seen: self.journal.tick(min(seen, wanted), wanted, "components"),
            )
            if found is None:
                return False
            components.keep(path, *found, self.encoder)
            self._say(f"components of {found[0].count} tokens of {found[1]} pictures after {self._elapsed:.0f} s")
        moments, self.pictures = components.kept(path, self.encoder)
        self.cells = moments.count
        largest = fit_projection(moments, dims=max(self.settings.dims), encoder=self.encoder, pictures=self.pictures)
        spread = float(moments.covariance.trace())
        self.branches = [Branch(self.reader, largest.first(k), spread, self.settings) for k in self.settings.dims]
        for branch in self.branches:
            branch.begin(self.state.stage)
        return True

    def _measure_start(self) -> bool:
        """The reader as it is, and with nothing but the components' reconstruction."""
        if results.DENSE not in self.state.results:
            said = answers(ReaderForward(self.reader), self.sheets, self.common.device, lambda: self.stop.asked)
            if said is None:
                return False
            self._found(results.DENSE, results.report(said))
        return results.case("pca", self.branches[-1].dims) in self.state.results or self._measure("pca")

    def _measure(self, name: str) -> bool:
        """All branches as they are now, under the name of one of the table's cases; False when stopped on the way."""
        started = time.monotonic()
        for branch in self.branches:
            self.journal.tick(self._elapsed, self._seconds, f"measuring {branch.dims} dimensions")
            said = answers(branch.measured, self.sheets, self.common.device, lambda: self.stop.asked)
            if said is None:
                return False
            self._found(results.case(name, branch.dims), results.report(said))
        self.state.measuring = max(self.state.measuring, time.monotonic() - started)
        self._save()
        return True

    def _found(self, key: str, report: results.Report) -> None:
        self.state.results[key] = report
        results.write(self.out, self._about(), self.state.results)
        self.journal.note({"stage": self.state.stage, "step": self.state.step, "case": key, "measured": report})
        totals = "  ".join(f"{total} {report[total]['exact']:.3f}" for total in results.TOTALS if total in report)
        self._say(f"  {key}: {totals}")

    def _train(self, supply: Renderers) -> bool:
        """The present stage to its end; False when it was stopped before."""
        state, stage = self.state, self.state.stage
        settings = self.settings.of_stage(stage)
        clock = Clock(replace(settings, seconds=self._end(), reserve=0.0, finish=True), state.seconds, self.started)
        self._say(f"{STAGES[stage]}: training for {clock.total:.0f} s, ready after {self._elapsed:.0f} s")
        before = state.images
        while clock.left > 0 and (settings.steps is None or state.step < settings.steps):
            if self.stop.asked:
                self._save()
                return False
            if clock.due("save"):
                self._save()
            batch, progress = supply.next(), clock.progress
            learning = rate(settings, state.step, progress)
            found = self.step(batch, learning)
            state.step, state.images, state.seconds = state.step + 1, state.images + len(batch.images), clock.seconds
            self.journal.tick(clock.elapsed, clock.total, f"{STAGES[stage]}, step {state.step}")
            if clock.due("tell"):
                pace = (state.images - before) / max(1e-6, clock.elapsed)
                self.journal.told(progress, self._entry(found, learning, pace))
        if not state.step:
            raise ArrCocError(
                f"no time was left to train the {STAGES[stage]}: give more seconds than {self._seconds:.0f}"
            )
        state.trained = True
        self._save()
        for branch in self.branches:
            language = None if stage == LIFT else branch.adapted()
            write_folder(self.out / f"texture{branch.dims}", branch.projection, branch.lift, language)
        return True

    def step(self, batch: Batch, learning: float) -> list[TextureLosses]:
        """One step of every branch on the same tokens."""
        found = self._backward(self.state.stage, batch)
        for branch in self.branches:
            branch.update(learning)
        return found

    def _backward(self, stage: int, batch: Batch) -> list[TextureLosses]:
        shown, kind = show(batch), batch.images.device.type
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            visual = self.shared.encode(shown.patches, shown.cells, batch.grid[0])
        visual, cells = shown.handed_on(visual)
        return [branch.backward(stage, visual, cells, batch) for branch in self.branches]

    def _compile_all(self) -> None:
        """One batch of every kind in every stage that is to come, so that nothing is compiled while the clock runs."""
        torch._dynamo.config.recompile_limit = 32  # every kind of step is compiled frozen and trained
        for stage in range(self.state.stage, len(STAGES)):
            for branch in self.branches:
                branch.free(stage)
            for kind in self.kinds:
                if not self.stop.asked:
                    self.journal.tick(self._elapsed, self._seconds, f"compiling for {kind.name!r}")
                    self._backward(stage, source.example(self.library, kind).to(self.common.device))
        for branch in self.branches:
            branch.free(self.state.stage)
        if self.common.on_gpu:
            torch.cuda.synchronize()
        self._say(f"compiled after {self._elapsed:.0f} s")

    # Time, files, words

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def _seconds(self) -> float:
        assert self.common.seconds is not None
        return self.common.seconds

    def _end(self) -> float:
        """When the present stage ends, in seconds after the start of this call."""
        state, now = self.state, self._elapsed
        to_measure = (len(STAGES) - state.stage) * state.measuring * _SLOWER
        left = self._seconds - now - to_measure - _SPARE
        if left < 1:
            need = now + to_measure + _SPARE
            raise ArrCocError(
                f"{self._seconds:.0f} s leave no time to train: {need:.0f} s go to what comes before and to measuring"
            )
        if state.stage == LIFT:
            return now + max(1.0, self.settings.first_share * (left + state.seconds) - state.seconds)
        return now + left

    def _seed(self) -> int:
        """Of the documents: a call that goes on draws other ones."""
        return self.common.document_seed + self.state.images

    def _go_on_from_checkpoint(self) -> None:
        path = self.out / "checkpoint.pt"
        if path.is_file():
            self.state.load(path, self._made_of, self.branches, self.common.device)
            done = self.state.stage == len(STAGES)
            where = "everything is done" if done else f"{STAGES[self.state.stage]}, step {self.state.step}"
            self._say(f"going on from {path}: {where}")

    @property
    def _made_of(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "dims": list(settings.dims),
            "hidden": settings.hidden,
            "layers": settings.layers,
            "encoder": self.encoder,
        }

    def _save(self) -> None:
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

    def _entry(self, found: list[TextureLosses], learning: float, pace: float) -> dict[str, float]:
        entry = {"stage": self.state.stage, "step": self.state.step, "seconds": round(self.state.seconds, 1)}
        for branch, losses in zip(self.branches, found, strict=True):
            entry[f"answer_loss_{branch.dims}"] = round(losses.answer.item(), 4)
            entry[f"unexplained_{branch.dims}"] = round(losses.unexplained.item(), 4)
        return entry | {"learning_rate": round(learning, 7), "images_per_second": round(pace, 1)}

    def _say(self, line: str) -> None:
        print(line, flush=True)
