"""From pictures and words to a pruned prompt: what stands between a question and the model's `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from arr_coc.adapters import assembly, sources
from arr_coc.adapters.base import Adapter, Inputs, Visual
from arr_coc.adapters.packing import Packed, padded
from arr_coc.adapters.prompts import Message, Prompter, Vision
from arr_coc.allocation import Allocation
from arr_coc.answer import Prepared
from arr_coc.errors import PromptError, SelectorError
from arr_coc.look import Look, Source
from arr_coc.looking import Looked, Shrink, Wish, look_at
from arr_coc.selectors import Words
from arr_coc.stopwatch import Stopwatch

Talk = Sequence[Message]
SHRINK_TRIES = 6  # processors round sizes to whole cells, so the first try may give too many


@dataclass(frozen=True, eq=False)
class Draft:
    """One or several rows of a prompt, pruned."""

    packed: Packed
    kept: assembly.Kept
    allocations: tuple[Allocation, ...]
    places: tuple[torch.Tensor, ...]  # each allocation's kept cells [K] in the dense prompt
    talks: tuple[tuple[Message, ...], ...] = ()
    prompts: tuple[str, ...] = ()

    def prepared(self, adapter: Adapter, timings: Mapping[str, float]) -> Prepared:
        return Prepared(
            make=lambda: assembly.keywords(adapter, self.packed, self.kept),
            names=tuple(assembly.keywords(adapter, self.packed, self.kept)),
            length=self.packed.input_ids.shape[1],
            allocations=self.allocations,
            source=self.packed.source,
            places=self.places,
            timings=timings,
            messages=self.talks,
            texts=self.prompts,
        )


def look(
    prompter: Prompter, images: Sequence[Sequence[Any]], videos: Sequence[Sequence[Any]], fps: float, watch: Stopwatch
) -> Look:
    """Every row's pictures through the processor."""
    with watch.stage("preprocess"):
        still = tuple(tuple(sources.image_source(image) for image in row) for row in images)
        moving = tuple(tuple(sources.video_source(video) for video in row) for row in videos)
        return Look(_vision(prompter, still, moving, fps), still, moving, fps)


def draft(
    adapter: Adapter, prompter: Prompter, seen: Look, texts: Sequence[str], talks: Sequence[Talk], wish: Wish,
    watch: Stopwatch,
) -> Draft:  # fmt: skip
    """Rows of questions about the pictures of a look, one row of pictures for each."""
    with watch.stage("preprocess"):
        prompts = [
            text if prompter.holds_pictures(text) else prompter.render(talk)
            for text, talk in zip(texts, talks, strict=True)
        ]
        words = [Words(text, prompter.ids(text), adapter.embed) for text in texts]
        inputs: Inputs = prompter.tokens(prompts, seen.vision) | seen.vision.tensors
        visuals = adapter.visuals(inputs, seen.sizes())
        origins = [seen.sources(visual.kind)[visual.number] for visual in visuals]
    looked = look_at(adapter, inputs, visuals, origins, words, wish, watch, seen)
    if isinstance(looked, Shrink):
        with watch.stage("preprocess"):
            inputs, visuals, notes = _shrunk(adapter, prompter, seen, prompts, visuals, looked.cells)
        looked = look_at(adapter, inputs, visuals, origins, words, wish, watch, shrunk=notes)
    return _assembled(adapter, inputs, looked, watch, talks, prompts)


def draft_inputs(
    adapter: Adapter, prompter: Prompter | None, inputs: Mapping[str, Any], wish: Wish, watch: Stopwatch
) -> Draft:
    """A processor's output, whose pictures are not at hand any more."""
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), torch.Tensor):
        raise PromptError("expected a processor's output with input_ids as a tensor")
    # All but the pixels is worked out on the CPU, beside the accelerator instead of in its way.
    given = {
        name: value.cpu() if isinstance(value, torch.Tensor) and name not in adapter.pixel_keys else value
        for name, value in inputs.items()
    }
    given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    visuals = adapter.visuals(given)
    spoken = given["attention_mask"].bool().clone()
    for visual in visuals:
        spoken[visual.row, visual.places] = False
    words = [
        Words("" if prompter is None else prompter.text(ids[real]), ids[real], adapter.embed)
        for ids, real in zip(given["input_ids"], spoken, strict=True)
    ]
    looked = look_at(adapter, given, visuals, [None] * len(visuals), words, wish, watch)
    if isinstance(looked, Shrink):
        raise SelectorError(f"selector {wish.selector.name!r} re-encodes pictures, so it needs them, not model inputs")
    return _assembled(adapter, given, looked, watch, (), ())


def batch(adapter: Adapter, drafts: Sequence[Draft]) -> Draft:
    """Rows that were drafted one by one, as one batch."""
    if len(drafts) == 1:
        return drafts[0]
    kept: assembly.Kept = {}
    for one in drafts:
        for kind, rows in one.kept.items():
            kept.setdefault(kind, []).extend(rows)
    return Draft(
        packed=padded([one.packed for one in drafts], adapter.pad_token),
        kept=kept,
        allocations=tuple(replace(a, row=number) for number, one in enumerate(drafts) for a in one.allocations),
        places=tuple(places for one in drafts for places in one.places),
        talks=tuple(talk for one in drafts for talk in one.talks),
        prompts=tuple(prompt for one in drafts for prompt in one.prompts),
    )


def _assembled(
    adapter: Adapter, inputs: Inputs, looked: Looked | Shrink, watch: Stopwatch, talks: Sequence[Talk],
    prompts: Sequence[str],
) -> Draft:  # fmt: skip
    assert isinstance(looked, Looked)
    with watch.stage("assemble"):
        packed, kept = assembly.assemble(adapter, inputs, looked.visuals, looked.encoded, looked.keeps, looked.replaced)
    places = tuple(visual.cell_places[keep] for visual, keep in zip(looked.visuals, looked.keeps, strict=True))
    allocations = tuple(looked.allocations)
    return Draft(packed, kept, allocations, places, tuple(tuple(talk) for talk in talks), tuple(prompts))


def _shrunk(
    adapter: Adapter,
    prompter: Prompter,
    seen: Look,
    prompts: Sequence[str],
    visuals: Sequence[Visual],
    cells: dict[int, int],
) -> tuple[Inputs, list[Visual], list[str]]:
    """Inputs with smaller pictures, none of more cells than wished for (by the visual's place in the list)."""
    scale = dict.fromkeys(cells, 1.0)
    for _ in range(SHRINK_TRIES):
        smaller = {
            visuals[i].number: sources.smaller(
                seen.sources("image")[visuals[i].number], scale[i] * cells[i] / visuals[i].n
            )
            for i in cells
        }
        vision = _vision(prompter, _replaced(seen.images, smaller), seen.videos, seen.fps)
        inputs: Inputs = prompter.tokens(prompts, vision) | vision.tensors
        made = adapter.visuals(inputs, seen.sizes())
        above = [i for i, count in cells.items() if made[i].n > count]
        if not above:
            break
        scale |= {i: scale[i] * min(0.95, cells[i] / made[i].n) for i in above}
    notes = [""] * len(made)
    for i in above:
        if made[i].n >= visuals[i].n:
            raise SelectorError(
                f"{adapter.family} makes {made[i].n} cells of every picture: a smaller one saves nothing"
            )
        notes[i] = f"a smaller picture has {made[i].n} cells at least, more than the {cells[i]} wished for"
    return inputs, made, notes


def _vision(
    prompter: Prompter, images: Sequence[Sequence[Source]], videos: Sequence[Sequence[Source]], fps: float
) -> Vision:
    return prompter.see([[s.picture for s in row] for row in images], [[s.picture for s in row] for row in videos], fps)


def _replaced(rows: Sequence[Sequence[Source]], smaller: Mapping[int, Source]) -> list[list[Source]]:
    """Images by row, some of them in a smaller form."""
    number = 0
    out: list[list[Source]] = []
    for row in rows:
        out.append([smaller.get(number + i, source) for i, source in enumerate(row)])
        number += len(row)
    return out
