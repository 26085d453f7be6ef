"""From a selector's selection to a learned judgement: the same way in training and in use.

A picture is one or several views (tiles, an overview), a video has several moments. Each is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from arr_coc.layer import graph_cache as replaying
from arr_coc.layer import question_novelty as wording
from arr_coc.layer import view_cache as remembering
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.heads import WAYS
from arr_coc.layer.image_novelty import strangeness, told
from arr_coc.layer.model import ArrCocLayer, Judged, View
from arr_coc.layer.question_novelty import novelty
from arr_coc.selectors.base import LayerPrediction, SelectionInput
from arr_coc.selectors.scoring import pool_channels
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

COLOURS = ("red", "green", "blue")


@dataclass(frozen=True, eq=False)
class Seen:
    """One view of a picture: `t` moments of `h` x `w` cells."""

    channels: torch.Tensor  # [t, C, h, w]
    pixels: torch.Tensor  # [t, P, h, w]
    tokens: torch.Tensor | None = None  # [t, h, w, D] what the encoder says, where it was asked
    encoded: torch.Tensor | None = None  # [t, h, w] where; None: everywhere

    def to(self, device: torch.device) -> Seen:
        """The same in float32, on a device."""
        return Seen(
            self.channels.to(device).float(), self.pixels.to(device).float(),
            None if self.tokens is None else self.tokens.to(device).float(),
            None if self.encoded is None else self.encoded.to(device),
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels.shape[0], self.channels.shape[2], self.channels.shape[3]


def judge(
    layer: ArrCocLayer,
    pictures: Sequence[Sequence[Seen]],
    owner: torch.Tensor,
    words: torch.Tensor,
    asked: torch.Tensor,
) -> Judged:
    """`Q` questions about `B` pictures whose views have the same shapes, on the layer's device.

    `owner` `[Q]`: which picture each question is about. The result is `[Q, N]` over all cells of all views.
    """
    durations = [view.shape[0] for view in pictures[0]]
    return answer(layer, see(layer, pictures), durations, owner, layer.words(words, asked), asked)


def see(layer: ArrCocLayer, pictures: Sequence[Sequence[Seen]]) -> list[View]:
    """The part of `judge` that is the same for every question: each view of all pictures."""
    return [
        layer.see(
            torch.cat([view.channels for view in views]), torch.cat([view.pixels for view in views]), *_tokens(views)
        )
        for views in zip(*pictures, strict=True)
    ]


def answer(
    layer: ArrCocLayer,
    known: Sequence[View],
    durations: Sequence[int],
    owner: torch.Tensor | None,
    heard: torch.Tensor,
    asked: torch.Tensor,
    judging: Callable[[View, torch.Tensor, torch.Tensor], Judged] | None = None,
) -> Judged:
    """The other part of `judge`: questions about what was seen in views of so many moments each.

    `heard` `[Q, T, d]`: the layer's own words for them. `owner` None: one question about the one picture that there is.
    judging: how the layer is asked, `layer.judge` if nobody says otherwise.
    """
    judging = layer.judge if judging is None else judging
    relevance, scores, weights, asks = [], [], [], len(heard)
    for seen, moments in zip(known, durations, strict=True):
        if owner is not None:
            seen = seen[(owner[:, None] * moments + torch.arange(moments, device=owner.device)).flatten()]  # [Q t]
        made = judging(seen, heard.repeat_interleave(moments, 0), asked.repeat_interleave(moments, 0))
        relevance.append(made.relevance.view(asks, -1))
        scores.append(made.scores.view(asks, moments, len(WAYS), -1).transpose(1, 2).flatten(2))
        weights.append(made.weights.view(asks, moments, -1).mean(1))
    return Judged(torch.cat(relevance, 1), torch.cat(scores, 2), torch.stack(weights).mean(0))


def _tokens(views: Sequence[Seen]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """All views' tokens, and which cells they stand for."""
    there = [view.tokens for view in views if view.tokens is not None]
    if not there:
        return None, None
    blank = torch.zeros_like(there[0])
    tokens = torch.cat([blank if view.tokens is None else view.tokens for view in views])
    if all(view.tokens is not None and view.encoded is None for view in views):
        return tokens, None
    known = []
    for view in views:
        all_or_none = torch.full(view.shape, view.tokens is not None, device=tokens.device)
        known.append(all_or_none if view.encoded is None else view.encoded)
    return tokens, torch.cat(known)


def picture(frames: Sequence[TextureArray], view: Grid, config: LayerConfig) -> Seen:
    """What the texture tells about one view, without tokens; a moment of a video is the mean over its frames."""
    fine = replace(view, h=view.h * config.pixels, w=view.w * config.pixels)
    channels, pixels = [], []
    for moment in range(view.t):
        first = moment * len(frames) // view.t
        mine = frames[first : max((moment + 1) * len(frames) // view.t, first + 1)]
        channels.append(torch.stack([pool_channels(texture, view, config.channels) for texture in mine]).mean(0))
        pixels.append(torch.stack([_inside(texture, fine, config.pixels) for texture in mine]).mean(0))
    return Seen(torch.stack(channels), torch.stack(pixels))


def _inside(texture: TextureArray, fine: Grid, each: int) -> torch.Tensor:
    """The pixels inside each cell, `[3 each each, h, w]`."""
    colours = pool_channels(texture, fine, COLOURS)
    return torch.nn.functional.pixel_unshuffle(colours, each)


def seen(selection: SelectionInput, config: LayerConfig) -> list[Seen]:
    """All views of a selection, with the tokens of its candidates where they are encoded."""
    found, start = [], 0
    tokens, encoded = _laid_out(selection)
    for view, bare in zip(selection.grid.views, _bare(selection, config), strict=True):
        here, stop = slice(start, start + view.n), start + view.n
        shape = (view.t, view.h, view.w)
        found.append(
            bare if tokens is None else replace(
                bare, tokens=tokens[here].view(*shape, -1), encoded=None if encoded is None else encoded[here].view(shape)
            )
        )  # fmt: skip
        start = stop
    return found


def _bare(selection: SelectionInput, config: LayerConfig) -> list[Seen]:
    """All views of a selection without tokens, made once for each texture and grid."""
    frames, key = selection.textures, f"layer {config.pixels} {config.channels}"
    return [
        frames[0].once(f"{key} {view!r}", lambda view=view: picture(frames, view, config))  # type: ignore[misc]
        for view in selection.grid.views
    ]


def _told(selection: SelectionInput, config: LayerConfig) -> torch.Tensor:
    """What the first view is told by among others `[S]`, made once for each texture and grid."""
    (first, *_), names = selection.grid.views, config.channels
    return selection.textures[0].once(
        f"told {names} {first!r}", lambda: told(_bare(selection, config)[0].channels, names).cpu()
    )


def _laid_out(selection: SelectionInput) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The candidates' tokens on the whole grid `[N, D]`, and which cells are encoded `[N]` (None: all)."""
    if selection.tokens is None:
        return None, None
    tokens = selection.tokens.detach().float()
    if len(selection.candidates) == selection.grid.n:
        return tokens, None
    whole = tokens.new_zeros(selection.grid.n, tokens.shape[-1])
    whole[selection.candidates.to(tokens.device)] = tokens
    encoded = torch.zeros(selection.grid.n, dtype=torch.bool)
    encoded[selection.candidates] = True
    return whole, encoded


def _known(layer: ArrCocLayer, state: Hashable, selection: SelectionInput) -> list[View]:
    """All views of a selection as the layer sees them, whatever is asked; not seen again while tokens and weights stay."""
    bare = _bare(selection, layer.config)
    encoded = b"" if selection.tokens is None else selection.candidates.numpy().tobytes()

    def look() -> list[View]:
        views = [one.to(layer.mean.device) for one in seen(selection, layer.config)]
        return [replaying.see(layer, state, one.channels, one.pixels, *_tokens([one])) for one in views]

    memory = selection.textures[0].once("seen by layers", remembering.Remembered)
    return memory.get((layer, selection.tokens, *bare), (state, encoded), look)


@torch.no_grad()
def predict(layer: ArrCocLayer, selection: SelectionInput) -> LayerPrediction:
    """What a layer says about the candidates of a selection."""
    device = layer.mean.device
    state = remembering.state(layer)
    heard, there = replaying.hear(layer, state, selection.question.embeddings.detach().float().to(device))
    durations = [view.t for view in selection.grid.views]
    known = _known(layer, state, selection)
    made = answer(layer, known, durations, None, heard, there, partial(replaying.judge, layer, state))
    logits, scores = made.relevance[0].cpu()[selection.candidates], made.scores[0].sigmoid().cpu()
    return LayerPrediction(
        logits.sigmoid(),
        {name: score[selection.candidates] for name, score in zip(WAYS, scores, strict=True)},
        dict(zip(WAYS, made.weights[0].tolist(), strict=True)),
        strangeness(_told(selection, layer.config), layer.usual.cpu(), layer.unusual.cpu()),
        float(logits.max()) if len(logits) else 0.0,
        novelty(wording.told(heard, there)[0], layer.asked, layer.middle, layer.near),
    )


class LayerPredictor:
    """A layer ready for a model on `device`: predicts when a selector calls it."""

    def __init__(self, layer: ArrCocLayer, device: torch.device) -> None:
        self.layer, self.device = layer, device

    def __call__(self, selection: SelectionInput) -> LayerPrediction:
        with nullcontext() if selection.watch is None else selection.watch.stage("layer"):
            if self.layer.mean.device != self.device:  # the model was moved
                self.layer.to(self.device)
            return predict(self.layer, selection)
