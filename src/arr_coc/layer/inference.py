"""From a selector's sight to a learned judgement: the same way in training and in use.

A picture is one or several views (tiles, an overview), a video has several moments. Each is judged by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
from arr_coc.relevance.knowing import cells
from arr_coc.selectors.base import Sight
from arr_coc.selectors.pixels import textures
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


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a layer says about the candidates of a sight: `[M]` each."""

    relevance: torch.Tensor  # chances from 0 to 1
    scores: dict[str, torch.Tensor]  # the three ways of knowing, from 0 to 1
    weights: dict[str, float]
    strangeness: float = 0.0  # how unlike the pictures of training this one is: about 1 for one of them
    sureness: float = 0.0  # the best cell's logit
    novelty: float | None = None  # how far the question is from those of training; up to 1: put like them


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
        channels.append(torch.stack([cells(texture, view, config.channels) for texture in mine]).mean(0))
        pixels.append(torch.stack([_inside(texture, fine, config.pixels) for texture in mine]).mean(0))
    return Seen(torch.stack(channels), torch.stack(pixels))


def _inside(texture: TextureArray, fine: Grid, each: int) -> torch.Tensor:
    """The pixels inside each cell, `[3 each each, h, w]`."""
    colours = cells(texture, fine, COLOURS)
    return torch.nn.functional.pixel_unshuffle(colours, each)


def seen(sight: Sight, config: LayerConfig) -> list[Seen]:
    """All views of a sight, with the tokens of its candidates where they are encoded."""
    found, start = [], 0
    tokens, encoded = _laid_out(sight)
    for view, bare in zip(sight.grid.views, _bare(sight, config), strict=True):
        here, stop = slice(start, start + view.n), start + view.n
        shape = (view.t, view.h, view.w)
        found.append(
            bare if tokens is None else replace(
                bare, tokens=tokens[here].view(*shape, -1), encoded=None if encoded is None else encoded[here].view(shape)
            )
        )  # fmt: skip
        start = stop
    return found


def _bare(sight: Sight, config: LayerConfig) -> list[Seen]:
    """All views of a sight without tokens, made once for each texture and grid."""
    frames, key = textures(sight), f"layer {config.pixels} {config.channels}"
    return [
        frames[0].once(f"{key} {view!r}", lambda view=view: picture(frames, view, config))  # type: ignore[misc]
        for view in sight.grid.views
    ]


def _told(sight: Sight, config: LayerConfig) -> torch.Tensor:
    """What the first view is told by among others `[S]`, made once for each texture and grid."""
    (first, *_), names = sight.grid.views, config.channels
    return textures(sight)[0].once(
        f"told {names} {first!r}", lambda: told(_bare(sight, config)[0].channels, names).cpu()
    )


def _laid_out(sight: Sight) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The candidates' tokens on the whole grid `[N, D]`, and which cells are encoded `[N]` (None: all)."""
    if sight.tokens is None:
        return None, None
    tokens = sight.tokens.detach().float()
    if len(sight.candidates) == sight.grid.n:
        return tokens, None
    whole = tokens.new_zeros(sight.grid.n, tokens.shape[-1])
    whole[sight.candidates.to(tokens.device)] = tokens
    encoded = torch.zeros(sight.grid.n, dtype=torch.bool)
    encoded[sight.candidates] = True
    return whole, encoded


def _known(layer: ArrCocLayer, state: Hashable, sight: Sight) -> list[View]:
    """All views of a sight as the layer sees them, whatever is asked; not seen again while tokens and weights stay."""
    bare = _bare(sight, layer.config)
    encoded = b"" if sight.tokens is None else sight.candidates.numpy().tobytes()

    def look() -> list[View]:
        views = [one.to(layer.mean.device) for one in seen(sight, layer.config)]
        return [replaying.see(layer, state, one.channels, one.pixels, *_tokens([one])) for one in views]

    memory = textures(sight)[0].once("seen by layers", remembering.Remembered)
    return memory.get((layer, sight.tokens, *bare), (state, encoded), look)


@torch.no_grad()
def judged(layer: ArrCocLayer, sight: Sight) -> Judgement:
    """What a layer says about the candidates of a sight."""
    device = layer.mean.device
    state = remembering.state(layer)
    heard, there = replaying.hear(layer, state, sight.words.embeddings.detach().float().to(device))
    durations = [view.t for view in sight.grid.views]
    known = _known(layer, state, sight)
    made = answer(layer, known, durations, None, heard, there, partial(replaying.judge, layer, state))
    logits, scores = made.relevance[0].cpu()[sight.candidates], made.scores[0].sigmoid().cpu()
    return Judgement(
        logits.sigmoid(),
        {name: score[sight.candidates] for name, score in zip(WAYS, scores, strict=True)},
        dict(zip(WAYS, made.weights[0].tolist(), strict=True)),
        strangeness(_told(sight, layer.config), layer.usual.cpu(), layer.unusual.cpu()),
        float(logits.max()) if len(logits) else 0.0,
        novelty(wording.told(heard, there)[0], layer.asked, layer.middle, layer.near),
    )
