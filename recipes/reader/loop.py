"""The training loop: a schedule by the clock, kept and measured on the way, in one process or in several."""

import time
from dataclasses import dataclass
from pathlib import Path

from arr_coc.errors import ArrCocError
from arr_coc.reader import folder
from arr_coc.training.journal import Journal
from arr_coc.training.stopping import Stopping
from recipes.reader import source
from recipes.reader.checkpoint import Run
from recipes.reader.clock import Clock
from recipes.reader.losses import Losses
from recipes.reader.recipe import STEP_KINDS, StepKind
from recipes.reader.supply import Supply
from recipes.reader.trainer import Trainer
from recipes.reader.validation import Sheet, measure


@dataclass(frozen=True)
class Order:
    """What rank 0 decides before a step, for all ranks. Ranks that went by their own clocks would part ways."""

    go_on: bool
    seconds: float  # trained so far
    progress: float  # of the schedule: the learning rate and the mix follow it
    measure: bool
    save: bool
    kind: int  # of rank 0's batch


def train(
    trainer: Trainer,
    library: source.Library,
    sheets: list[Sheet],
    out: Path,
    kinds: tuple[StepKind, ...] = STEP_KINDS,
    journal: Journal | None = None,
) -> Run:
    """Train until the schedule ends, this call's time is used up or somebody asks to stop (SIGTERM, ctrl-C).

    Goes on from `out/checkpoint.pt` where there is one. Writes the checkpoint, the log and the model folder `reader` to
    `out`. Of several processes only rank 0 writes, measures and speaks; the others need no sheets.
    """
    with Stopping() as stop, journal or Journal(out) as told:
        return _Loop(trainer, library, sheets, out, kinds, told, stop).run()


class _Loop:
    def __init__(
        self,
        trainer: Trainer,
        library: source.Library,
        sheets: list[Sheet],
        out: Path,
        kinds: tuple[StepKind, ...],
        journal: Journal,
        stop: Stopping,
    ) -> None:
        self.started = time.monotonic()
        self.trainer, self.library, self.sheets, self.out = trainer, library, sheets, out
        self.kinds, self.journal, self.stop = kinds, journal, stop
        self.state, self.team, self.settings = trainer.run, trainer.team, trainer.settings
        self.uncounted = 0  # images of this rank that the others have not heard of

    def run(self) -> Run:
        state, settings = self.state, self.settings
        self._go_on_from_checkpoint()
        if state.seconds >= settings.schedule_seconds and not settings.finish:
            self._say(f"the schedule of {settings.schedule_seconds:.0f} s has ended already; a longer one would go on")
            return state
        if self.team.leads:
            self.journal.open(state.step)
        batches, supply = self._start_rendering()
        if settings.compiled:
            self._compile_all()
        self.team.wait()
        clock = Clock(settings, state.seconds, self.started)
        self._say(f"ready after {clock.begun - self.started:.0f} s; training for {clock.total:.0f} s")
        self._steps(clock, batches, supply)
        if self.team.leads:
            self._keep()
        self._say(f"wrote {self.out / 'reader'} after {state.seconds / 60:.1f} minutes, {state.images} images")
        if self.stop.asked:
            self._say("stopped early; the same command goes on from here")
        batches.end()
        supply.stop()
        if self.team.leads and not self.stop.asked:
            self._measure()
        self.team.wait()
        return state

    def _steps(self, clock: Clock, batches: source.TrainingBatches, supply: Supply) -> None:
        state, leads = self.state, self.team.leads
        first_step, first_images = state.step, state.images
        while True:
            batch = supply.next() if leads else None
            order = self._order(clock, first_step, self.kinds.index(batch.kind) if batch else 0)
            state.seconds = order.seconds
            if not order.go_on:
                return
            if order.save:
                self._save()
            if order.measure:
                batches.pause()
                with clock.pause():
                    if leads:
                        self.journal.tick(clock.elapsed, clock.total, "measuring")
                        self._measure()
                    self.team.wait()
                batches.resume()
            batches.progress.value = self.settings.mixed(order.progress)
            batch = batch or supply.next(like=self.kinds[order.kind])
            rate = self.trainer.rate(order.progress)
            found = self.trainer.step(batch, order.progress)
            self.uncounted += len(batch.images)
            if leads:
                self.journal.tick(clock.elapsed, clock.total, f"step {state.step}")
                if clock.due("tell"):
                    pace = (state.images - first_images) / max(1e-6, clock.elapsed)
                    fresh = supply.fresh_count / max(1, state.step - first_step)
                    self.journal.told(order.progress, self._entry(found, rate, pace, fresh))

    def _order(self, clock: Clock, first_step: int, kind: int) -> Order:
        """Rank 0's decision. Anybody may ask to stop, and everybody's images are counted."""
        settings, state = self.settings, self.state
        more = clock.left > 0 and (settings.steps is None or state.step < settings.steps)
        begun = self.team.leads and more and state.step > first_step
        due = [begun and clock.due(what) for what in ("measure", "save")]
        decision, (asked, images) = self.team.agree(
            (more, clock.seconds, clock.progress, *due, kind), (self.stop.asked, self.uncounted)
        )
        self.uncounted = 0
        state.images += int(images)
        self.stop.asked = self.stop.asked or asked > 0
        go_on, seconds, progress, to_measure, to_save, of_kind = decision
        return Order(bool(go_on) and not asked, seconds, progress, bool(to_measure), bool(to_save), int(of_kind))

    def _go_on_from_checkpoint(self) -> None:
        """All ranks load what is there, and nobody trains unless they come to stand at the same step."""
        checkpoint, state = self.out / "checkpoint.pt", self.state
        if checkpoint.is_file():
            state.load(checkpoint, self.settings.device)
            self._say(f"going on from step {state.step}, {state.seconds / 60:.1f} minutes")
        (first,), _ = self.team.agree((state.step,), ())
        _, (elsewhere,) = self.team.agree((), (state.step != first,))
        if elsewhere:
            raise ArrCocError(f"rank 0 goes on from step {first:.0f}, others do not: they must all see {checkpoint}")
        self.team.share(self.trainer.weights)

    def _start_rendering(self) -> tuple[source.TrainingBatches, Supply]:
        settings, state = self.settings, self.state
        seed = settings.document_seed + state.step
        batches = source.TrainingBatches(self.library, self.kinds, seed, self.team.rank)
        batches.progress.value = settings.mixed(min(1.0, state.seconds / settings.schedule_seconds))
        loader = source.loader(batches, settings.workers, pin=settings.on_gpu)
        return batches, Supply(loader, settings.device, settings.uses, background=settings.workers > 0)

    def _compile_all(self) -> None:
        """Make one batch of every kind here and run it, so that nothing is compiled while the clock runs."""
        for kind in self.kinds:
            if self.stop.asked:
                return
            self.journal.tick(0.0, 1.0, f"compiling for {kind.name!r}")
            started = time.monotonic()
            took = self.trainer.warm_up(source.example(self.library, kind).to(self.settings.device))
            compiled = f"compiled in {time.monotonic() - started:.0f} s"
            self._say(f"{kind.name!r}: {compiled}, then {took * 1000:.0f} ms for {kind.batch} images")

    def _entry(self, found: Losses, rate: float, pace: float, fresh: float) -> dict[str, float]:
        """One line of the log. The losses are those of rank 0's batch."""
        return {
            "minutes": round(self.state.seconds / 60, 3),
            "step": self.state.step,
            "answer_loss": round(found.answer.item(), 4),
            "cell_loss": round(found.cell.item(), 4),
            "colour_loss": round(found.colour.item(), 4),
            "cell_accuracy": round(found.accuracy.item(), 4),
            "learning_rate": round(rate, 7),
            "images_per_second": round(pace, 1),
            "fresh_share": round(fresh, 3),
        }

    def _measure(self) -> None:
        started = time.monotonic()
        found = measure(self.trainer.measured, self.sheets, self.settings.device, lambda: self.stop.asked)
        if found is None:  # whoever asked to stop does not wait for long
            return
        self.journal.measured(self.state.seconds / 60, self.state.step, *found)
        self._say(f"  measured in {time.monotonic() - started:.1f} s")

    def _save(self) -> None:
        """Whatever happens later, little is lost. Ranks whose arithmetic differs in the last bit are set right here."""
        self.team.share(self.trainer.weights)
        if self.team.leads:
            self._keep()

    def _keep(self) -> None:
        self.state.save(self.out / "checkpoint.pt")
        folder.write(self.state.average, self.out / "reader")

    def _say(self, line: str) -> None:
        if self.team.leads:
            print(line, flush=True)
