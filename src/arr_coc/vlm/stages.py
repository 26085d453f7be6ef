"""From pictures and a question to kept cells: glance, encode, gaze, for every picture of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from arr_coc.adapters.attention_probe import probe_layers, prompt_attention
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import SelectorError
from arr_coc.layer.inference import Judgement, judged
from arr_coc.layer.model import ArrCocLayer
from arr_coc.selectors import Choice, Sight, Smaller, Words
from arr_coc.selectors.coupling import couple
from arr_coc.timing import Stopwatch
from arr_coc.types.allocation import Allocation
from arr_coc.types.budget import Limit, divide
from arr_coc.vlm import fallback as choosing
from arr_coc.vlm import request as wishes
from arr_coc.vlm.look import Encoding, Look, Source
from arr_coc.vlm.request import Wish

CACHED_ENCODINGS = 4  # of one look
SEED_STEP = 7919  # between the pictures of a row, so that equal grids do not draw equal lots


@dataclass(eq=False)
class Looked:
    """Every picture's kept cells, and the encoder's tokens for them."""

    visuals: list[Visual]
    encoded: list[Encoded]
    allocations: list[Allocation]
    replaced: list[torch.Tensor | None]

    @property
    def keeps(self) -> list[torch.Tensor]:
        return [allocation.keep for allocation in self.allocations]


@dataclass(eq=False)
class Shrink:
    """A selector wants some pictures smaller, and what is to be done with them then."""

    cells: dict[int, int] = field(default_factory=dict)  # place in the list of pictures -> cells, at most
    limits: list[Limit] | None = None  # what to keep of the smaller pictures; None: all of their cells
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Scene:
    """The pictures of a prompt with everything that a selector may want to know about them."""

    adapter: Adapter
    inputs: Inputs
    visuals: list[Visual]
    sources: Sequence[Source | None]
    words: Sequence[Words]  # each row's question
    wish: Wish
    watch: Stopwatch
    seen: Look | None = None  # where an encoding may be kept for the next question
    scouted: dict[int, float] = field(
        default_factory=dict
    )  # picture -> cells that a language layer has read on average

    def sight(
        self, number: int, bound: Limit, seen: Encoded | None = None, everything: Sequence[Encoded] = ()
    ) -> Sight:
        """What is known about a picture: before the encoder, or with its answer (and that for all pictures)."""
        visual, source = self.visuals[number], self.sources[number]
        place = sum(other.row == visual.row for other in self.visuals[:number])
        known: dict[str, Any] = {}
        if seen is not None:
            known = {"tokens": seen.tokens, "attention": seen.attention}
            known["send"] = partial(self.scout, number, everything)
        return Sight(
            visual.grid, bound.k, torch.arange(visual.n) if seen is None else seen.cells, self.words[visual.row],
            picture=None if source is None else lambda: source.texture(self.watch),
            couple=None if source is None or source.embeddings is None else partial(self.couple, source.embeddings),
            learned=None if source is None or self.adapter.layer is None else partial(self.judge, self.adapter.layer),
            kind=visual.kind, seed=self.wish.seed + SEED_STEP * place, mass=bound.mass, **known,
        )  # fmt: skip

    def scout(
        self, number: int, encoded: Sequence[Encoded], cells: torch.Tensor, depths: tuple[float, ...]
    ) -> torch.Tensor:
        """What the language model looks for among some cells of a picture: `[K]`."""
        layers = len(self.adapter.text_model.layers)
        self.scouted[number] = self.scouted.get(number, 0.0) + len(cells) * probe_layers(depths, layers)[-1] / layers
        with self.watch.stage("scout"):
            return prompt_attention(self.adapter, self.inputs, self.visuals, encoded, number, cells, depths)

    def judge(self, layer: ArrCocLayer, sight: Sight) -> Judgement:
        """What the layer that was trained for the model says about the candidates."""
        with self.watch.stage("judge"):
            if layer.mean.device != self.adapter.device:  # the model has moved since
                layer.to(self.adapter.device)
            return judged(layer, sight)

    def couple(self, embeddings: Embeddings, sight: Sight) -> torch.Tensor:
        """What the question has in common with each candidate: `[M]`."""
        with self.watch.stage("embed"):
            return couple(embeddings, sight)


def look_at(scene: Scene, shrunk: Shrink | None = None) -> Looked | Shrink:
    """All stages for all pictures of a batch; `shrunk`: they were made smaller as a selector wished."""
    wish, visuals = scene.wish, scene.visuals
    given = wishes.given(wish.allocation, visuals)
    limits = wishes.limits(wish.budget, visuals, "budget", wish.shared) if shrunk is None else _after(shrunk, visuals)
    reasons = [""] * len(visuals) if shrunk is None else shrunk.reasons
    notes = [[] if not bound.note else [bound.note] for bound in limits]
    choices: list[Choice] | None = None  # once the cells to keep are known
    cells: list[torch.Tensor] | None = None  # to encode; None: all
    if given is not None:
        choices = [Choice(keep) for keep, _ in given]
        cells = [encode for _, encode in given]
    elif shrunk is None:
        answer = _glance(scene, limits, reasons, notes)
        if isinstance(answer, Shrink):
            return answer
        if answer is not None:
            cells = [choice.keep for choice in answer]
            choices = answer if wish.selector.early else None
    gazing = choices is None and not all(bound.everything for bound in limits)
    encoded = _handed_on(scene, _encode(scene, cells, wish.selector.attention_at if gazing else ()))
    if gazing:
        with scene.watch.stage("gaze"):
            choices = _gaze(scene, encoded, limits, reasons)
    elif choices is None:
        choices = [Choice(seen.cells) for seen in encoded]
    name = "given" if given is not None else wish.selector.name
    allocations = []
    for number, (choice, seen, bound) in enumerate(zip(choices, encoded, limits, strict=True)):
        if given is None and bound.k is not None and len(seen.cells) < bound.k < bound.n:
            notes[number].append(
                f"budget of {bound.k} cells is more than the {len(seen.cells)} encoded ones: all of these are kept"
            )
        allocations.append(_allocation(scene, number, choice, seen, name, reasons[number], notes[number]))
    return Looked(visuals, encoded, allocations, [choice.features for choice in choices])


def _after(shrunk: Shrink, visuals: list[Visual]) -> list[Limit]:
    """What to keep of pictures that were made smaller: as many cells as of the large ones, or all."""
    if shrunk.limits is None:
        return [Limit(visual.n, visual.n, note) for visual, note in zip(visuals, shrunk.notes, strict=True)]
    return [
        replace(bound, n=visual.n, k=None if bound.k is None else min(bound.k, visual.n), note=bound.note or note)
        for visual, bound, note in zip(visuals, shrunk.limits, shrunk.notes, strict=True)
    ]


def _glance(
    scene: Scene, limits: list[Limit], reasons: list[str], notes: list[list[str]]
) -> list[Choice] | Shrink | None:
    """What to encode of each picture; None: everything."""
    wish = scene.wish
    if wish.selector.early:  # it re-encodes: its budget decides before the encoder
        bounds, selector = limits, wish.selector
    else:
        bounds, selector = wishes.limits(wish.glance, scene.visuals, "glance", False), wish.glance_selector
        for number, bound in enumerate(bounds):
            notes[number] += [bound.note] if bound.note else []
    if all(bound.everything for bound in bounds):
        return None
    open_ = all(bound.k is None and bound.mass is None for bound in bounds)
    if open_ and not wish.selector.early and not (scene.adapter.glances and selector.glances):
        return None  # nobody can choose
    if not scene.adapter.glances and not wish.selector.early:
        raise SelectorError(f"{scene.adapter.family} encodes whole pictures only: leave glance out and set a budget")
    with scene.watch.stage("glance"):
        answers: list[Choice | Smaller] = []
        for number, bound in enumerate(bounds):
            answer, reasons[number] = choosing.glance(selector, scene.sight(number, bound))
            answers.append(answer)
    if not any(isinstance(answer, Smaller) for answer in answers):
        return [answer for answer in answers if isinstance(answer, Choice)]
    if any(visual.kind != "image" for visual in scene.visuals):
        raise SelectorError(f"selector {selector.name!r} re-encodes images, not videos")
    shrink = Shrink(limits=None if wish.selector.early else limits, reasons=reasons)
    for number, (answer, bound) in enumerate(zip(answers, bounds, strict=True)):
        if isinstance(answer, Smaller):
            shrink.cells[number] = answer.cells
        elif reasons[number]:  # the selector failed on this one: as small as the others may be
            shrink.cells[number] = bound.k if bound.k is not None else scene.visuals[number].n
        else:
            raise SelectorError(
                f"selector {selector.name!r} wants some pictures smaller and cells of others: expected one of both"
            )
    return shrink


def _gaze(scene: Scene, encoded: list[Encoded], limits: list[Limit], reasons: list[str]) -> list[Choice]:
    """What to keep of each picture."""
    ks = [bound.k for bound in limits]
    if scene.wish.shared:
        ks = _shared(scene, encoded, limits, reasons)
    choices = []
    for number, (bound, k, seen) in enumerate(zip(limits, ks, encoded, strict=True)):
        choice, why = choosing.gaze(scene.wish.selector, scene.sight(number, replace(bound, k=k), seen, encoded))
        reasons[number] = "; ".join(part for part in (reasons[number], why) if part)
        choices.append(choice)
    return choices


def _shared(scene: Scene, encoded: list[Encoded], limits: list[Limit], reasons: list[str]) -> list[int | None]:
    """Each row's budget divided among its pictures: by relevance where the selector has one, else by their sizes."""
    ks: list[int | None] = [bound.k for bound in limits]
    for members in wishes.rows(scene.visuals):
        total = sum(limits[i].k or 0 for i in members)
        worth: list[torch.Tensor | None] = []
        for i in members:
            sight = scene.sight(i, limits[i], encoded[i], encoded)
            values, why = choosing.relevance(scene.wish.selector, sight)
            reasons[i] = "; ".join(part for part in (reasons[i], why) if part)
            worth.append(values)
        sizes = [len(encoded[i].cells) for i in members]
        known = [values for values in worth if values is not None]
        if len(known) == len(members):
            owner = torch.repeat_interleave(torch.arange(len(members)), torch.tensor(sizes))
            best = torch.cat(known).argsort(descending=True, stable=True)[:total]
            quotas = torch.bincount(owner[best], minlength=len(members)).tolist()
        else:
            quotas = divide(total, sizes)
        for i, quota in zip(members, quotas, strict=True):
            ks[i] = quota
    return ks


def _encode(scene: Scene, cells: list[torch.Tensor] | None, depths: Sequence[float]) -> list[Encoded]:
    """The encoder's tokens in the form in which they are kept, from the look's memory where it has them."""
    if not scene.visuals:
        return []
    medium = scene.adapter.medium

    def encode(wanted: Sequence[float]) -> list[Encoded]:
        with scene.watch.stage("encode"):
            found = scene.adapter.encode(scene.inputs, scene.visuals, cells, wanted)
            if medium is None:
                return found
            return [medium.store(visual, one) for visual, one in zip(scene.visuals, found, strict=True)]

    seen = scene.seen
    if seen is None or torch.is_grad_enabled():  # a graph is not kept for others
        return encode(depths)
    weights = scene.adapter.model.get_input_embeddings().weight
    chosen = None if cells is None else tuple(some.numpy().tobytes() for some in cells)
    key = (chosen, weights.dtype, weights.device, None if medium is None else medium.key)
    known = seen.encoded.get(key)
    if known is None or not set(depths) <= known.depths:
        wanted = set(depths) | set(seen.attention_at) | (known.depths if known is not None else set())
        while len(seen.encoded) >= CACHED_ENCODINGS:
            seen.encoded.pop(next(iter(seen.encoded)))
        known = seen.encoded[key] = Encoding(encode(tuple(sorted(wanted))), frozenset(wanted))
    return list(known.tokens)


def _handed_on(scene: Scene, stored: list[Encoded]) -> list[Encoded]:
    """What selectors and the language model see of what is kept."""
    medium = scene.adapter.medium
    if medium is None:
        return stored
    with scene.watch.stage("assemble"):
        return [medium.hand_on(one) for one in stored]


def _allocation(
    scene: Scene, number: int, choice: Choice, seen: Encoded, name: str, why: str, notes: list[str]
) -> Allocation:
    visual, source = scene.visuals[number], scene.sources[number]
    return Allocation(
        grid=visual.grid,
        keep=choice.keep,
        encoded=seen.cells,
        selector=name,
        size=None if source is None else source.size,
        kind=visual.kind,
        row=visual.row,
        relevance=choice.relevance,
        scores=choice.scores,
        tensions=choice.tensions,
        strategy=choice.strategy or name,
        fallback=why,
        notes=(*(() if source is None else source.notes), *notes),
        read=len(choice.keep) + scene.scouted[number] if number in scene.scouted else None,
    )
