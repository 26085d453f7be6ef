"""Memory: what is known about a clip so far, carried from frame to frame.

    flow -> gate -> texture and features carried, renewed where needed -> maps of relevance carried -> the frame's texture

Notable:
- the flow is added up since things were last worked out, and every map is carried once along the sum: nothing blurs from frame
  to frame, and the error is measured against what was really seen;
- an encoder is a costly and nervous witness: neighbouring frames get different features. So features are averaged along the
  motion, new ones count for more the longer the last are ago, and for all where nothing could be carried;
- unimportant is not unknown: what is looked at anew depends on the pixels, never on the relevance;
- the first frame and a cut start afresh; on every 30th frame all is worked out anew, and features are averaged with those
  before as always; a new question keeps everything but relevance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import unit
from arr_coc.errors import ArrCocError, whole_number
from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gating
from arr_coc.frames.flow import Flow
from arr_coc.frames.gate import Gate
from arr_coc.texture import TextureArray
from arr_coc.texture.channels.memory import FADING
from arr_coc.types.image import ImageLike
from arr_coc.video import texture_update as renewing

MOVED = 0.4  # cells of the encoder that a place may move before its features are out of date
SHARE = 0.02  # of the cells: fewer that are out of date can wait
GONE = 0.4  # of the cells: when so many cannot be carried, the encoder is asked at once
RUSH = 1.0  # cells of the encoder that places have moved on average, from which features are renewed a frame earlier
LONG = 3  # frames; features of a place that stands still are replaced no faster than if this many had passed


@dataclass(frozen=True)
class Settings:
    """How long things are trusted; the defaults are what the measurements recommend."""

    keyframe: int = 30  # frames after which everything is worked out anew; 1: on every frame
    encode_every: int = 10  # frames after which features are renewed where anything changed
    demanded_every: int = 3  # motion cannot demand it more often than this
    fresh: float = 0.2  # how much one frame's features count beside those of the frames before
    reuse: bool = (
        True  # False: every frame by itself, as if it were a still picture; nothing is remembered of the others
    )
    side: int = flows.SIDE  # px of the longer side that flow is worked out at
    max_side: int | None = 1024  # px of the texture's longer side
    device: str | None = None  # where textures and flow are worked out; None: the CPU

    def __post_init__(self) -> None:
        for name in ("keyframe", "encode_every", "demanded_every", "side"):
            if whole_number(getattr(self, name)) is None:
                raise ArrCocError(f"expected {name} as a whole number of at least 1, got {getattr(self, name)!r}")
        if not 0 < self.fresh <= 1:
            raise ArrCocError(f"expected fresh as a share above 0 and at most 1, got {self.fresh!r}")


@dataclass(frozen=True)
class Reuse:
    """What of a frame was carried over, in shares of the frame, and why not more."""

    texture: float = 0.0  # of the channels
    features: float = 0.0  # of the encoder's cells
    why: str = "first frame"  # or keyframe, cut, fade, another size, by itself; empty: the gate alone decided
    moved: float = 0.0  # the mean length of the flow, as a share of the frame's longer side
    worse: float = 0.0  # of the windows: the flow explained less than standing still


class Memory:
    """What is known so far. `see` takes the next frame, `learn` what was found relevant on it."""

    def __init__(self, embeddings: Embeddings | None = None, settings: Settings = Settings()) -> None:  # noqa: B008
        self.embeddings = embeddings
        self.settings = settings
        self.forget()

    def forget(self) -> None:
        """The next frame is the first: all that was known is gone."""
        self._texture: TextureArray | None = None  # as it was last worked out
        self._luma: torch.Tensor | None = None  # small, at that time
        self._since: Flow | None = None  # the flow since then
        self._last: torch.Tensor | None = None  # the frame before, small
        self._frame: torch.Tensor | None = None  # and in full, for motion
        self._key: tuple[TextureArray, Flow] | None = None  # the last keyframe, and the flow since
        self._features: torch.Tensor | None = None  # [k, h, w], as they were when the encoder last saw anything
        self._drift = flows.still((1, 1))  # the flow since then
        self._gone = torch.zeros(0)  # bool [h, w] cells whose features cannot be carried any more
        self._age = 0  # frames since the encoder saw anything
        self._number = 0  # frames since the last keyframe
        self._saliency: torch.Tensor | None = None
        self._step: Flow | None = None  # from the frame before to this one; None: nothing can be carried
        self._compared: tuple[torch.Tensor, torch.Tensor, Flow, torch.Tensor] | None = None  # what tells where it holds
        self.forget_question()

    def forget_question(self) -> None:
        """Relevance and fixation are gone; texture and features stay: a new question is asked."""
        self._relevance: torch.Tensor | None = None
        self._fixation: torch.Tensor | None = None

    def see(self, frame: ImageLike, why: str = "", *, passing: bool = False) -> tuple[TextureArray, Reuse]:
        """The texture of the next frame, with all that could be carried over in it. `why`: a reason to start afresh.

        `passing`: a white or black frame, a flash; it is looked at, and what is known of the scene stays as it is.
        """
        texture = TextureArray.from_image(
            frame, device=self.settings.device, max_side=self.settings.max_side,
            embeddings=self.embeddings,
        )  # fmt: skip
        if not why and self._frame is not None and tuple(self._frame.shape) != tuple(texture.pixels.shape):
            why = "another size"
        if not why and not self.settings.reuse and self._frame is not None:
            why = "by itself"
        if why:
            self.forget()
        if passing and self._last is not None:
            return self._pass(texture)
        now = gating.calmed(flows.small(texture.pixels, self.settings.side))
        made = self._afresh(texture, now, why or "first frame") if self._last is None else self._next(texture, now)
        self._last, self._frame = now, texture.pixels
        return made

    def learn(self, texture: TextureArray, relevance: torch.Tensor) -> None:
        """Remember what was found relevant on the frame that was seen last: `[rows, columns]`, 0 to 1."""
        held = self._fixation if self._fixation is not None else torch.zeros_like(relevance)
        self._fixation = FADING * _fitted(held, relevance.shape) + (1 - FADING) * relevance
        self._relevance = relevance
        self._saliency = texture.grid(int(relevance.shape[0]), int(relevance.shape[1]), ["saliency"])[0].float().cpu()

    def carried(self, values: torch.Tensor | None, size: tuple[int, int]) -> torch.Tensor:
        """A map on cells of the frame before, carried to the frame that was seen last; 0 where that is not known to hold."""
        if values is None or self._step is None:
            return torch.zeros(size)
        moved = flows.warp(_fitted(values, torch.Size(size)), self._step)
        assert self._compared is not None
        return moved * (1 - gating.spread(gating.gate(*self._compared).anew.cpu(), size).float())

    def _pass(self, texture: TextureArray) -> tuple[TextureArray, Reuse]:
        """A frame that tells nothing about the scene."""
        self._step = None
        if self.embeddings is not None and self._features is not None:
            self.embeddings.recall(texture, unit(flows.warp(self._features, self._drift), dim=0))
        return texture, Reuse(0.0, 1.0, "passing")

    def _afresh(self, texture: TextureArray, now: torch.Tensor, why: str) -> tuple[TextureArray, Reuse]:
        """Nothing is carried over."""
        self._step = None
        self._anchor(texture, now)
        self._key, self._number = (texture, flows.still(_size(now), now.device)), 0
        if self.embeddings is not None:
            self._features = renewing.whole(self.embeddings, texture.pixels)
            self.embeddings.recall(texture, self._features)
            self._drift, self._age = flows.still(_size(now), now.device), 0
            self._gone = torch.zeros(self._features.shape[1:], dtype=torch.bool)
        return texture, Reuse(why=why)

    def _next(self, texture: TextureArray, now: torch.Tensor) -> tuple[TextureArray, Reuse]:
        assert self._last is not None
        assert self._luma is not None
        assert self._since is not None
        assert self._key is not None
        last = gating.relit(self._last, now)
        step, worse = gating.steadied(flows.between(last, now), last, now)
        moved = flows.then(self._since, step)
        found = gating.gate(gating.relit(self._luma, now), now, moved, worse)
        self._step = Flow(step.vectors.cpu(), step.confidence.cpu())
        self._compared = (last, now, step, worse)
        self._number, self._age = self._number + 1, self._age + 1
        keyframe = self._number >= self.settings.keyframe
        texture = self._supplied(texture, step, now)
        if keyframe:
            self._key, self._number = (texture, flows.still(_size(now), now.device)), 0
        else:
            self._key = self._key[0], flows.then(self._key[1], step)
            renewing.carry_regions(self._key[0], texture, self._key[1])
        worked_out = 1.0
        if not keyframe:
            assert self._texture is not None
            worked_out = renewing.carry(self._texture, texture, moved, found.anew)
        encoded = self._encode(texture, step, found, keyframe)
        if worked_out > 0:
            self._anchor(texture, now)
        else:
            self._since = moved
        length = float(flows.length(step.vectors).mean()) / max(_size(now))
        why = "keyframe" if keyframe else ""
        return texture, Reuse(1 - worked_out, 1 - encoded, why, length, float(found.worse.float().mean()))

    def _anchor(self, texture: TextureArray, now: torch.Tensor) -> None:
        """From here on the flow is added up anew."""
        self._texture, self._luma, self._since = texture, now, flows.still(_size(now), now.device)

    def _encode(self, texture: TextureArray, step: Flow, found: Gate, keyframe: bool) -> float:
        """Carry the features along and renew what is out of date; the share of the frame that the encoder saw."""
        if self.embeddings is None or self._features is None:
            return 0.0
        grid = (int(self._features.shape[1]), int(self._features.shape[2]))
        drift = flows.then(self._drift, step)
        held = unit(flows.warp(self._features, drift), dim=0)
        lost = gating.spread(found.anew.cpu(), grid)
        self._gone = (flows.warp(self._gone.float(), Flow(step.vectors.cpu(), step.confidence.cpu())) > 0.5) | lost
        away = flows.length(drift.at(grid).vectors).cpu()
        demanded = self._gone | (away > MOVED)
        share = 0.0
        if self._wanted(demanded, lost, float(away.mean()) > RUSH, keyframe):
            part = None if keyframe else renewing.some(self.embeddings, texture.pixels, grid, demanded)
            fresh, seen = part if part is not None else (renewing.whole(self.embeddings, texture.pixels), None)
            counts = self._counts(demanded, lost).to(held)
            counts = counts if seen is None else counts * seen
            held = unit((1 - counts) * held + counts * fresh, dim=0)
            share = 1.0 if seen is None else float((seen > 0).float().mean())
            self._gone = torch.zeros_like(self._gone) if seen is None else self._gone & (seen.cpu() < gating.LOST)
            self._features, self._age = held, 0
            drift = flows.still(step.size, step.vectors.device)
        self._drift = drift
        self.embeddings.recall(texture, held)
        return share

    def _wanted(self, demanded: torch.Tensor, lost: torch.Tensor, rush: bool, keyframe: bool) -> bool:
        """Whether the encoder is asked on this frame."""
        if keyframe or float(lost.float().mean()) > GONE:
            return True
        changed = float(demanded.float().mean())
        if changed > SHARE and self._age >= max(1, self.settings.demanded_every - rush):
            return True
        return changed > 0 and self._age >= self.settings.encode_every

    def _counts(self, demanded: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
        """How much new features count in each cell `[h, w]`: as if every frame since had been encoded."""
        old = 1 - self.settings.fresh
        since = torch.full(demanded.shape, 1 - old ** min(self._age, LONG))
        since[demanded] = 1 - old**self._age
        since[lost] = 1.0
        return since

    def _supplied(self, texture: TextureArray, step: Flow, now: torch.Tensor) -> TextureArray:
        """The texture with the memory of relevance, carried along, and the frame before where it was another."""
        sure = step.confidence.cpu()
        carried = replace(step, vectors=step.vectors.cpu(), confidence=sure)
        held: dict[str, torch.Tensor | None] = {
            "previous_relevance": self._relevance, "fixation": self._fixation, "previous_saliency": self._saliency,
        }  # fmt: skip
        for name, values in held.items():
            if values is not None:
                if carried.size != _size(values):
                    carried = carried.at(_size(values))
                held[name] = (flows.warp(values, carried) * carried.confidence).clamp(0, 1)
        self._relevance, self._fixation, self._saliency = held.values()
        return texture.supply(previous_frame=self._before(texture, now), **held)

    def _before(self, texture: TextureArray, now: torch.Tensor) -> torch.Tensor:
        """The frame before; where it differs by no more than noise, this frame, so that noise does not count as motion."""
        assert self._last is not None
        assert self._frame is not None
        change = gating.pooled((now - self._last).abs())
        noise = min(float(change.median()), gating.NOISIEST)
        still = change <= gating.FLOOR + gating.NOISE * noise
        if bool(still.all()):
            return texture.pixels
        plane = F.interpolate(still[None, None].float(), size=texture.size)[0, 0] > 0
        return torch.where(plane, texture.pixels, self._frame)


def _size(plane: torch.Tensor) -> tuple[int, int]:
    return int(plane.shape[-2]), int(plane.shape[-1])


def _fitted(values: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """A map on another grid, where the grid changed in between."""
    if values.shape == size:
        return values
    return F.interpolate(values[None, None], size=tuple(size), mode="bilinear", align_corners=False)[0, 0]
