"""Measure one picture with all trials: it is encoded once for every selector that can share the encoding.

Questions about one picture are asked in batches, which is faster and gives the same answers. On some of the pictures one
question is asked alone; times and memory are those of that question:
- `encode`: encoding the whole picture, measured once and shared. The extra cost of recording attention is charged to the
  selectors that read it. A selector that encodes something else (a smaller picture, some of the cells) pays for that.
- `select`: selecting from a cold start, without a texture. Selecting inside the language model counts as `select`,
  not as `prefill`.
"""

from __future__ import annotations

import base64
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.errors import AllocationError, FallbackWarning, SelectorError
from arr_coc.evaluation import metrics
from arr_coc.evaluation.data import PictureQuestions
from arr_coc.evaluation.entries import DENSE, Entry, TimedSelector
from arr_coc.selectors import SelectorLike, selector
from arr_coc.selectors.base import ImageSource
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Budget, limit
from arr_coc.types.grid import Cells, Grid, Mosaic
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM

BATCH = 8  # questions per batch
STAGES = ("preprocess", "encode", "select", "prefill", "decode")
LEVELS = 255  # of quantised scores

# What recording attention adds to an encoding, by the recorded depths: time as a share of it, and memory in MB.
AttentionCost = dict[tuple[float, ...], tuple[float, float]]
FREE = (0.0, 0.0)

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Trial:
    """One selector at one budget with one seed."""

    entry: Entry
    budget: Budget
    seed: int


@dataclass(frozen=True)
class EvalConfig:
    """What all trials of a run share."""

    metric: str = "exact"
    glance: Budget = "all"
    glance_selector: SelectorLike | None = None  # None: the selector itself, evenly spaced cells where it cannot
    tokens: int = 160  # longest answer
    answers: bool = True  # False: judge the kept cells, generate nothing
    seed: int = 0

    @property
    def glancing(self) -> bool:
        return str(self.glance).strip().lower() not in ("all", "100%")


class PeakMemory:
    """Peak memory since the object was made: of the GPU, or of this process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._available = device, True
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR_REFS.write_text("5")  # resets the peak
        except OSError:  # not Linux, or not permitted
            self._available = False

    def peak(self) -> float | None:
        """MB, the model included; None where the system does not report it."""
        if not self._available:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        found = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")]
        return int(found[0].split()[1]) / 1024 if found else None


def measure_attention_cost(
    vlm: VLM, picture: PictureQuestions, trials: Sequence[Trial], config: EvalConfig
) -> AttentionCost:
    """Measure on one picture, after a warm-up, in two interleaved rounds; the better one counts."""
    everything = _attention_depths(trials, config)
    sets = {(), everything} | {_attention_depths([trial], config) for trial in trials}
    look = look_at(vlm, picture)
    vlm.generate(look=look, text=picture.samples[0].question, budget="all", glance="all", max_new_tokens=2)
    if len(sets) == 1:
        return {(): FREE}
    ms: dict[tuple[float, ...], float] = dict.fromkeys(sets, float("inf"))
    mb = dict(ms)
    for _ in range(2):
        for depths in sets:
            memory = PeakMemory(vlm.device)
            prepared = vlm.prepare(
                look=replace(look, encoded={}, attention_at=depths), text="?", budget="all", glance="all"
            )
            ms[depths] = min(ms[depths], prepared.timings["encode"])
            mb[depths] = min(mb[depths], memory.peak() or 0.0)
    return {d: (max(0.0, ms[d] / ms[()] - 1), max(0.0, mb[d] - mb[()])) for d in sets}


def _attention_depths(trials: Sequence[Trial], config: EvalConfig) -> tuple[float, ...]:
    """The encoder depths whose attention the selectors on the shared encoding read."""
    if config.glancing:
        return ()
    return tuple(sorted({d for t in trials if not t.entry.selector.early for d in t.entry.selector.attention_at}))


def look_at(vlm: VLM, picture: PictureQuestions, depths: Sequence[float] = ()) -> Look:
    """The picture, or the video's frames, after the processor."""
    if picture.kind == "video":
        return vlm.look(videos=[list(picture.frames)], fps=picture.fps, attention_at=depths)
    return vlm.look(
        picture.image, attention_at=depths, straighten="off"
    )  # evidence is in cells of the picture as it is


class PictureRun:
    """All trials on one picture, which is encoded once.

    `timed` is the number of the question that is asked alone, with its time and memory; None: none is.
    """

    def __init__(
        self,
        vlm: VLM,
        picture: PictureQuestions,
        trials: Sequence[Trial],
        config: EvalConfig,
        cost: AttentionCost,
        timed: int | None,
    ) -> None:
        self.vlm, self.picture, self.trials = vlm, picture, trials
        self.config, self.cost, self.timed = config, cost, timed
        self.questions = [sample.question for sample in picture.samples]
        depths = _attention_depths(trials, config)
        share, attention_mb = cost.get(depths, FREE)
        memory = PeakMemory(vlm.device)
        start = time.perf_counter()
        self.look = look_at(vlm, picture, depths)
        self.preprocess_ms = (time.perf_counter() - start) * 1e3
        prepared = vlm.prepare(look=self.look, text=self.questions[0], budget="all", glance="all")
        self.grid = prepared.allocations[0].grid
        self.encode_ms = prepared.timings["encode"] / (1 + share)  # without attention
        peak = memory.peak()
        self.encode_mb = None if peak is None else peak - attention_mb

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """The rows of each trial in turn, one row per question."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)  # fallbacks are counted and reported with the row
            for trial in self.trials:
                yield self._measure(trial)

    def _measure(self, trial: Trial) -> list[dict[str, Any]]:
        entry, config, timed, device = trial.entry, self.config, self.timed, self.vlm.device
        glancing = config.glancing and entry.name != DENSE
        encodes = entry.selector.early or glancing
        own = TimedSelector(entry.make(self.picture), device)
        request: dict[str, Any] = {"selector": own, "budget": trial.budget, "seed": trial.seed}
        request["look"] = self._look_without_textures(encodes)
        select_ms = [own.select_ms]
        if glancing:
            request["glance"] = config.glance
            if config.glance_selector is not None or not entry.glances:
                request["glance_selector"] = TimedSelector(selector(config.glance_selector or "uniform"), device)
                select_ms.append(request["glance_selector"].select_ms)
        answers: dict[int, tuple[str | None, Allocation]] = {}
        ms: dict[str, float] | None = None
        peak: float | None = None
        if timed is not None:
            memory = PeakMemory(device)
            (answers[timed],), spent = self._ask([timed], request)
            peak = memory.peak()
            share, attention_mb = self.cost.get(_attention_depths([trial], config), FREE)
            if not encodes and peak is not None and self.encode_mb is not None:
                peak = max(peak, self.encode_mb + attention_mb)
            in_layers = sum(own.layer_ms)
            ms = {
                "preprocess": self.preprocess_ms + spent.get("preprocess", 0.0),
                "encode": spent.get("encode", 0.0) if encodes else self.encode_ms * (1 + share),
                "select": in_layers + sum(map(sum, select_ms)),
                "prefill": spent.get("assemble", 0.0) + spent.get("prefill", 0.0) - in_layers,
                "decode": spent.get("decode", 0.0),
            }
        rest = [number for number in range(len(self.questions)) if number != timed]
        for start in range(0, len(rest), BATCH):
            batch = rest[start : start + BATCH]
            answers |= zip(batch, self._ask(batch, request)[0], strict=True)
        moved = metrics.sensitivity([answers[number][1].keep for number in range(len(answers))])
        shared = {"ms": ms, "peak_mb": peak, "moved": moved}
        return [self._make_row(trial, number, *answers[number]) | shared for number in range(len(answers))]

    def _look_without_textures(self, encodes: bool) -> Look:
        """Every trial builds its own texture, and its own encoding if it cannot share one.

        Embeddings are kept between trials, except where they are timed.
        """
        embeddings = self.vlm.embeddings
        if embeddings is not None and self.timed is not None:
            embeddings = embeddings.with_empty_cache()
        images, videos = (
            tuple(tuple(ImageSource(source.picture, source.size, embeddings) for source in row) for row in rows)
            for rows in (self.look.images, self.look.videos)
        )
        look = replace(self.look, images=images, videos=videos)
        return replace(look, encoded={}, attention_at=()) if encodes else look

    def _ask(
        self, numbers: Sequence[int], request: dict[str, Any]
    ) -> tuple[list[tuple[str | None, Allocation]], dict[str, float]]:
        """Text (None if nothing is generated) and allocation for each question, and the timings."""
        name, config = request["selector"].name, self.config
        questions = [self.questions[number] for number in numbers]
        answers: list[tuple[str | None, Allocation]]
        try:
            if config.answers or request["selector"].depths:
                tokens = config.tokens if config.answers else 1
                found = self.vlm.generate(
                    text=questions, max_new_tokens=tokens, do_sample=False, refuse="off", **request
                )  # selectors are compared by what the model writes
                answers = [(one.text if config.answers else None, one.allocation) for one in found]
                timings = found[0].timings
            else:
                prepared = self.vlm.prepare(text=questions, **request)
                answers = [(None, allocation) for allocation in prepared.allocations]
                timings = prepared.timings
        except SelectorError as error:
            raise error if repr(name) in str(error) else SelectorError(f"selector {name!r}: {error}") from None
        for _, allocation in answers:
            # Invalid cells are a bug of the selector, not of this picture: stop the run.
            kind, _, why = allocation.fallback.partition(": ")
            if kind == AllocationError.__name__:
                raise SelectorError(f"selector {name!r} answered with wrong cells: {why}")
        return answers, dict(timings)

    def _make_row(self, trial: Trial, number: int, text: str | None, allocation: Allocation) -> dict[str, Any]:
        sample, grid = self.picture.samples[number], self.grid
        row: dict[str, Any] = {
            "selector": trial.entry.name,
            "budget": str(trial.budget),
            "seed": trial.seed,
            "question": number,
            "kind": sample.kind,
            "said": text,
            "kept": allocation.k,
            "read": allocation.k if allocation.read is None else allocation.read,
            "encoded": len(allocation.encoded),
            "all": grid.n,
            "grid": grid_to_lists(grid),
            "over": allocation.k > (limit(trial.budget, grid.n).k or grid.n),
            "fallback": allocation.fallback,
            "notes": list(allocation.notes),
        }
        if text is not None and sample.answers:
            scores = {name: metrics.METRICS[name](text, sample.answers) for name in ("exact", "anls", "vqa")}
            row |= scores | {"accuracy": metrics.METRICS[self.config.metric](text, sample.answers)}
        # A downscaled picture covers every place, so evidence recall would mean nothing.
        if allocation.grid == grid:
            groups = metrics.evidence_cells(sample.evidence, grid, self.picture.size, len(self.picture.frames))
            row |= {
                "keep": pack_cells(allocation.keep, grid.n),
                "recall": metrics.recall(allocation.keep, groups),
                "any_hit": metrics.any_hit(allocation.keep, groups),
                "pointing": metrics.pointing(allocation.relevance, groups),
                "chance": metrics.chance(allocation.k, grid.n, groups),
            }
            heat = {"relevance": allocation.relevance} if allocation.relevance is not None else dict(allocation.scores)
            if heat:  # drawn on the page: the relevance, or else the first of the scores
                row |= {"heat": quantise(next(iter(heat.values()))), "heat_of": next(iter(heat))}
        return row


def pack_cells(keep: torch.Tensor, n: int) -> str:
    """Cell numbers `[K]` of `n` as base64, one bit per cell."""
    bits = np.zeros(n, np.uint8)
    bits[keep.numpy()] = 1
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def unpack_cells(text: str, n: int) -> torch.Tensor:
    """The inverse of `pack_cells`.

    >>> unpack_cells(pack_cells(torch.tensor([0, 9]), 12), 12).tolist()
    [0, 9]
    """
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:n]
    return torch.from_numpy(bits.nonzero()[0])


def quantise(scores: torch.Tensor) -> str:
    """Values `[N]` as base64: min-max scaled, then 256 levels of their square root, which are finer for small values."""
    values = scores.detach().double().cpu().numpy()
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    levels = np.round(np.sqrt(scaled) * LEVELS).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()


def restore(text: str) -> torch.Tensor:
    """The inverse of `quantise`, in [0, 1].

    >>> restore(quantise(torch.tensor([2.0, 7.0, 3.0]))).tolist()[:2]
    [0.0, 1.0]
    """
    levels = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return (torch.from_numpy(levels.astype(np.float32)) / LEVELS).square()


def grid_to_lists(grid: Cells) -> list[list[float]]:
    """A grid as JSON: `[t, h, w, x0, y0, x1, y1]` for each view."""
    return [[view.t, view.h, view.w, *view.area] for view in grid.views]


def grid_from_lists(views: Sequence[Sequence[float]]) -> Cells:
    """The inverse of `grid_to_lists`."""
    grids = tuple(Grid(int(t), int(h), int(w), tuple(area)) for t, h, w, *area in views)  # type: ignore[arg-type]
    return grids[0] if len(grids) == 1 else Mosaic(grids)
