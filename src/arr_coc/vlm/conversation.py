"""Follow-up questions: cells are chosen for the new question, and the KV cache of the answer before is extended or rebuilt.

    answer -> choose cells for the new question -> continue, extend or rebuild the cache -> generate -> answer

Cells that were read stay. What a turn adds is what it chose and had not read:

- continue: nothing is new. The question is appended to the cache.
- rebuild: the whole conversation is read again with all cells so far. It equals the dense conversation in which all other
  cells are masked at every layer.
- extend: the new cells are appended to the cache at their own positions. Each attends to what comes before it in the dense
  conversation and has been read by now; what was read before does not change. It equals the dense conversation in which a
  token attends only to cells that had been read by its own turn. (An answer's last token is read in the next turn.)

How much of the conversation the model reads: "all" of it, the "cells" of all turns but not their text, or "none" of it: the new
question is read by itself, as if asked alone, with the cells chosen for it. The look and its encoding are kept in any case.

A question that names nothing ("Are you sure?") is about what the last one was about: cells are chosen for that one again, more
than before, and the texture's memory says where its relevance and the answer's attention lay.

A short conversation is rebuilt, a long one is extended. Families whose layers have windows, chunks or states are always
rebuilt: there, a token's place in the cache counts (`Adapter.extends`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.adapters.attention_probe import attention_maps, late_layers, mean_attention
from arr_coc.adapters.base import Adapter, Encoded, Features, Inputs, Visual
from arr_coc.adapters.packing import assemble, model_kwargs
from arr_coc.adapters.processor import Message, user_message
from arr_coc.adapters.wrapped import weights_state
from arr_coc.devices import Stopwatch, to_device
from arr_coc.errors import PromptError, SelectorError
from arr_coc.relevance.coupling import blur_along_rows
from arr_coc.relevance.knowing import scale_to_max
from arr_coc.selectors import selector as selector_of
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer, Prepared, Turn
from arr_coc.types.budget import limits
from arr_coc.types.question import STOP_WORDS, check_question, check_question_tokens, subject
from arr_coc.vlm import generation, prompt, stages
from arr_coc.vlm.looking_again import check_sure, look_again
from arr_coc.vlm.request import SelectionRequest

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

MAX_TURNS = 50  # of a conversation whose earlier turns are read
REBUILT = 1024  # tokens of a pruned conversation up to which it is read again rather than extended
HISTORIES = ("all", "cells", "none")
ABOUT_THE_ANSWER = {
    "again", "answer", "certain", "check", "closer", "confident", "correct", "explain", "look", "more", "please", "really", "right",
    "sure", "then", "true", "why", "wrong", "yes", "no",
}  # words of questions that doubt the last answer, and name nothing on the picture  # fmt: skip
CACHES = ("auto", "extend", "rebuild")


@dataclass(frozen=True, eq=False)
class Dense:
    """The conversation up to the new question, with every visual token."""

    messages: tuple[Message, ...]
    prompt: str
    ids: torch.Tensor  # [1, T]
    cached: int  # how many of the cache's first entries it can continue from


@dataclass(frozen=True, eq=False)
class Chosen:
    """The cells that the language model reads from now on."""

    context: stages.PromptContext
    read: tuple[Encoded, ...]  # of each visual, the features of all of them
    fresh: tuple[Encoded, ...]  # of each visual, the features of those that are new
    allocations: tuple[Allocation, ...]

    @property
    def added(self) -> int:
        return sum(len(one.cells) for one in self.fresh)


def ask_after(
    vlm: VLM,
    answer: Answer,
    images: Any,
    question: str | Sequence[str],
    given: Mapping[str, Any],
    history: str | None,
    cache: str,
    remember: bool | None,
    sure: float | None,
    options: Mapping[str, Any],
    refuse: str,
) -> Answer:
    """`VLM.ask` after an answer. `given`: its arguments about pictures and cells that differ from their defaults."""
    kept = answer.turn.shown.look if isinstance(answer, Answer) and answer.turn is not None else None
    if (images is not None and images is not kept) or not isinstance(question, str):
        raise PromptError(
            "a follow-up is one question about the same pictures: pass None as the image, or leave after out to ask "
            "about another picture"
        )
    if sure is not None:
        check_sure(sure, vlm.adapter, options)
    if late := sorted(given.keys() - SelectionRequest.__dataclass_fields__.keys()):
        raise PromptError(f"a follow-up is about the same pictures: {', '.join(late)} cannot change now")
    selection = {**given, **{name: selector_of(given[name]) for name in given.keys() & {"selector", "glance_selector"}}}

    def read(**wider: Any) -> Answer:
        return follow_up(vlm, answer, question, {**selection, **wider}, history, cache, remember, options, refuse)

    found = read()
    if sure is None:
        return found
    if selection.get("allocation") is not None:
        raise PromptError("expected sure or an allocation, got both: given cells leave nothing to look at again")
    asked = None if found.turn is None else found.turn.shown.request
    return look_again(found, sure, False, asked, lambda budget: read(budget=budget, shared=False))


def follow_up(
    vlm: VLM,
    answer: Answer,
    question: str,
    selection: Mapping[str, Any],
    history: str | None,
    cache: str,
    remember: bool | None,
    options: Mapping[str, Any],
    refuse: str = "auto",
) -> Answer:
    """The next question of a conversation. `selection`: the arguments of `ask` about cells that were given this time."""
    turn = _continuable(vlm, answer)
    vague = not _names_something(check_question(question)) and bool(turn.shown.about)
    if history not in (None, *HISTORIES):
        raise PromptError(f"expected history as one of {', '.join(HISTORIES)}, got {history!r}")
    if cache not in CACHES:
        raise PromptError(f"expected cache as one of {', '.join(CACHES)}, got {cache!r}")
    beams, options = _check_options(vlm.adapter, options)
    watch = Stopwatch(vlm.device)
    with torch.no_grad():
        read = history or vlm.history
        if read != "all" and vague:
            question = turn.shown.about  # without the earlier turns, that is what the model can be asked
        dense = _dense(vlm, turn, question, read)
        about = turn.shown.about if vague else question
        chosen = _choose(vlm, turn, answer, dense, about, vague, read == "none", selection, watch)
        prepared = _prepare(vlm.adapter, turn, dense, chosen, cache, beams, watch)
    shown = replace(
        turn.shown, ids=dense.ids, read=chosen.read, request=_request(turn.shown.request, selection),
        about=turn.shown.about if vague else question, turns=turn.shown.turns + 1,
    )  # fmt: skip
    prepared = replace(
        prepared, allocations=chosen.allocations, messages=(dense.messages,), texts=(dense.prompt,), timings=watch,
        shown=lambda: shown, about=lambda row: prompt.selections(chosen.context, row),
    )  # fmt: skip
    if remember is None:
        remember = not generation.not_rememberable(vlm.adapter, prepared, options)
    return generation.generate(
        vlm.adapter, vlm.prompter, prepared, None, remember, options, vlm.calibration, refuse=refuse
    )[0]


def _continuable(vlm: VLM, answer: Answer) -> Turn:
    """The state to continue from; raises where there is none, or the model is not the one that computed it."""
    adapter = vlm.adapter
    if not isinstance(answer, Answer):
        raise PromptError(
            f"expected after= as an answer of this model's ask(..., remember=True), got {type(answer).__name__}"
        )
    turn = answer.turn
    if turn is None:
        raise PromptError("cannot continue this answer: call ask(..., remember=True)")
    if turn.shown.look.model is not adapter.model:
        raise PromptError("cannot continue this answer: it came from another model: ask that one, or ask again")
    if turn.ids.device != adapter.device:
        raise PromptError(
            f"cannot continue this answer: the model was moved from {turn.ids.device} to {adapter.device} after it, and "
            "its cache was not: ask again"
        )
    if (now := weights_state(adapter.model)) != turn.weights:
        raise PromptError(
            f"cannot continue this answer: its cache was computed with {turn.weights}, and now the model has {now}: "
            "switch back, or ask again"
            if turn.weights.adapters != now.adapters
            else "cannot continue this answer: the model's weights changed after it, so its cache is of another model: "
            "ask again"
        )
    if vlm.prompter.ending:
        raise PromptError(f"cannot continue this answer: the processor ends every prompt with {vlm.prompter.ending!r}")
    return turn


def _check_options(adapter: Adapter, options: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """The number of beams, and the options for a follow-up; raises for those that cannot continue a cache."""
    plain = {"num_return_sequences": 1, "use_cache": True, "cache_implementation": "dynamic"}
    for name in (*plain, "assistant_model", "prompt_lookup_num_tokens"):
        value = adapter.generation_option(options, name)
        if value is not None and value != plain.get(name):
            wanted = f"{name}={plain[name]!r}" if name in plain else f"no {name}"
            raise PromptError(f"a follow-up continues the cache of one answer: expected {wanted}, got {value!r}")
    if adapter.generation_option(options, "cache_implementation") is not None:
        options = {**options, "cache_implementation": None}  # `generate` takes it without a cache only
    return int(adapter.generation_option(options, "num_beams") or 1), options


def _dense(vlm: VLM, turn: Turn, question: str, history: str) -> Dense:
    """The conversation with the new question: after all earlier turns, or after the pictures alone."""
    prompter, look = vlm.prompter, turn.shown.look
    if history != "all":
        system = [message for message in turn.messages if message["role"] == "system"]
        said = (*system, user_message(question, len(look.images[0]), len(look.videos[0])))
        text = prompter.render(said)
        ids = prompter.tokenize([text], look.vision)["input_ids"]
        check_question_tokens(len(prompter.ids(question)), vlm.adapter.max_positions)
        return Dense(said, text, ids, _shared_entries(vlm.adapter, turn, ids) if history == "cells" else 0)
    if turn.shown.turns >= MAX_TURNS:
        raise PromptError(
            f"expected a conversation of at most {MAX_TURNS} turns, got one more: ask about the picture again, or pass "
            "history='cells', with which the text of earlier turns is not read"
        )
    said = (*turn.messages, user_message(question, 0, 0))
    text = prompter.render(said)
    if not text.startswith(turn.prompt):
        raise PromptError("cannot continue this answer: the model's chat template rewrites earlier turns")
    tail = prompter.ids(text[len(turn.prompt) :])[None]
    check_question_tokens(tail.shape[1], vlm.adapter.max_positions)
    length, limit = turn.ids.shape[1] + tail.shape[1], vlm.adapter.max_positions
    if limit is not None and length > limit:
        raise PromptError(
            f"expected a conversation of at most {limit:,} tokens, which this model reads, got {length:,}: ask about the "
            "picture again, or pass history='cells', with which the text of earlier turns is not read"
        )
    return Dense(said, text, torch.cat([turn.shown.ids, tail], 1), turn.entries)


def _shared_entries(adapter: Adapter, turn: Turn, ids: torch.Tensor) -> int:
    """How many first entries of the cache a prompt with the same pictures can start from: those up to the last picture.

    The text after it is read again, because it has to see the new cells; 0 if the entries are not the cache's first.
    """
    visual = torch.isin(ids[0], torch.tensor(list(adapter.token_ids.values()))).nonzero()
    length = min(ids.shape[1], turn.shown.ids.shape[1], int(visual[-1]) + 1 if len(visual) else 0)
    same = int((ids[0, :length] == turn.shown.ids[0, :length]).long().cumprod(0).sum())
    shared = turn.source[0, : turn.entries] < same
    count = int(shared.sum())
    return count if bool(shared[:count].all()) else 0


def _choose(
    vlm: VLM,
    turn: Turn,
    answer: Answer,
    dense: Dense,
    question: str,
    vague: bool,
    alone: bool,
    selection: Mapping[str, Any],
    watch: Stopwatch,
) -> Chosen:
    """Choose cells for a question from the look that is kept, and add them to those that were read.

    `vague`: it is the question before, because the new one names nothing. `alone`: cells of earlier turns are not read.
    """
    shown, before = turn.shown, answer.allocations
    request = _request(shown.request, selection)
    tokens = {"input_ids": dense.ids, "attention_mask": torch.ones_like(dense.ids)}
    context = replace(
        prompt.context(vlm, request, shown.look, tokens, [question], watch),
        reused=True,
        conversations=(dense.messages,),
        prompts=(dense.prompt,),
    )
    complete = all(len(read.cells) == visual.n for read, visual in zip(shown.read, context.visuals, strict=True))
    if (complete and not alone) or (request.budget == 0 and request.allocation is None):
        none = tuple(replace(read, cells=read.cells[:0]) for read in shown.read)
        kept = tuple(
            replace(
                allocation,
                earlier=_seen(allocation),
                confidence=allocation.confidence if vague or len(allocation.keep) == allocation.n else None,
            )
            for allocation in before
        )  # the cells were chosen for the question before
        return Chosen(context, shown.read, none, kept)
    if vague:
        context = _look_again(context, turn, answer)
    plan = stages.glance(context)
    if plan.downscale:
        raise SelectorError(
            f"selector {request.selector.name!r} reads another, smaller picture: expected one that keeps cells"
        )
    result = stages.gaze(context, plan, stages.encode(context, plan))
    known = [allocation.keep[: 0 if alone else None] for allocation in before]
    fresh = prompt.read_features(
        result, [new.keep[~torch.isin(new.keep, old)] for new, old in zip(result.allocations, known, strict=True)]
    )
    read = fresh if alone else tuple(_joined(old, new) for old, new in zip(shown.read, fresh, strict=True))
    allocations = tuple(
        replace(
            new,
            keep=whole.cells,
            encoded=torch.cat([new.encoded, old.encoded]).unique(),
            earlier=_seen(old),
            read=None if new.read is None else new.read - new.k + len(whole.cells),
        )
        for new, old, whole in zip(result.allocations, before, read, strict=True)
    )
    return Chosen(context, read, fresh, allocations)


def _seen(allocation: Allocation) -> torch.Tensor:
    """The cells that a turn and those before it read."""
    return allocation.keep if allocation.earlier is None else torch.cat([allocation.keep, allocation.earlier]).unique()


def _names_something(question: str) -> bool:
    """Whether a follow-up says by itself what it is about.

    >>> [_names_something(question) for question in ("Are you really sure?", "And why?", "And the date?")]
    [False, False, True]
    """
    return any(word not in STOP_WORDS and word not in ABOUT_THE_ANSWER for word in subject(question).split())


def _look_again(context: stages.PromptContext, turn: Turn, answer: Answer) -> stages.PromptContext:
    """The context of a question that names nothing: what was read is not counted, and the textures get the memory of the turn."""
    request, sources = context.request, list(context.sources)
    counts = [bound.k for bound in limits(request.budget, context.visuals, "budget", request.shared)]
    if None not in counts:
        read = [len(one.cells) for one in turn.shown.read]
        wider = [min(visual.n, have + (k or 0)) for visual, have, k in zip(context.visuals, read, counts, strict=True)]
        request = replace(request, budget=wider, shared=False)
    attention = _attention(context, turn, len(answer.ids))
    for number, (visual, before) in enumerate(zip(context.visuals, answer.allocations, strict=True)):
        source, views = sources[number], visual.grid.views
        if source is None or visual.kind != "image" or len(views) != 1:
            continue  # memory is a map of one picture
        maps = {"previous_attention": attention[number]} | (
            {} if before.relevance is None else {"previous_relevance": before.relevance.clamp(0, 1)}
        )
        sources[number] = source.supply({name: one.view(views[0].h, views[0].w) for name, one in maps.items()})
    return replace(context, request=request, sources=sources)


def _attention(context: stages.PromptContext, turn: Turn, length: int) -> list[torch.Tensor]:
    """The attention of the last answer's `length` tokens to each visual's cells, spread to their neighbours: `[N]` each."""
    adapter, visuals, read = context.adapter, context.visuals, turn.shown.read
    if length == 0 or not visuals:
        return [torch.zeros(visual.n) for visual in visuals]
    ids = turn.shown.ids
    inputs = {**context.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with context.watch.stage("probe"):
        packed, kept = assemble(adapter, inputs, visuals, read, [one.cells for one in read])
        last = packed.input_ids.shape[1]
        queries = torch.arange(last - length - 1, last - 1, device=adapter.device)
        found = mean_attention(
            attention_maps(adapter, model_kwargs(adapter, packed, kept), late_layers(adapter), queries)
        )
    maps = []
    for visual, one in zip(visuals, read, strict=True):
        cells = torch.zeros(visual.n)
        cells[one.cells] = found[torch.searchsorted(packed.source[0], visual.cell_places[one.cells])]
        maps.append(scale_to_max(blur_along_rows(cells, visual.grid)))
    return maps


def _request(before: SelectionRequest, given: Mapping[str, Any]) -> SelectionRequest:
    """The request of a follow-up: what is left out is as before, apart from given cells and a gaze."""
    changes: dict[str, Any] = {"allocation": None, "gaze": None, **given}
    if given.get("allocation") is not None:
        changes = {"budget": "auto", "glance": "auto", **changes}
    if "selector" in given and "glance_selector" not in given:
        changes["glance_selector"] = given["selector"]
    request = replace(before, **changes)
    if request.selector.depths:
        raise SelectorError(
            f"selector {request.selector.name!r} works inside the language model, and a follow-up continues its cache: "
            "choose another"
        )
    return request


def _joined(old: Encoded, new: Encoded) -> Encoded:
    """The features of two disjoint sets of cells of one visual, as one."""
    if len(new.cells) == 0:
        return old
    cells, order = torch.cat([old.cells, new.cells]).sort()
    order = to_device(order, old.tokens.device)
    parts = zip(old.deep, new.deep, strict=True)
    return Encoded(
        cells,
        torch.cat([old.tokens, new.tokens])[order],
        tuple(torch.cat([first, second])[order] for first, second in parts),
        old.extra,
    )


def _prepare(
    adapter: Adapter, turn: Turn, dense: Dense, chosen: Chosen, cache: str, beams: int, watch: Stopwatch
) -> Prepared:
    """The model's arguments: the old cache and the rest, the extended one and the rest, or everything read again."""
    inputs, visuals = chosen.context.inputs, chosen.context.visuals
    whole = dense.cached == turn.entries
    covered = dense.cached and all(
        bool(torch.isin(visual.cell_places[read.cells], turn.source[0, : dense.cached]).all())
        for visual, read in zip(visuals, turn.shown.read, strict=True)
    )
    # A state or a window cannot go back to an earlier token; a shared start without the pictures is not worth keeping.
    continues = bool(covered) and (whole or adapter.extends)
    if cache == "extend" and not (continues and (adapter.extends or not chosen.added)):
        raise PromptError(
            f"expected cache='rebuild' or 'auto' for {adapter.family} here, got 'extend': a token's place in its cache counts"
        )
    short = dense.cached + chosen.added <= REBUILT
    rebuild = cache == "rebuild" or (cache == "auto" and chosen.added > 0 and (short or not adapter.extends))
    if rebuild or not continues:
        with watch.stage("assemble"):
            keeps = [read.cells for read in chosen.read]
            packed, kept = assemble(adapter, inputs, visuals, chosen.read, keeps)
        return _prepared(lambda: model_kwargs(adapter, packed, kept), packed.source, visuals, chosen.read)
    ids, positions, source = (part[..., : dense.cached] for part in (turn.ids, turn.positions, turn.source))
    state = copy.deepcopy(turn.cache)  # `generate` writes to it, and other follow-ups may start from the same answer
    if not whole:
        state.crop(dense.cached - int(state.get_seq_length()))
    unread = torch.ones(dense.ids.shape[1], dtype=torch.bool)
    for places in (source[0], *(visual.cell_places for visual in visuals)):
        unread[places] = False
    where = adapter.positions(inputs)
    if chosen.added:
        with watch.stage("prefill"):
            places = _extend(adapter, chosen, where, ids, source, state)
        ids = torch.cat([ids, inputs["input_ids"][:, places].to(ids)], 1)
        positions = torch.cat([positions, where[..., places].to(positions)], -1)
        source = torch.cat([source, places[None]], 1)
    rest = unread.nonzero()[:, 0]  # text only
    ids = torch.cat([ids, inputs["input_ids"][:, rest].to(ids)], 1)
    positions = torch.cat([positions, where[..., rest].to(positions)], -1)
    source = torch.cat([source, rest[None]], 1)
    if beams > 1:
        state.batch_repeat_interleave(beams)
    made = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions, "past_key_values": state
    }  # fmt: skip
    return _prepared(lambda: made, source, visuals, chosen.read)


def _prepared(make: Any, source: torch.Tensor, visuals: Sequence[Visual], read: Sequence[Encoded]) -> Prepared:
    places = tuple(visual.cell_places[one.cells] for visual, one in zip(visuals, read, strict=True))
    return Prepared(make, source.shape[1], (), source, places)


def _extend(
    adapter: Adapter, chosen: Chosen, where: torch.Tensor, ids: torch.Tensor, source: torch.Tensor, state: Any
) -> torch.Tensor:
    """Append the new cells to the cache `state`; returns their places in the dense conversation, rising."""
    visuals = chosen.context.visuals
    parts = [(visual, one) for visual, one in zip(visuals, chosen.fresh, strict=True) if len(one.cells)]
    places = torch.cat([visual.cell_places[one.cells] for visual, one in parts])  # rising: visuals are in prompt order
    kept: dict[str, list[Features]] = {}
    for visual, one in parts:
        kept.setdefault(visual.kind, []).append((one.tokens, one.deep))
    features = {kind: [_stacked(rows)] for kind, rows in kept.items()}
    given: Inputs = chosen.context.inputs
    tokens = given["input_ids"][:, places].to(ids)
    keys = torch.cat([source[0], places])
    seen = keys[None] <= places[:, None]  # in the dense conversation, what comes before a cell, and itself
    dtype = adapter.model.get_input_embeddings().weight.dtype
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    adapter.model(
        input_ids=tokens,
        attention_mask=mask[None, None].to(ids.device),
        position_ids=where[..., places].to(ids.device),
        past_key_values=state,
        use_cache=True,
        logits_to_keep=1,
        mm_encoder_outputs=adapter.encoder_outputs(features),
        **adapter.token_kwargs(tokens),
    )
    return places


def _stacked(rows: Sequence[Features]) -> Features:
    tokens, deep = zip(*rows, strict=True)
    return torch.cat(tokens), tuple(torch.cat(levels) for levels in zip(*deep, strict=True))
