"""From a request to a pruned prompt: contexts for the stages, and the prompt built from their result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.adapters.packing import KeptFeatures, Packed, assemble, model_kwargs, pad_rows
from arr_coc.adapters.processor import Message
from arr_coc.devices import Stopwatch, to_device
from arr_coc.errors import PromptError, SelectorError
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Prepared, Shown
from arr_coc.types.budget import Limit
from arr_coc.types.gaze import foveal_map
from arr_coc.types.question import check_question_tokens
from arr_coc.vlm.detail import split_budgets
from arr_coc.vlm.look import Look, downscaled_source, original_source, preprocess
from arr_coc.vlm.request import Request, SelectionRequest
from arr_coc.vlm.stages import Plan, PromptContext, StageResult, selection_input

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

DOWNSCALE_TRIES = 6  # processors round sizes to whole cells, so the first try may give too many


@dataclass(frozen=True, eq=False)
class PrunedPrompt:
    """One or several rows of a prompt without their dropped tokens."""

    packed: Packed
    kept: KeptFeatures
    allocations: tuple[Allocation, ...]
    places: tuple[torch.Tensor, ...]  # positions [K] of each allocation's kept cells in the dense prompt
    conversations: tuple[tuple[Message, ...], ...] = ()
    prompts: tuple[str, ...] = ()
    shown: Callable[[], Shown] | None = None  # for follow-ups
    about: Callable[[int], list[SelectionInput]] | None = None  # what a selector would get for each picture of a row

    def prepared(self, adapter: Adapter, timings: Mapping[str, float]) -> Prepared:
        return Prepared(
            make=lambda: model_kwargs(adapter, self.packed, self.kept),
            length=self.packed.input_ids.shape[1],
            allocations=self.allocations,
            source=self.packed.source,
            places=self.places,
            timings=timings,
            messages=self.conversations,
            texts=self.prompts,
            shown=self.shown,
            about=self.about,
        )


def contexts(vlm: VLM, request: Request, look: Look, watch: Stopwatch) -> Iterator[PromptContext]:
    """One context for the batch; or, for questions that share a look, one for each question."""
    assert request.questions is not None
    rows = list(zip(request.questions, request.conversations, strict=True))
    prompter = vlm.prompter
    glances = vlm.adapter.glances and request.selection.glance_selector.glances and request.look is None
    for part in [rows] if request.look is None else [[row] for row in rows]:
        with watch.stage("preprocess"):
            prompts = [text if request.raw else prompter.render(talk) for text, talk in part]
            tokens = prompter.tokenize(prompts, look.vision)
            made = context(vlm, request.selection, look, tokens, [text for text, _ in part], watch, glances)
        yield replace(
            made,
            reused=request.look is not None,
            conversations=() if request.raw else tuple(talk for _, talk in part),
            prompts=tuple(prompts),
        )


def context(
    vlm: VLM,
    selection: SelectionRequest,
    look: Look,
    tokens: Inputs,
    questions: Sequence[str],
    watch: Stopwatch,
    can_glance: bool = False,
) -> PromptContext:
    """The context of a tokenized prompt about a look; `questions`: what each row asks.

    `can_glance`: cells can be chosen before encoding; it matters for large images that are shown as views.
    """
    adapter, prompter = vlm.adapter, vlm.prompter
    inputs: Inputs = {**tokens, **look.vision.tensors}
    originals = {"image": look.sources("image"), "video": look.sources("video")}
    visuals = adapter.visuals(inputs, look.sizes())
    asked = [Question(text, prompter.ids(text), adapter.embed) for text in questions]
    for question in asked:
        check_question_tokens(len(question.ids), adapter.max_positions)
    sources = _with_gaze([originals[visual.kind][visual.number] for visual in visuals], visuals, selection)
    if look.is_mixed:
        from arr_coc.vlm.mixed import tiled

        request = tiled(selection, visuals, sources)
    else:
        request = split_budgets(selection, visuals, sources, can_glance)
    return PromptContext(
        adapter=adapter,
        inputs=inputs,
        visuals=visuals,
        sources=sources,
        questions=asked,
        request=request,
        asked=selection,
        watch=watch,
        layer=vlm.predictor,
        universal=vlm.universal,
        codec=vlm.codec,
        prompter=prompter,
        look=look,
        recordings=vlm.recordings,
    )


def context_for_inputs(vlm: VLM, request: Request, watch: Stopwatch) -> PromptContext:
    """The context of a processor's output. Its images are known only if `originals` were given."""
    adapter = vlm.adapter
    inputs = _check_inputs(request.inputs, adapter.pixel_keys)
    visuals = adapter.visuals(inputs)
    is_text = inputs["attention_mask"].bool().clone()
    for visual in visuals:
        is_text[visual.row, visual.places] = False
    rows = [ids[mask] for ids, mask in zip(inputs["input_ids"], is_text, strict=True)]
    texts = request.questions
    if texts is None:
        texts = tuple("" if vlm.processor is None else vlm.prompter.decode(row) for row in rows)
    elif len(texts) != len(rows):
        raise PromptError(f"expected a question for each of the {len(rows)} rows of the inputs, got {len(texts)}")
    sources: list[ImageSource | None] = [None] * len(visuals)
    if request.originals is not None:
        if len(request.originals) != len(visuals) or any(visual.kind != "image" for visual in visuals):
            raise PromptError(f"expected the originals of {len(visuals)} images, got {len(request.originals)}")
        sources = [original_source(one, vlm.embeddings) for one in request.originals]
    sources = _with_gaze(sources, visuals, request.selection)
    questions = [Question(text, row, adapter.embed) for text, row in zip(texts, rows, strict=True)]
    asked = request.selection
    return PromptContext(
        adapter, inputs, visuals, sources, questions, asked, asked, watch, vlm.predictor, vlm.universal, vlm.codec,
        recordings=vlm.recordings,
    )  # fmt: skip


def _with_gaze(
    sources: Sequence[ImageSource | None], visuals: Sequence[Visual], selection: SelectionRequest
) -> list[ImageSource | None]:
    """The originals of the visuals, with the falloff around the fixations where a gaze is given."""
    if selection.gaze is None:
        return list(sources)
    if any(source is not None and source.view is not None for source in sources):
        raise PromptError(
            "expected an image as it is for a gaze, got one that is shown as views: ask with detail='off'"
        )
    source = sources[0] if len(sources) == 1 else None
    if source is None or source.size is None or visuals[0].kind != "image":
        kinds = ", ".join(visual.kind for visual in visuals) or "none"
        raise PromptError(
            f"expected one picture for a gaze, got {kinds}: ask about one picture, or watch a clip with arr_coc.watch"
        )
    return [source.supply({"gaze": foveal_map(selection.gaze, source.size)})]


def _check_inputs(inputs: Any, pixel_keys: Sequence[str]) -> dict[str, Any]:
    """A processor's output, with everything but the pixels on the CPU, where the prompt is worked out."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        raise PromptError("expected a processor's output with input_ids as a tensor [B, T]")
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor) and (name in pixel_keys or "grid" in name or "mask" in name):
            raise PromptError(f"expected {name} as a tensor (return_tensors='pt'), got {type(value).__name__}")
    if "attention_mask" in inputs and inputs["attention_mask"].shape != ids.shape:
        raise PromptError(
            f"expected an attention_mask of shape {list(ids.shape)}, got {list(inputs['attention_mask'].shape)}"
        )
    given = {
        name: value.cpu() if isinstance(value, torch.Tensor) and name not in pixel_keys else value
        for name, value in inputs.items()
    }
    given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    return given


def downscale(context: PromptContext, plan: Plan) -> tuple[PromptContext, Plan]:
    """The context with smaller images, none above the planned number of cells if the processor goes that low."""
    adapter, prompter, look, wanted = context.adapter, context.prompter, context.look, plan.downscale
    if prompter is None or look is None:
        name = context.request.selector.name
        raise SelectorError(f"selector {name!r} re-encodes pictures, so it needs them, not model inputs")
    if adapter.fixed_grid:
        raise SelectorError(f"{adapter.family} makes the same cells of every picture: a smaller one saves nothing")
    visuals = context.visuals
    with context.watch.stage("preprocess"):
        scale = dict.fromkeys(wanted, 1.0)
        for _ in range(DOWNSCALE_TRIES):
            smaller = {
                visuals[i].number: downscaled_source(
                    look.sources("image")[visuals[i].number], scale[i] * cells / visuals[i].n
                )
                for i, cells in wanted.items()
            }
            numbers = iter(range(len(look.sources("image"))))
            images = [[smaller.get(next(numbers), source) for source in row] for row in look.images]
            vision = preprocess(prompter, images, look.videos, look.fps)
            inputs: Inputs = prompter.tokenize(context.prompts, vision) | vision.tensors
            made = adapter.visuals(inputs, look.sizes())
            above = [i for i, cells in wanted.items() if made[i].n > cells]
            if not above:
                break
            scale |= {i: scale[i] * min(0.95, wanted[i] / made[i].n) for i in above}
    bounds = []
    for i, (bound, visual) in enumerate(zip(plan.limits, made, strict=True)):
        least = f"the smallest picture has {visual.n} cells, more than the {wanted[i]} asked for" if i in above else ""
        if plan.keep_downscaled:
            k = None if bound.k is None else min(bound.k, visual.n)
            bounds.append(replace(bound, n=visual.n, k=k, note=bound.note or least))
        else:
            bounds.append(Limit(visual.n, visual.n, least))
    notes = [[bound.note] if bound.note else [] for bound in bounds]
    smaller_look = replace(look, vision=vision, images=tuple(map(tuple, images)), encoded={})
    return replace(context, inputs=inputs, visuals=made, look=smaller_look), Plan(bounds, plan.reasons, notes)


def build(context: PromptContext, result: StageResult) -> PrunedPrompt:
    """The prompt without its dropped tokens, and the features of the kept ones."""
    keeps = [allocation.keep for allocation in result.allocations]
    _check_last_token(context, keeps)
    with context.watch.stage("assemble"):
        packed, kept = assemble(
            context.adapter, context.inputs, context.visuals, result.encoded, keeps, result.features
        )
    places = tuple(visual.cell_places[keep] for visual, keep in zip(context.visuals, keeps, strict=True))
    return PrunedPrompt(
        packed, kept, tuple(result.allocations), places, context.conversations, context.prompts,
        shown=lambda: Shown(
            context.look, context.asked, context.inputs["input_ids"], read_features(result, keeps),
            context.questions[0].text,
        ),
        about=lambda row: selections(context, row),
    )  # fmt: skip


def selections(context: PromptContext, row: int) -> list[SelectionInput]:
    """What a selector would get before encoding, for each picture of a row."""
    return [
        selection_input(context, number, Limit(0, None))  # no budget
        for number, visual in enumerate(context.visuals)
        if visual.row == row
    ]


def read_features(result: StageResult, keeps: Sequence[torch.Tensor]) -> tuple[Encoded, ...]:
    """Of each visual, the features of some encoded cells as the language model reads them: merged ones replace the encoder's."""
    found = []
    for seen, keep, kept, merged in zip(
        result.encoded, keeps, (a.keep for a in result.allocations), result.features, strict=True
    ):
        index = to_device(seen.rows(keep), seen.tokens.device)
        tokens = seen.tokens[index]
        if merged is not None:
            tokens = merged.to(tokens)[to_device(torch.searchsorted(kept, keep), tokens.device)]
        found.append(Encoded(keep, tokens, tuple(level[index] for level in seen.deep), seen.extra))
    return tuple(found)


def _check_last_token(context: PromptContext, keeps: Sequence[torch.Tensor]) -> None:
    """Raise where the token that the answer starts from was dropped: the answer would start from another position."""
    real = context.inputs["attention_mask"].bool()
    for visual, keep in zip(context.visuals, keeps, strict=True):
        last = int(real[visual.row].nonzero()[-1])
        if visual.n and int(visual.cell_places[-1]) == last and visual.n - 1 not in keep:
            raise PromptError(
                f"expected text after the last picture, got a prompt that ends in it, and its last cell {visual.n - 1}, "
                "from which the answer starts, was dropped: put the question after the picture, or keep that cell"
            )


def join(prompts: Sequence[PrunedPrompt], pad_token: int) -> PrunedPrompt:
    """Prompts of one row each as one batch."""
    if len(prompts) == 1:
        return prompts[0]
    kept: KeptFeatures = {}
    for one in prompts:
        for kind, rows in one.kept.items():
            kept.setdefault(kind, []).extend(rows)
    return PrunedPrompt(
        packed=pad_rows([one.packed for one in prompts], pad_token),
        kept=kept,
        allocations=tuple(replace(a, row=row) for row, one in enumerate(prompts) for a in one.allocations),
        places=tuple(places for one in prompts for places in one.places),
        conversations=tuple(talk for one in prompts for talk in one.conversations),
        prompts=tuple(prompt for one in prompts for prompt in one.prompts),
        about=lambda row: [] if (found := prompts[row].about) is None else found(0),
    )
