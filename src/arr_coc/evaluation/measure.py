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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import AllocationError, SelectorError
from arr_coc.evaluation import metrics
from arr_coc.evaluation.data import PictureQuestions, Sample
from arr_coc.evaluation.entries import DENSE, Entry, TimedSelector
from arr_coc.selectors import SelectorLike, selector
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget, limit
from arr_coc.types.grid import Cells, Grid, Mosaic
from arr_coc.vlm.fallback import FallbackWarning
from arr_coc.vlm.look import Look, Source
from arr_coc.vlm.model import VLM

BATCH = 8  # questions per batch
STAGES = ("preprocess", "encode", "select", "prefill", "decode")
LEVELS = 255  # of quantised scores

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Trial:
    """One selector at one budget with one seed."""

    entry: Entry
    budget: Budget
    seed: int

    @property
    def dense(self) -> bool:
        return self.entry.name == DENSE


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


@dataclass(frozen=True)
class AttentionCost:
    """What recording attention adds to an encoding, by the recorded depths: time as a share of it, memory in MB."""

    shares: dict[tuple[float, ...], float]
    memory: dict[tuple[float, ...], float] = field(default_factory=dict)

    def time_share(self, depths: Sequence[float]) -> float:
        return self.shares.get(tuple(sorted(set(depths))), 0.0)

    def memory_mb(self, depths: Sequence[float]) -> float:
        return self.memory.get(tuple(sorted(set(depths))), 0.0)


@dataclass(frozen=True)
class SharedEncoding:
    """A picture that was looked at and encoded once."""

    look: Look
    grid: Cells
    preprocess: float  # ms
    encode: float  # ms, without attention
    peak: float | None  # MB while encoding, without attention


@dataclass(frozen=True)
class AnswerRow:
    """An answer (None if nothing was generated) and the cells it was read from."""

    text: str | None
    allocation: Allocation


class PeakMemory:
    """Peak memory since the object was made: of the GPU, or of this process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._available = device.type == "cuda"
        if self._available:
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR_REFS.write_text("5")  # resets the peak
            self._available = True
        except OSError:  # not Linux, or not permitted
            pass

    def peak(self) -> float | None:
        """MB, the model included; None where the system does not report it."""
        if not self._available:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        found = [line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")]
        return int(found[0].split()[1]) / 1024 if found else None


def attention_depths(trials: Sequence[Trial], config: EvalConfig) -> tuple[float, ...]:
    """The encoder depths whose attention the selectors on the shared encoding read."""
    if config.glancing:
        return ()
    return tuple(sorted({d for t in trials if not t.entry.reencodes for d in t.entry.selector.attention_at}))


def measure_attention_cost(
    vlm: VLM, picture: PictureQuestions, trials: Sequence[Trial], config: EvalConfig
) -> AttentionCost:
    """Measure on one picture, after a warm-up, in two interleaved rounds; the better one counts."""
    everything = attention_depths(trials, config)
    sets = {(), everything} | {
        tuple(sorted(set(t.entry.selector.attention_at))) for t in trials if not t.entry.reencodes and everything
    }
    look = look_at(vlm, picture)
    vlm.generate(look=look, text=picture.samples[0].question, max_new_tokens=2)
    if len(sets) == 1:
        return AttentionCost({})
    best_ms: dict[tuple[float, ...], float] = dict.fromkeys(sets, float("inf"))
    best_mb = dict(best_ms)
    for _ in range(2):
        for depths in sets:
            fresh = replace(look, encoded={}, attention_at=depths)
            memory = PeakMemory(vlm.device)
            best_ms[depths] = min(best_ms[depths], vlm.prepare(look=fresh, text="?").timings["encode"])
            best_mb[depths] = min(best_mb[depths], memory.peak() or 0.0)
    return AttentionCost(
        {depths: max(0.0, ms / best_ms[()] - 1) for depths, ms in best_ms.items()},
        {depths: max(0.0, peak - best_mb[()]) for depths, peak in best_mb.items()},
    )


def measure_picture(
    vlm: VLM,
    picture: PictureQuestions,
    trials: Sequence[Trial],
    config: EvalConfig,
    cost: AttentionCost,
    timed: int | None,
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each trial in turn, one row per question; `timed`: the question that is asked alone."""
    shared = _encode_shared(vlm, picture, attention_depths(trials, config), cost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # fallbacks are counted and reported with the row
        for trial in trials:
            yield _measure_trial(vlm, picture, trial, config, shared, cost, timed)


def look_at(vlm: VLM, picture: PictureQuestions, depths: Sequence[float] = ()) -> Look:
    """The picture, or the video's frames, after the processor."""
    if picture.kind == "video":
        return vlm.look(videos=[list(picture.frames)], fps=picture.fps, attention_at=depths)
    return vlm.look(picture.image, attention_at=depths)


def _encode_shared(
    vlm: VLM, picture: PictureQuestions, depths: tuple[float, ...], cost: AttentionCost
) -> SharedEncoding:
    memory = PeakMemory(vlm.device)
    start = time.perf_counter()
    look = look_at(vlm, picture, depths)
    preprocess = (time.perf_counter() - start) * 1e3
    prepared = vlm.prepare(look=look, text=picture.samples[0].question)
    encode = prepared.timings["encode"] / (1 + cost.time_share(depths))
    peak = memory.peak()
    plain_peak = None if peak is None else peak - cost.memory_mb(depths)
    return SharedEncoding(look, prepared.allocations[0].grid, preprocess, encode, plain_peak)


def _measure_trial(
    vlm: VLM,
    picture: PictureQuestions,
    trial: Trial,
    config: EvalConfig,
    shared: SharedEncoding,
    cost: AttentionCost,
    timed: int | None,
) -> list[dict[str, Any]]:
    entry = trial.entry
    glancing = config.glancing and not trial.dense
    encodes = entry.reencodes or glancing
    own = TimedSelector(entry.make(picture), vlm.device)
    # Every trial builds its own texture, and its own encoding if it cannot share one. Embeddings are kept between
    # trials, except where they are timed.
    embeddings = (
        vlm.embeddings.with_empty_cache() if vlm.embeddings is not None and timed is not None else vlm.embeddings
    )
    images, videos = (_without_textures(rows, embeddings) for rows in (shared.look.images, shared.look.videos))
    look = replace(shared.look, images=images, videos=videos)
    if encodes:
        look = replace(look, encoded={}, attention_at=())
    request: dict[str, Any] = {"look": look, "selector": own, "budget": trial.budget, "seed": trial.seed}
    timed_selectors = [own]
    if glancing:
        request["glance"] = config.glance
        if config.glance_selector is not None or not entry.glances:
            request["glance_selector"] = TimedSelector(selector(config.glance_selector or "uniform"), vlm.device)
            timed_selectors.append(request["glance_selector"])
    questions = [sample.question for sample in picture.samples]
    answers: dict[int, AnswerRow] = {}
    ms: dict[str, float] | None = None
    peak: float | None = None
    if timed is not None:
        memory = PeakMemory(vlm.device)
        (answers[timed],), spent = _ask(vlm, questions[timed : timed + 1], request, config)
        peak = memory.peak()
        depths = entry.selector.attention_at
        if not encodes and peak is not None and shared.peak is not None:
            peak = max(peak, shared.peak + cost.memory_mb(depths))
        in_layers = sum(own.layer_ms)
        ms = {
            "preprocess": shared.preprocess + spent.get("preprocess", 0.0),
            "encode": spent.get("encode", 0.0) if encodes else shared.encode * (1 + cost.time_share(depths)),
            "select": in_layers + sum(sum(one.select_ms) for one in timed_selectors),
            "prefill": spent.get("assemble", 0.0) + spent.get("prefill", 0.0) - in_layers,
            "decode": spent.get("decode", 0.0),
        }
    rest = [number for number in range(len(questions)) if number != timed]
    for start in range(0, len(rest), BATCH):
        batch = rest[start : start + BATCH]
        answers |= zip(batch, _ask(vlm, [questions[n] for n in batch], request, config)[0], strict=True)
    moved = metrics.sensitivity([answers[number].allocation.keep for number in range(len(questions))])
    return [
        _make_row(trial, number, sample, answers[number], config, shared.grid, picture)
        | {"ms": ms, "peak_mb": peak, "moved": moved}
        for number, sample in enumerate(picture.samples)
    ]


def _without_textures(
    rows: Sequence[Sequence[Source]], embeddings: Embeddings | None
) -> tuple[tuple[Source, ...], ...]:
    return tuple(tuple(Source(source.picture, source.size, embeddings) for source in row) for row in rows)


def _ask(
    vlm: VLM, questions: list[str], request: dict[str, Any], config: EvalConfig
) -> tuple[list[AnswerRow], dict[str, float]]:
    name = request["selector"].name
    try:
        if config.answers or request["selector"].depths:
            tokens = config.tokens if config.answers else 1
            answers: list[Answer] = vlm.generate(text=questions, max_new_tokens=tokens, do_sample=False, **request)
            rows = [AnswerRow(one.text if config.answers else None, one.allocation) for one in answers]
            timings = answers[0].timings
        else:
            prepared = vlm.prepare(text=questions, **request)
            rows = [AnswerRow(None, allocation) for allocation in prepared.allocations]
            timings = prepared.timings
    except SelectorError as error:
        raise error if repr(name) in str(error) else SelectorError(f"selector {name!r}: {error}") from None
    for row in rows:
        # Invalid cells are a bug of the selector, not of this picture: stop the run.
        kind, _, why = row.allocation.fallback.partition(": ")
        if kind == AllocationError.__name__:
            raise SelectorError(f"selector {name!r} answered with wrong cells: {why}")
    return rows, dict(timings)


def _make_row(
    trial: Trial,
    number: int,
    sample: Sample,
    answer: AnswerRow,
    config: EvalConfig,
    grid: Cells,
    picture: PictureQuestions,
) -> dict[str, Any]:
    allocation = answer.allocation
    row: dict[str, Any] = {
        "selector": trial.entry.name,
        "budget": str(trial.budget),
        "seed": trial.seed,
        "question": number,
        "kind": sample.kind,
        "said": answer.text,
        "kept": allocation.k,
        "read": allocation.k if allocation.read is None else allocation.read,
        "encoded": len(allocation.encoded),
        "all": grid.n,
        "grid": grid_to_lists(grid),
        "over": allocation.k > (limit(trial.budget, grid.n).k or grid.n),
        "fallback": allocation.fallback,
        "notes": list(allocation.notes),
    }
    if answer.text is not None and sample.answers:
        scores = {name: metrics.METRICS[name](answer.text, sample.answers) for name in ("exact", "anls", "vqa")}
        row |= scores | {"accuracy": metrics.METRICS[config.metric](answer.text, sample.answers)}
    # A downscaled picture covers every place, so evidence recall would mean nothing.
    if allocation.grid == grid:
        groups = metrics.evidence_cells(sample.evidence, grid, picture.size, len(picture.frames))
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
