"""One picture, all settings: encoded once for every selector that allows it.

Questions about one picture are asked in batches, which is faster and says the same; so on some of the pictures one question,
another one from picture to picture, is asked alone, and milliseconds and memory are those of that question:
- `encode`: the whole picture's encoding. It is measured once and shared; what it costs to see attention is charged to the
  selectors that want it. Whoever encodes differently (a smaller picture, some of the cells) pays for that instead.
- `select`: the choice with nothing prepared: every setting starts with a texture that is not built yet. Choosing inside the
  language model is `select` too, and not `prefill`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import AllocationError, SelectorError
from arr_coc.evaluation import memory, metrics
from arr_coc.evaluation.contestants import DENSE, Contestant, Witness
from arr_coc.evaluation.data import Picture, Sample
from arr_coc.evaluation.notation import packed, pressed, views
from arr_coc.selectors import selector
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget, limit
from arr_coc.types.grid import Cells
from arr_coc.vlm.fallback import FallbackWarning
from arr_coc.vlm.look import Look, Source
from arr_coc.vlm.model import VLM

BATCH = 8  # questions at a time
STAGES = ("preprocess", "encode", "select", "prefill", "decode")


@dataclass(frozen=True)
class Setting:
    """One row of the comparison, at one seed."""

    contestant: Contestant
    budget: Budget
    seed: int

    @property
    def dense(self) -> bool:
        return self.contestant.name == DENSE


@dataclass(frozen=True)
class Rules:
    """What holds for all settings alike."""

    metric: str = "exact"
    glance: Budget = "all"
    glance_selector: Any = None  # None: the selector itself, evenly spaced cells where it cannot
    tokens: int = 160  # longest answer
    answers: bool = True  # False: only the cells are looked at, nothing is generated
    seed: int = 0

    @property
    def glancing(self) -> bool:
        return str(self.glance).strip().lower() not in ("all", "100%")


@dataclass(frozen=True)
class Surcharge:
    """What seeing the encoder's attention adds to a plain encoding, by the depths seen: time as a share of it, memory in MB."""

    shares: dict[tuple[float, ...], float]
    memory: dict[tuple[float, ...], float] = field(default_factory=dict)

    def of(self, depths: Sequence[float]) -> float:
        return self.shares.get(tuple(sorted(set(depths))), 0.0)

    def mb(self, depths: Sequence[float]) -> float:
        return self.memory.get(tuple(sorted(set(depths))), 0.0)


@dataclass(frozen=True)
class Shared:
    """A picture, looked at and encoded once."""

    look: Look
    grid: Cells
    preprocess: float  # ms
    encode: float  # ms, without attention
    peak: float | None  # MB while encoding, without attention


def depths_of(settings: Sequence[Setting], rules: Rules) -> tuple[float, ...]:
    """The encoder depths that selectors on the shared encoding want to see."""
    if rules.glancing:
        return ()
    shared = [s.contestant.sample for s in settings if not s.contestant.reencodes]
    return tuple(sorted({depth for one in shared for depth in one.attention_at}))


def surcharge(vlm: VLM, picture: Picture, settings: Sequence[Setting], rules: Rules) -> Surcharge:
    """Measured on one picture, in two interleaved rounds after a warm-up; the better of both counts."""
    whole = depths_of(settings, rules)
    sets = {(), whole} | {
        tuple(sorted(set(s.contestant.sample.attention_at))) for s in settings if not s.contestant.reencodes and whole
    }
    look = look_at(vlm, picture)
    vlm.generate(look=look, text=picture.samples[0].question, max_new_tokens=2)
    if len(sets) == 1:
        return Surcharge({})
    best: dict[tuple[float, ...], float] = dict.fromkeys(sets, float("inf"))
    most = dict(best)
    for _ in range(2):
        for depths in sets:
            fresh = replace(look, encoded={}, attention_at=depths)
            meter = memory.Meter(vlm.device)
            spent = vlm.prepare(look=fresh, text="?").timings["encode"]
            best[depths] = min(best[depths], spent)
            most[depths] = min(most[depths], meter.peak() or 0.0)
    return Surcharge(
        {depths: max(0.0, spent / best[()] - 1) for depths, spent in best.items()},
        {depths: max(0.0, peak - most[()]) for depths, peak in most.items()},
    )


def measure(
    vlm: VLM, picture: Picture, settings: Sequence[Setting], rules: Rules, extra: Surcharge, timed: int | None
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each setting in turn, one row a question; `timed`: the question that is asked alone."""
    shared = _share(vlm, picture, depths_of(settings, rules), extra)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # fallbacks are counted, and shown with the row
        for setting in settings:
            yield _rows(vlm, picture, setting, rules, shared, extra, timed)


def look_at(vlm: VLM, picture: Picture, depths: Sequence[float] = ()) -> Look:
    """The picture, or the video's frames, through the processor."""
    if picture.kind == "video":
        return vlm.look(videos=[list(picture.frames)], fps=picture.fps, attention_at=depths)
    return vlm.look(picture.image, attention_at=depths)


def _share(vlm: VLM, picture: Picture, depths: tuple[float, ...], extra: Surcharge) -> Shared:
    meter = memory.Meter(vlm.device)
    start = time.perf_counter()
    look = look_at(vlm, picture, depths)
    preprocess = (time.perf_counter() - start) * 1e3
    prepared = vlm.prepare(look=look, text=picture.samples[0].question)
    encode = prepared.timings["encode"] / (1 + extra.of(depths))
    peak = meter.peak()
    return Shared(
        look, prepared.allocations[0].grid, preprocess, encode, None if peak is None else peak - extra.mb(depths)
    )


def _rows(
    vlm: VLM, picture: Picture, setting: Setting, rules: Rules, shared: Shared, extra: Surcharge, timed: int | None
) -> list[dict[str, Any]]:
    contestant = setting.contestant
    witness = Witness(contestant.make(picture), vlm.device)
    alone = contestant.reencodes or (rules.glancing and not setting.dense)
    # Each setting builds its own texture; one that encodes for itself starts without an encoding, too. Embeddings are
    # remembered from setting to setting, but not where their time is taken.
    cold = vlm.embeddings.anew() if vlm.embeddings is not None and timed is not None else vlm.embeddings
    look = replace(shared.look, images=_unseen(shared.look.images, cold), videos=_unseen(shared.look.videos, cold))
    if alone:
        look = replace(look, encoded={}, attention_at=())
    given: dict[str, Any] = {"look": look, "selector": witness, "budget": setting.budget, "seed": setting.seed}
    glancer: Witness | None = None
    if rules.glancing and not setting.dense:
        given["glance"] = rules.glance
        if rules.glance_selector is not None or not contestant.glances:
            glancer = Witness(selector(rules.glance_selector or "uniform"), vlm.device)
            given["glance_selector"] = glancer
    texts = [sample.question for sample in picture.samples]
    said: dict[int, Said] = {}
    ms: dict[str, float] | None = None
    peak: float | None = None
    if timed is not None:
        meter = memory.Meter(vlm.device)
        (said[timed],), spent = _ask(vlm, texts[timed : timed + 1], given, rules)
        peak = meter.peak()
        if not alone and peak is not None and shared.peak is not None:
            peak = max(peak, shared.peak + extra.mb(contestant.sample.attention_at))
        inside = sum(witness.inside)
        ms = {
            "preprocess": shared.preprocess + spent.get("preprocess", 0.0),
            "encode": spent.get("encode", 0.0) if alone
            else shared.encode * (1 + extra.of(contestant.sample.attention_at)),
            "select": sum(witness.outside) + inside + (sum(glancer.outside) if glancer else 0.0),
            "prefill": spent.get("assemble", 0.0) + spent.get("prefill", 0.0) - inside,
            "decode": spent.get("decode", 0.0),
        }  # fmt: skip
    rest = [number for number in range(len(texts)) if number != timed]
    for start in range(0, len(rest), BATCH):
        some = rest[start : start + BATCH]
        said |= zip(some, _ask(vlm, [texts[number] for number in some], given, rules)[0], strict=True)
    moved = metrics.sensitivity([said[number].allocation.keep for number in range(len(texts))])
    return [
        _row(setting, number, sample, said[number], rules, shared.grid, picture)
        | {"ms": ms, "peak_mb": peak, "moved": moved}
        for number, sample in enumerate(picture.samples)
    ]


def _unseen(rows: Sequence[Sequence[Source]], embeddings: Embeddings | None) -> tuple[tuple[Source, ...], ...]:
    """The same pictures without the textures that were built of them."""
    return tuple(tuple(Source(source.picture, source.size, embeddings) for source in row) for row in rows)


@dataclass(frozen=True)
class Said:
    """An answer (None where none was asked for) and the cells it came from."""

    text: str | None
    allocation: Allocation


def _ask(
    vlm: VLM, texts: list[str], given: dict[str, Any], rules: Rules
) -> tuple[list[Said], dict[str, float]]:  # fmt: skip
    name = given["selector"].name
    try:
        if rules.answers or given["selector"].depths:
            tokens = rules.tokens if rules.answers else 1
            answers: list[Answer] = vlm.generate(text=texts, max_new_tokens=tokens, do_sample=False, **given)
            said = [Said(one.text if rules.answers else None, one.allocation) for one in answers]
            timings = answers[0].timings
        else:
            prepared = vlm.prepare(text=texts, **given)
            said = [Said(None, allocation) for allocation in prepared.allocations]
            timings = prepared.timings
    except SelectorError as error:
        raise error if repr(name) in str(error) else SelectorError(f"selector {name!r}: {error}") from None
    for one in said:
        # Cells that break the rules are a mistake in the selector, not bad luck with a picture: the run must not go on.
        kind, _, why = one.allocation.fallback.partition(": ")
        if kind == AllocationError.__name__:
            raise SelectorError(f"selector {name!r} answered with wrong cells: {why}")
    return said, dict(timings)


def _row(
    setting: Setting, number: int, sample: Sample, said: Said, rules: Rules, dense: Cells, picture: Picture
) -> dict[str, Any]:
    allocation = said.allocation
    row: dict[str, Any] = {
        "selector": setting.contestant.name,
        "budget": str(setting.budget),
        "seed": setting.seed,
        "question": number,
        "kind": sample.kind,
        "said": said.text,
        "kept": allocation.k,
        "read": allocation.k if allocation.read is None else allocation.read,
        "encoded": len(allocation.encoded),
        "all": dense.n,
        "grid": views(dense),
        "over": allocation.k > (limit(setting.budget, dense.n).k or dense.n),
        "fallback": allocation.fallback,
        "notes": list(allocation.notes),
    }
    if said.text is not None and sample.answers:
        scores = {name: metrics.METRICS[name](said.text, sample.answers) for name in ("exact", "anls", "vqa")}
        row |= scores | {"accuracy": metrics.METRICS[rules.metric](said.text, sample.answers)}
    # A smaller picture shows every place, only less of it: asking which of its cells were kept would say nothing.
    if allocation.grid == dense:
        groups = metrics.evidence_cells(sample.evidence, dense, picture.size, len(picture.frames))
        row |= {
            "keep": packed(allocation.keep, dense.n),
            "recall": metrics.recall(allocation.keep, groups),
            "any_hit": metrics.any_hit(allocation.keep, groups),
            "pointing": metrics.pointing(allocation.relevance, groups),
            "chance": metrics.chance(allocation.k, dense.n, groups),
            **_heat(allocation),
        }
    return row


def _heat(allocation: Allocation) -> dict[str, str]:
    """What the selector said about every cell, to be shown: its relevance, or else the first of its scores."""
    told = {"relevance": allocation.relevance} if allocation.relevance is not None else dict(allocation.scores)
    return {"heat": pressed(next(iter(told.values()))), "heat_of": next(iter(told))} if told else {}
