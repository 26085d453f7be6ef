"""The slow truth for families with one position per token: the stock model, pixels and all, with something masked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from arr_coc.adapters.base import Adapter
from tests.adapters.oracle import attending


def positions(mask: torch.Tensor) -> torch.Tensor:
    """What the models' own `generate` makes of a mask."""
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def dense(inputs: dict[str, Any]) -> dict[str, Any]:
    """The stock model's inputs with the positions that its `generate` gives them."""
    return inputs | {"position_ids": positions(inputs["attention_mask"])}


def masked(reader: Adapter, inputs: dict[str, Any], keeps: list[torch.Tensor]) -> dict[str, Any]:
    """The same, with the tokens of all cells but the kept ones masked at every layer."""
    mask = inputs["attention_mask"].clone()
    for visual, keep in zip(reader.visuals(inputs), keeps, strict=True):
        tokens = torch.arange(len(visual.places)) if visual.cells is None else visual.cells
        gone = torch.ones(visual.n, dtype=torch.bool)
        gone[keep] = False
        mask[visual.row, visual.places[tokens[gone]]] = 0
    return dense(inputs) | {"attention_mask": mask}


@torch.no_grad()
def embedded(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """The same prompt with its pictures already in it: embeddings, which beam search simply repeats.

    (Some versions of transformers mix up the pictures of a row when they search with beams from pixels.)
    """
    caught: list[torch.Tensor] = []
    text = model.model.language_model if hasattr(model.model, "language_model") else model.model.text_model
    handle = text.register_forward_pre_hook(
        lambda module, args, given: caught.append(given["inputs_embeds"]), with_kwargs=True
    )
    model(**inputs)
    handle.remove()
    return {"inputs_embeds": caught[0], **{name: inputs[name] for name in ("attention_mask", "position_ids")}}


@contextmanager
def deaf(vision: Any, heard: torch.Tensor) -> Iterator[None]:
    """Inside, the vision tower attends to the tokens where `heard` `[T, S]` is True only, tile by tile, in every layer."""

    def attend(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **given: Any) -> Any:
        scores = query @ key.transpose(2, 3) * given["scaling"]
        scores = scores.masked_fill(~heard[:, None, None], torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    with attending(vision, attend):
        yield
