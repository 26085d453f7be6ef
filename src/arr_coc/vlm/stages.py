"""The stages between look and prompt: glance (what to encode), encode, gaze (what to keep).

    plan = glance(context)
    encoded = encode(context, plan)
    result = gaze(context, plan, encoded)

Each stage handles all images of a prompt and uses only the results of the stages before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from arr_coc.adapters.attention_probe import probe_layers, prompt_attention
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.adapters.processor import Message, PromptProcessor
from arr_coc.devices import Stopwatch
from arr_coc.errors import SelectorError
from arr_coc.layer.inference import LayerPredictor
from arr_coc.selectors.base import Choice, Downscale, ImageSource, Question, SelectionInput
from arr_coc.selectors.cues import EmbeddingScorer
from arr_coc.selectors.registry import call_gaze, call_glance, call_prepare, call_relevance
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Limit, divide, limits, rows
from arr_coc.vlm.continuation import Deferred, ProbeDeferred, can_defer
from arr_coc.vlm.look import Encoding, Look, TokenCodec
from arr_coc.vlm.request import SelectionRequest, given_cells

if TYPE_CHECKING:
    from arr_coc.vlm.recording import Recordings

CACHED_ENCODINGS = 4  # per look
SEED_STEP = 7919  # added per image of a row: images with equal grids get different random cells


@dataclass(eq=False)
class PromptContext:
    """A prompt before pruning, and everything that the stages need."""

    adapter: Adapter
    inputs: Inputs  # as a processor returns them
    visuals: list[Visual]
    sources: Sequence[ImageSource | None]  # originals of the visuals; None: only the inputs are known
    questions: Sequence[Question]  # by row
    request: SelectionRequest  # views of one image have a budget each
    asked: SelectionRequest  # as the caller wrote it
    watch: Stopwatch
    layer: LayerPredictor | None = None
    universal: LayerPredictor | None = None
    codec: TokenCodec | None = None
    prompter: PromptProcessor | None = None
    look: Look | None = None  # caches encodings for the next question
    reused: bool = False  # the caller asks several questions about the look: encode it once, whole
    conversations: tuple[tuple[Message, ...], ...] = ()
    prompts: tuple[str, ...] = ()
    defer: Callable[[], bool] | None = (
        None  # whether probes may wait for the prefill (`continuation`); None: they may not
    )
    recordings: Recordings | None = None  # encoders of fixed shape (`VLM.record`)


@dataclass(eq=False)
class Plan:
    """The glance's result for each visual: the cells to encode, and the limits for the gaze."""

    limits: list[Limit]
    reasons: list[str]  # why a selector's own choice was replaced
    notes: list[list[str]]
    cells: list[torch.Tensor] | None = None  # cells to encode; None: all
    choices: list[Choice] | None = None  # set if the cells to keep are decided already
    given: bool = False  # the caller chose the cells
    downscale: dict[int, int] = field(default_factory=dict)  # visual -> maximum number of cells: encode a smaller image
    keep_downscaled: bool = False  # the gaze still applies to the smaller images
    automatic: dict[int, Choice] = field(default_factory=dict)  # visual -> what the selector decided for `auto`


@dataclass(eq=False)
class StageResult:
    """The kept cells of every visual, and the encoder's tokens."""

    encoded: list[Encoded]
    allocations: list[Allocation]
    features: list[torch.Tensor | None]  # tokens that replace the encoder's (merging)
    deferred: dict[int, Deferred] = field(default_factory=dict)  # visual -> a selector's call that waits for its probe


class CellProbe:
    """The language model's attention to some cells of one visual, before it answers."""

    def __init__(self, context: PromptContext, number: int, encoded: Sequence[Encoded]) -> None:
        self.context, self.number, self.encoded = context, number, encoded
        self.cells_read = 0.0  # cells read per language layer, on average
        self.k: int | None = None  # the number of cells to keep, where the probe may wait for the prefill

    def __call__(self, cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        context = self.context
        layers = len(context.adapter.text_model.layers)
        probed = probe_layers(depths, layers, context.adapter.probed_layers)
        if self.k is not None and can_defer(context.adapter, probed, cells, self.k):
            raise ProbeDeferred(cells, tuple(probed))
        self.cells_read += len(cells) * probed[-1] / layers
        with context.watch.stage("probe"):
            return prompt_attention(
                context.adapter, context.inputs, context.visuals, self.encoded, self.number, cells, depths
            )


def glance(context: PromptContext) -> Plan:
    """What to encode of each visual."""
    request, visuals = context.request, context.visuals
    bounds = limits(request.budget, visuals, "budget", request.shared)
    plan = Plan(bounds, [""] * len(visuals), [[bound.note] if bound.note else [] for bound in bounds])
    if request.allocation is not None:
        given = given_cells(request.allocation, [visual.grid for visual in visuals])
        plan.choices, plan.cells, plan.given = [Choice(keep) for keep, _ in given], [cells for _, cells in given], True
        return plan
    selector = request.selector
    if not selector.early:  # an early selector spends the budget itself before encoding
        _decide_counts(context, plan)
        bounds, selector = limits(request.glance, visuals, "glance", False), request.glance_selector
        for notes, bound in zip(plan.notes, bounds, strict=True):
            notes += [bound.note] if bound.note else []
    if keep_all(bounds):
        return plan
    cannot = not (context.adapter.glances and selector.glances)
    pointless = cannot or context.reused or keep_all(plan.limits)
    if all(map(is_automatic, bounds)) and not request.selector.early and pointless:
        return plan  # encode all: nothing can decide what to encode, further questions follow, or all is read
    if not context.adapter.glances and not request.selector.early:
        raise SelectorError(f"{context.adapter.family} encodes whole pictures only: leave glance out and set a budget")
    results: list[Choice | Downscale] = []
    with context.watch.stage("glance"):
        decided = [
            plan.automatic.get(number) if is_automatic(bound) and selector is request.selector else None
            for number, bound in enumerate(bounds)
        ]
        waiting = [number for number, found in enumerate(decided) if found is None]
        ready = call_prepare(selector, [selection_input(context, number, bounds[number]) for number in waiting])
        selections = dict(zip(waiting, ready, strict=True))
        for number, bound in enumerate(bounds):
            found = decided[number]
            result, why = (found, "") if found else call_glance(selector, selections[number])
            needed = plan.limits[number].k or 0
            if is_automatic(bound) and isinstance(result, Choice) and len(result.keep) < needed:  # encode what is read
                wider = selection_input(context, number, replace(bound, k=needed))
                result, why = call_glance(selector, wider)
            if why not in plan.reasons[number]:
                _add_reason(plan, number, why)
            results.append(result)
    if any(isinstance(result, Downscale) for result in results):
        plan.downscale = _downscale(context, selector.name, results, bounds, plan.reasons)
        plan.keep_downscaled = not request.selector.early
        return plan
    if not context.adapter.glances:
        raise SelectorError(
            f"{context.adapter.family} encodes whole pictures only, and selector {selector.name!r} chooses before that: "
            "take one that chooses among encoded cells"
        )
    choices = [result for result in results if isinstance(result, Choice)]
    plan.cells = [choice.keep for choice in choices]
    plan.choices = choices if request.selector.early else None
    if all(len(cells) == visual.n for cells, visual in zip(plan.cells, visuals, strict=True)):
        plan.cells = None  # the stock encoder, in one call
    return plan


def _decide_counts(context: PromptContext, plan: Plan) -> None:
    """Under `auto`, a selector that can decides before encoding how many cells to keep."""
    selector = context.request.selector
    if not selector.glances or context.request.shared or not any(map(is_automatic, plan.limits)):
        return
    with context.watch.stage("glance"):
        waiting = [number for number, bound in enumerate(plan.limits) if is_automatic(bound)]
        ready = call_prepare(selector, [selection_input(context, i, plan.limits[i]) for i in waiting])
        for number, selection in zip(waiting, ready, strict=True):
            bound = plan.limits[number]
            choice, plan.reasons[number] = call_glance(selector, selection)
            if isinstance(choice, Choice):
                plan.automatic[number] = choice
                if choice.auto is not None:
                    plan.limits[number] = replace(bound, k=choice.auto)


def encode(context: PromptContext, plan: Plan) -> list[Encoded]:
    """The encoder's tokens for the planned cells, from the look's cache where possible."""
    if not context.visuals:
        return []
    gazes = plan.choices is None and not keep_all(plan.limits)
    depths = context.request.selector.attention_at if gazes else ()
    codec, look = context.codec, context.look
    if look is None or torch.is_grad_enabled():  # an autograd graph must not be shared
        return _decode(context, _run_encoder(context, plan.cells, depths))
    weights, state = context.adapter.model.get_input_embeddings().weight, context.adapter.encoder_state()
    chosen = None if plan.cells is None else tuple(cells.numpy().tobytes() for cells in plan.cells)
    key = (chosen, weights.dtype, weights.device, state, None if codec is None else codec.key)
    known = look.encoded.get(key)
    if known is None or not set(depths) <= known.depths:
        wanted = set(depths) | set(look.attention_at) | (known.depths if known is not None else set())
        while len(look.encoded) >= CACHED_ENCODINGS:
            look.encoded.pop(next(iter(look.encoded)))
        tokens = _run_encoder(context, plan.cells, tuple(sorted(wanted)))
        known = look.encoded[key] = Encoding(tokens, frozenset(wanted))
    return _decode(context, list(known.tokens))


def gaze(context: PromptContext, plan: Plan, encoded: list[Encoded]) -> StageResult:
    """What to keep of each visual."""
    choices, probes = plan.choices, [CellProbe(context, number, encoded) for number in range(len(encoded))]
    deferred: dict[int, Deferred] = {}
    if choices is None and keep_all(plan.limits):
        choices = [_everything(plan, number, tokens) for number, tokens in enumerate(encoded)]
    elif choices is None:
        with context.watch.stage("gaze"):
            choices = _choose(context, plan, encoded, probes, deferred)
    name = "given" if plan.given else context.request.selector.name
    allocations = []
    for number, (choice, tokens, bound) in enumerate(zip(choices, encoded, plan.limits, strict=True)):
        chosen_count = number not in plan.automatic  # by the caller
        if not plan.given and chosen_count and bound.k is not None and len(tokens.cells) < bound.k < bound.n:
            plan.notes[number].append(
                f"budget of {bound.k} cells is more than the {len(tokens.cells)} encoded ones: all of these are kept"
            )
        visual, source = context.visuals[number], context.sources[number]
        read = probes[number].cells_read
        allocations.append(
            Allocation(
                grid=visual.grid,
                keep=choice.keep,
                encoded=tokens.cells,
                selector=name,
                size=None if source is None else source.size if source.view is None else source.view.region.original,
                kind=visual.kind,
                row=visual.row,
                relevance=choice.relevance,
                scores=choice.scores,
                tensions=choice.tensions,
                strategy=_strategy(source, choice.strategy or name),
                confidence=1.0 if len(choice.keep) == visual.n else choice.confidence,
                fallback=plan.reasons[number],
                notes=(*(() if source is None else source.notes), *plan.notes[number]),
                semantics=context.adapter.semantics,
                view=None if source is None else source.view,
                read=len(choice.keep) + read if read else None,
            )
        )
    return StageResult(encoded, allocations, [choice.features for choice in choices], deferred)


def _strategy(source: ImageSource | None, strategy: str) -> str:
    """How the cells were chosen, and what was done to the image before."""
    if source is None or source.view is None:
        return strategy
    done = source.view.region.done
    return (source.view.why or strategy) + (f"; the image was {done}" if done else "")


def selection_input(
    context: PromptContext, number: int, bound: Limit, tokens: Encoded | None = None, probe: CellProbe | None = None
) -> SelectionInput:
    """What a selector gets for one visual: before encoding, or with its tokens."""
    visual, source = context.visuals[number], context.sources[number]
    place = sum(other.row == visual.row for other in context.visuals[:number])
    embeddings = None if source is None else source.embeddings
    return SelectionInput(
        grid=visual.grid,
        k=bound.k,
        candidates=torch.arange(visual.n) if tokens is None else tokens.cells,
        question=context.questions[visual.row],
        tokens=None if tokens is None else tokens.tokens,
        attention={} if tokens is None else tokens.attention,
        source=source,
        kind=visual.kind,
        seed=context.request.seed + SEED_STEP * place,
        scorer=None if embeddings is None else EmbeddingScorer(embeddings),
        probe=probe,
        layer=None if source is None else context.layer,
        universal=None if source is None else context.universal,
        mass=bound.mass,
        watch=context.watch,
    )


def keep_all(bounds: Sequence[Limit]) -> bool:
    """Whether nothing is dropped of any visual."""
    return all(bound.k == bound.n for bound in bounds)


def is_automatic(bound: Limit) -> bool:
    """Whether the selector decides how many cells (`auto`)."""
    return bound.k is None and bound.mass is None


def _downscale(
    context: PromptContext,
    name: str,
    results: Sequence[Choice | Downscale],
    bounds: Sequence[Limit],
    reasons: Sequence[str],
) -> dict[int, int]:
    """The maximum number of cells of each visual that a selector wants smaller."""
    if any(visual.kind != "image" for visual in context.visuals):
        raise SelectorError(f"selector {name!r} re-encodes images, not videos")
    wanted: dict[int, int] = {}
    for number, (result, bound) in enumerate(zip(results, bounds, strict=True)):
        if isinstance(result, Downscale):
            wanted[number] = result.cells
        elif reasons[number]:  # the selector failed on this one: use its budget
            wanted[number] = bound.k if bound.k is not None else context.visuals[number].n
        else:
            raise SelectorError(
                f"selector {name!r} wants some pictures smaller and cells of others: expected one kind of result"
            )
    return wanted


def _run_encoder(context: PromptContext, cells: list[torch.Tensor] | None, depths: Sequence[float]) -> list[Encoded]:
    """The encoder's tokens, in the codec's form if there is one."""
    with context.watch.stage("encode"):
        found = None
        if context.recordings is not None:
            found = context.recordings.encode(context.inputs, context.visuals, cells, depths)
        if found is None:
            found = context.adapter.encode(context.inputs, context.visuals, cells, depths)
        if context.codec is None:
            return found
        return [context.codec.encode(visual, one) for visual, one in zip(context.visuals, found, strict=True)]


def _decode(context: PromptContext, stored: list[Encoded]) -> list[Encoded]:
    if context.codec is None:
        return stored
    with context.watch.stage("assemble"):
        return [context.codec.decode(one) for one in stored]


def _choose(
    context: PromptContext,
    plan: Plan,
    encoded: list[Encoded],
    probes: Sequence[CellProbe],
    deferred: dict[int, Deferred],
) -> list[Choice]:
    """Call the selector on every visual. Calls that wait for their probe go to `deferred`."""
    bounds = plan.limits if not context.request.shared else _share_budget(context, plan, encoded, probes)
    choices, selector = [], context.request.selector
    waiting = [number for number, bound in enumerate(bounds) if bound.k != bound.n]
    ready = call_prepare(selector, [selection_input(context, i, bounds[i], encoded[i], probes[i]) for i in waiting])
    selections = dict(zip(waiting, ready, strict=True))
    for number, (bound, tokens) in enumerate(zip(bounds, encoded, strict=True)):
        if number not in selections:
            choices.append(_everything(plan, number, tokens))
            continue
        selection = selections[number]
        wanted = selector.continues or len(tokens.cells) <= selector.continues_up_to
        if wanted and context.defer is not None and context.defer() and _can_wait(context, number):
            probes[number].k = bound.k
        try:
            choice, why = call_gaze(selector, selection)
        except ProbeDeferred as waiting:
            deferred[number] = Deferred(selection, waiting.cells, waiting.layers)
            choice, why = Choice(waiting.cells), ""
        _add_reason(plan, number, why)
        choices.append(choice)
    return choices


def _can_wait(context: PromptContext, number: int) -> bool:
    """Whether a visual's probe can wait for the prefill: it is the only one of its row, and text follows it."""
    visual = context.visuals[number]
    last = int(context.inputs["attention_mask"][visual.row].nonzero()[-1])
    alone = sum(other.row == visual.row for other in context.visuals) == 1
    return alone and visual.n > 0 and int(visual.cell_places[-1]) != last


def _everything(plan: Plan, number: int, tokens: Encoded) -> Choice:
    """All encoded cells, with the reason if `auto` decided that."""
    return replace(plan.automatic.get(number, Choice(tokens.cells)), keep=tokens.cells)


def _share_budget(
    context: PromptContext, plan: Plan, encoded: list[Encoded], probes: Sequence[CellProbe]
) -> list[Limit]:
    """Each row's budget divided among its visuals: by relevance if the selector has one, else by size."""
    bounds = list(plan.limits)
    for members in rows(context.visuals):
        total = sum(plan.limits[i].k or 0 for i in members)
        scores: list[torch.Tensor] = []
        for i in members:
            selection = selection_input(context, i, plan.limits[i], encoded[i], probes[i])
            values, why = call_relevance(context.request.selector, selection)
            _add_reason(plan, i, why)
            scores += [] if values is None else [values]
        sizes = [len(encoded[i].cells) for i in members]
        if len(scores) == len(members):
            owner = torch.repeat_interleave(torch.arange(len(members)), torch.tensor(sizes))
            best = torch.cat(scores).argsort(descending=True, stable=True)[:total]
            quotas = torch.bincount(owner[best], minlength=len(members)).tolist()
        else:
            quotas = divide(total, sizes)
        for i, quota in zip(members, quotas, strict=True):
            bounds[i] = replace(plan.limits[i], k=quota)
    return bounds


def _add_reason(plan: Plan, number: int, why: str) -> None:
    plan.reasons[number] = "; ".join(part for part in (plan.reasons[number], why) if part)
