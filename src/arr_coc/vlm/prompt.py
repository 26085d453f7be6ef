"""From pictures and words to a pruned prompt: what stands between a question and the model's `generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.adapters.base import Adapter, Inputs, Visual
from arr_coc.adapters.packing import KeptFeatures, Packed, assemble, model_kwargs, pad_rows
from arr_coc.adapters.processor import Message, PromptProcessor, VisionInputs
from arr_coc.errors import PromptError, SelectorError
from arr_coc.selectors import Words
from arr_coc.timing import Stopwatch
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Prepared
from arr_coc.vlm import sources
from arr_coc.vlm.look import Look, Source
from arr_coc.vlm.request import Wish
from arr_coc.vlm.stages import Looked, Scene, Shrink, look_at

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings

Talk = Sequence[Message]
SHRINK_TRIES = 6  # processors round sizes to whole cells, so the first try may give too many


@dataclass(frozen=True, eq=False)
class Draft:
    """One or several rows of a prompt, pruned."""

    packed: Packed
    kept: KeptFeatures
    allocations: tuple[Allocation, ...]
    places: tuple[torch.Tensor, ...]  # each allocation's kept cells [K] in the dense prompt
    talks: tuple[tuple[Message, ...], ...] = ()
    prompts: tuple[str, ...] = ()

    def prepared(self, adapter: Adapter, timings: Mapping[str, float]) -> Prepared:
        return Prepared(
            make=lambda: model_kwargs(adapter, self.packed, self.kept),
            names=tuple(model_kwargs(adapter, self.packed, self.kept)),
            length=self.packed.input_ids.shape[1],
            allocations=self.allocations,
            source=self.packed.source,
            places=self.places,
            timings=timings,
            messages=self.talks,
            texts=self.prompts,
        )


def look(
    model: Any,
    prompter: PromptProcessor,
    images: Sequence[Sequence[Any]],
    videos: Sequence[Sequence[Any]],
    fps: float,
    watch: Stopwatch,
    embeddings: Embeddings | None = None,
) -> Look:
    """Every row's pictures through the processor."""
    with watch.stage("preprocess"):
        still = tuple(tuple(sources.image_source(image, embeddings) for image in row) for row in images)
        moving = tuple(tuple(sources.video_source(video, embeddings) for video in row) for row in videos)
        return Look(_vision(prompter, still, moving, fps), still, moving, fps, model)


def draft(
    adapter: Adapter, prompter: PromptProcessor, seen: Look, texts: Sequence[str], talks: Sequence[Talk], wish: Wish,
    watch: Stopwatch, raw: bool = False,
) -> Draft:  # fmt: skip
    """Rows of questions about the pictures of a look, one row of pictures for each; `raw`: the texts are whole prompts."""
    with watch.stage("preprocess"):
        prompts = list(texts) if raw else [prompter.render(talk) for talk in talks]
        words = [Words(text, prompter.ids(text), adapter.embed) for text in texts]
        inputs: Inputs = prompter.tokenize(prompts, seen.vision) | seen.vision.tensors
        visuals = adapter.visuals(inputs, seen.sizes())
        origins = [seen.sources(visual.kind)[visual.number] for visual in visuals]
    scene = Scene(adapter, inputs, visuals, origins, words, wish, watch, seen)
    looked = look_at(scene)
    if isinstance(looked, Shrink):
        with watch.stage("preprocess"):
            inputs, visuals = _shrunk(adapter, prompter, seen, prompts, visuals, looked)
        scene = Scene(adapter, inputs, visuals, origins, words, wish, watch)
        looked = look_at(scene, looked)
    return _assembled(scene, looked, () if raw else talks, prompts)


def draft_inputs(
    adapter: Adapter, prompter: PromptProcessor | None, inputs: Mapping[str, Any], wish: Wish, watch: Stopwatch, *,
    texts: Sequence[str] | None = None, originals: Sequence[Any] | None = None, embeddings: Embeddings | None = None,
) -> Draft:  # fmt: skip
    """A processor's output, whose pictures are not at hand any more, unless their originals are given."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        raise PromptError("expected a processor's output with input_ids as a tensor [B, T]")
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor) and (name in adapter.pixel_keys or "grid" in name or "mask" in name):
            raise PromptError(f"expected {name} as a tensor (return_tensors='pt'), got {type(value).__name__}")
    if "attention_mask" in inputs and inputs["attention_mask"].shape != ids.shape:
        raise PromptError(
            f"expected an attention_mask of shape {list(ids.shape)}, got {list(inputs['attention_mask'].shape)}"
        )
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
    rows = [ids[real] for ids, real in zip(given["input_ids"], spoken, strict=True)]
    if texts is None:
        texts = ["" if prompter is None else prompter.decode(row) for row in rows]
    elif len(texts) != len(rows):
        raise PromptError(f"expected a question for each of the {len(rows)} rows of the inputs, got {len(texts)}")
    words = [Words(text, row, adapter.embed) for text, row in zip(texts, rows, strict=True)]
    origins: list[Source | None] = [None] * len(visuals)
    if originals is not None:
        if len(originals) != len(visuals) or any(visual.kind != "image" for visual in visuals):
            raise PromptError(f"expected the originals of {len(visuals)} images, got {len(originals)}")
        origins = [sources.original_source(one, embeddings) for one in originals]
    scene = Scene(adapter, given, visuals, origins, words, wish, watch)
    looked = look_at(scene)
    if isinstance(looked, Shrink):
        raise SelectorError(f"selector {wish.selector.name!r} re-encodes pictures, so it needs them, not model inputs")
    return _assembled(scene, looked, (), ())


def batch(adapter: Adapter, drafts: Sequence[Draft]) -> Draft:
    """Rows that were drafted one by one, as one batch."""
    if len(drafts) == 1:
        return drafts[0]
    kept: KeptFeatures = {}
    for one in drafts:
        for kind, rows in one.kept.items():
            kept.setdefault(kind, []).extend(rows)
    return Draft(
        packed=pad_rows([one.packed for one in drafts], adapter.pad_token),
        kept=kept,
        allocations=tuple(replace(a, row=number) for number, one in enumerate(drafts) for a in one.allocations),
        places=tuple(places for one in drafts for places in one.places),
        talks=tuple(talk for one in drafts for talk in one.talks),
        prompts=tuple(prompt for one in drafts for prompt in one.prompts),
    )


def _assembled(scene: Scene, looked: Looked | Shrink, talks: Sequence[Talk], prompts: Sequence[str]) -> Draft:
    assert isinstance(looked, Looked)
    with scene.watch.stage("assemble"):
        packed, kept = assemble(
            scene.adapter, scene.inputs, looked.visuals, looked.encoded, looked.keeps, looked.replaced
        )
    places = tuple(visual.cell_places[keep] for visual, keep in zip(looked.visuals, looked.keeps, strict=True))
    allocations = tuple(looked.allocations)
    return Draft(packed, kept, allocations, places, tuple(tuple(talk) for talk in talks), tuple(prompts))


def _shrunk(
    adapter: Adapter,
    prompter: PromptProcessor,
    seen: Look,
    prompts: Sequence[str],
    visuals: Sequence[Visual],
    wish: Shrink,
) -> tuple[Inputs, list[Visual]]:
    """Inputs with smaller pictures, none of more cells than wished for where the processor goes that low."""
    if adapter.fixed_grid:
        raise SelectorError(f"{adapter.family} makes the same cells of every picture: a smaller one saves nothing")
    scale = dict.fromkeys(wish.cells, 1.0)
    for _ in range(SHRINK_TRIES):
        smaller = {
            visuals[i].number: sources.smaller(
                seen.sources("image")[visuals[i].number], scale[i] * cells / visuals[i].n
            )
            for i, cells in wish.cells.items()
        }
        vision = _vision(prompter, _replaced(seen.images, smaller), seen.videos, seen.fps)
        inputs: Inputs = prompter.tokenize(prompts, vision) | vision.tensors
        made = adapter.visuals(inputs, seen.sizes())
        above = [i for i, cells in wish.cells.items() if made[i].n > cells]
        if not above:
            break
        scale |= {i: scale[i] * min(0.95, wish.cells[i] / made[i].n) for i in above}
    wish.notes = [""] * len(made)
    for i in above:
        wish.notes[i] = f"a smaller picture has {made[i].n} cells at least, more than the {wish.cells[i]} wished for"
    return inputs, made


def _vision(
    prompter: PromptProcessor, images: Sequence[Sequence[Source]], videos: Sequence[Sequence[Source]], fps: float
) -> VisionInputs:
    return prompter.process(
        [[s.picture for s in row] for row in images], [[s.picture for s in row] for row in videos], fps
    )


def _replaced(rows: Sequence[Sequence[Source]], smaller: Mapping[int, Source]) -> list[list[Source]]:
    """Images by row, some of them in a smaller form."""
    number = 0
    out: list[list[Source]] = []
    for row in rows:
        out.append([smaller.get(number + i, source) for i, source in enumerate(row)])
        number += len(row)
    return out
