"""The worker thread that owns the model: a bounded queue, batches of requests of one shape, cancellation, a graceful stop.

Requests of one shape that wait at the same moment are answered together. No request waits for others to arrive.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from arr_coc.draw import samples
from arr_coc.hosting import trim_memory
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.metrics import Metrics
from arr_coc.serve.rows import BatchProgress, Event, Result, Row
from arr_coc.serve.settings import Selection
from arr_coc.types.answer import Answer
from arr_coc.vlm.confidence import answer_facts, conclude
from arr_coc.vlm.looking_again import is_enough, surest, wider_budgets
from arr_coc.vlm.model import VLM

MAX_RETRY_AFTER = 60  # seconds


class BusyError(Exception):
    """The queue is full. `seconds`: when to try again."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


class StoppingError(Exception):
    """The server ends, and this request is not answered."""

    def __init__(self) -> None:
        super().__init__("the server is stopping: send the request again later")


@dataclass(frozen=True)
class Sampling:
    """Options of the model's `generate`; None: the model's own."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        if self.temperature == 0:
            return {"do_sample": False}
        given = {"temperature": self.temperature, "top_p": self.top_p}
        chosen = {name: value for name, value in given.items() if value is not None}
        return {"do_sample": True, **chosen} if chosen else {}


@dataclass(frozen=True, eq=False)
class Work:
    """What one request asks of the model."""

    messages: Sequence[Mapping[str, Any]]  # with decoded images inside
    images: int
    megapixels: float  # of the images together
    selection: Selection
    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...] = ()
    stream: bool = False

    @property
    def shape(self) -> object:
        """Requests of one shape can be answered together: the same options, and images of about the same size.

        A batch is padded to its longest prompt, so images of another power of two of pixels would cost more than they save.
        """
        if self.sampling.seed is not None and self.sampling.options.get("do_sample", True):
            return object()  # the draws of a batch depend on all of its rows
        size = math.frexp(self.megapixels)[1] if self.images else 0
        return self.selection, self.sampling, self.images, size


@dataclass(eq=False)
class Job:
    """A request in the engine."""

    work: Work
    row: Row
    shape: object
    arrived: float = field(default_factory=time.monotonic)


class Engine:
    """Answers requests with one model, in one thread. `start` it, `submit` to it, `close` it."""

    def __init__(self, vlm: VLM, limits: EndpointLimits, metrics: Metrics | None = None) -> None:
        self.vlm, self.limits = vlm, limits
        self.metrics = metrics or Metrics()
        self.stopping = False
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._held = 0.0  # megapixels of the images of accepted requests
        self._seconds = 1.0  # a batch takes, on average
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="arr-coc-engine", daemon=True)

    def warm_up(self) -> None:
        """Ask once, so that the first request is not slower than the others."""
        self.vlm.ask(samples.scene().resize((240, 160)), "?", max_new_tokens=1)

    def start(self) -> None:
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self.stopping

    def check_room(self) -> None:
        """Raise BusyError or StoppingError where `submit` would, before a request's body is read."""
        with self._changed:
            if self.stopping:
                raise StoppingError
            if len(self._waiting) >= self.limits.queue:
                raise BusyError(
                    f"{len(self._waiting)} requests wait already: send the request again later", self._retry()
                )

    @contextmanager
    def hold(self, megapixels: float) -> Iterator[None]:
        """Room for the images of a request while it is in the server."""
        with self._changed:
            most = self.limits.kept_megapixels
            if self._held and self._held + megapixels > most:
                raise BusyError(
                    f"the images of waiting requests take {self._held:.0f} of {most:g} megapixels: send it again later",
                    self._retry(),
                )
            self._held += megapixels
        try:
            yield
        finally:
            with self._changed:
                self._held -= megapixels

    def submit(self, work: Work, emit: Callable[[Event], None]) -> Job:
        """Put a request into the queue. `emit` gets its events, in the engine's thread; Pieces only if it streams."""
        row = Row(work.max_tokens, work.stop, work.stream, emit)
        job = Job(work, row, work.shape)
        with self._changed:
            self.check_room()
            self._waiting.append(job)
            self.metrics.waiting.set(len(self._waiting))
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """The client is gone: a waiting request is dropped, a running one stops at its next token."""
        if not job.row.finish and not job.row.left.is_set():
            self.metrics.cancelled.inc()
        job.row.left.set()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.waiting.set(len(self._waiting))

    def drain(self) -> None:
        """Accept nothing more; what was accepted is answered."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Answer nothing more: waiting requests get a StoppingError, and running ones, too, at their next token."""
        self.drain()
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
            self.metrics.waiting.set(0)
            for job in self._running:
                job.row.left.set()
        for job in waiting:
            job.row.emit(StoppingError())

    def close(self, timeout: float | None = None) -> None:
        """Drain, and wait until the thread has ended."""
        self.drain()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _retry(self) -> int:
        batches = math.ceil((len(self._waiting) + len(self._running)) / self.limits.batch)
        return max(1, min(MAX_RETRY_AFTER, math.ceil(self._seconds * batches)))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self.stopping)
                if not self._waiting:
                    return
                batch = self._running = self._take()
                self._show()
            start = time.monotonic()
            self._answer(batch)
            self._seconds = 0.8 * self._seconds + 0.2 * (time.monotonic() - start)
            with self._changed:
                self._running = []
                self._show()
            del batch  # its images
            trim_memory()

    def _take(self) -> list[Job]:
        """The longest waiting request, and others of its shape."""
        first = self._waiting[0]
        batch = [job for job in self._waiting if job.shape == first.shape][: self.limits.batch]
        for job in batch:
            self._waiting.remove(job)
        return batch

    def _show(self) -> None:
        self.metrics.waiting.set(len(self._waiting))
        self.metrics.running.set(len(self._running))

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Answer requests of one shape. If a batch fails, each is tried alone, so that one cannot spoil the others."""
        start = time.monotonic()
        try:
            answers = self._generate(jobs)
        except Exception as error:
            fresh = [job for job in jobs if not job.row.ids and not job.row.left.is_set()]
            if len(jobs) > 1:
                for job in fresh:
                    self._answer([job])
            for job in jobs if len(jobs) == 1 else [job for job in jobs if job not in fresh]:
                job.row.finish = "failed"
                job.row.emit(error)
            return
        self.metrics.batch.observe(len(jobs))
        for job, answer in zip(jobs, answers, strict=True):
            if job.row.finish == "left":
                job.row.emit(StoppingError())  # a client that is gone does not see it
                continue
            try:
                self._finish(job, answer, len(jobs), start)
            except Exception as error:  # the thread must go on
                job.row.emit(error)

    def _generate(self, jobs: Sequence[Job]) -> list[Answer]:
        selection = jobs[0].work.selection
        chosen = {name: value for name, value in asdict(selection).items() if name != "sure"}
        answers = self._read(jobs, chosen)
        if selection.sure is None:
            return answers
        return [self._look_again(job, one, selection.sure, chosen) for job, one in zip(jobs, answers, strict=True)]

    def _read(self, jobs: Sequence[Job], chosen: Mapping[str, Any]) -> list[Answer]:
        """One reading of the requests; the confidence is that of the tokens which a row keeps."""
        work, vlm = jobs[0].work, self.vlm
        config = vlm.model.generation_config
        ends = config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        rows = [job.row for job in jobs]
        seed = work.sampling.seed
        devices = [vlm.device] if vlm.device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            answers = vlm.generate(
                messages=[job.work.messages for job in jobs],
                max_new_tokens=max(job.work.max_tokens for job in jobs),
                stopping_criteria=[BatchProgress(rows, ends, vlm.prompter.decode)],
                **chosen,
                **work.sampling.options,
            )
        return [self._judged_again(row, one, str(chosen["refuse"])) for row, one in zip(rows, answers, strict=True)]

    def _judged_again(self, row: Row, answer: Answer, refuse: str) -> Answer:
        """A row that a stop string or its own limit ended is padded in the batch: its padding says nothing."""
        tokens = answer.token_probabilities
        if tokens is None or len(row.ids) == len(answer.ids):
            return answer
        tokens = tokens[: len(row.ids)]
        if not len(tokens):
            return replace(answer, confidence=None, confidence_source="")
        facts = {**answer.facts, **answer_facts(tokens, answer.allocations)}
        found = conclude(facts, self.vlm.calibration, refuse, float(tokens.double().mean()))
        refusal = None if self.vlm.calibration is None else self.vlm.calibration.refusal
        return replace(
            answer,
            text=refusal.text if found.refused and refusal is not None else answer.raw_text,
            confidence=found.confidence,
            confidence_source=found.source,
            refused=found.refused,
            facts=found.facts,
        )

    def _look_again(self, job: Job, answer: Answer, sure: float, chosen: Mapping[str, Any]) -> Answer:
        """Read more cells of one request as long as its answer is not sure. The row keeps the tokens of the surest reading."""
        row, attempts = job.row, [answer]
        ends = [(list(row.ids), row.finish)]
        for budget in wider_budgets(answer, bool(chosen["shared"])):
            if is_enough(attempts, sure) or row.left.is_set():
                break
            wider = {**chosen, "budget": budget, "shared": bool(chosen["shared"]) and budget != "all"}
            row.restart()
            attempts += self._read([job], wider | ({"glance": "all"} if budget == "all" else {}))
            ends.append((list(row.ids), row.finish))
        best = surest(attempts)
        row.ids[:], row.finish = next(end for end, one in zip(ends, attempts, strict=True) if one.ids is best.ids)
        return best

    def _finish(self, job: Job, answer: Answer, batch: int, start: float) -> None:
        row, now, metrics = job.row, time.monotonic(), self.metrics
        written = row.whole(self.vlm.prompter.decode)
        result = Result(
            text=answer.text if answer.refused else written,
            finish=row.finish or "length",  # the model's own limit
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=len(row.ids),
            visual=answer.tokens,
            timings={stage: round(ms, 2) for stage, ms in answer.timings.items()},
            strategy="; ".join(dict.fromkeys(a.strategy for a in answer.allocations if a.strategy)),
            fallback=answer.fallback,
            notes=tuple(note for a in answer.allocations for note in a.notes),
            batch=batch,
            confidence=None if answer.confidence is None else round(answer.confidence, 4),
            confidence_source=answer.confidence_source,
            refused=answer.refused,
            raw_text=written,
            tried=tuple(one.to_dict() for one in answer.tried),
        )
        metrics.wait.observe(start - job.arrived)
        metrics.first.observe(row.first_token - job.arrived)
        metrics.total.observe(now - job.arrived)
        metrics.tokens.labels("prompt").inc(result.prompt_tokens)
        metrics.tokens.labels("answer").inc(result.completion_tokens)
        for kind, count in result.visual.items():
            metrics.visual.labels(kind).inc(count)
        row.emit(result)
