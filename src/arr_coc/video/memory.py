"""Memory: texture, features and relevance of a clip, carried from frame to frame.

    flow -> gate -> warp texture and features, recompute where needed -> warp relevance maps -> the frame's texture

Notable:
- flow is accumulated since a map was last computed, and each map is warped once along the sum. Nothing blurs from frame to
  frame, and the gate compares with pixels that were really seen;
- encoder features are costly and differ between neighbouring frames. So they are averaged along the motion: the weight of
  new features grows with the age of the old ones, and is 1 where nothing could be warped;
- what is recomputed depends on the pixels, never on the relevance: a low score is not a reason to skip a change;
- the first frame and a cut start from nothing. A keyframe (every 30th frame) recomputes the texture and re-encodes everything;
  its features are averaged as usual. A new question clears the relevance only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import l2_normalize
from arr_coc.errors import ArrCocError, whole_number
from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gates
from arr_coc.frames.flow import Flow, compose, warp, zero_flow
from arr_coc.texture import TextureArray
from arr_coc.texture.channels.inputs import FIXATION_DECAY
from arr_coc.types.image import ImageLike
from arr_coc.video import texture_update as update

MAX_DRIFT = 0.4  # encoder cells that a place may move before its features are stale
MIN_STALE = 0.02  # share of the cells: fewer stale ones can wait
MAX_LOST = 0.4  # share of the cells: if more cannot be warped, the encoder runs at once
FAST_DRIFT = 1.0  # encoder cells of mean drift from which features are renewed one frame earlier
MAX_STILL_AGE = 3  # frames; features of places without change are replaced no faster than after this many


MAPS = ("previous_relevance", "fixation", "previous_saliency")


@dataclass(frozen=True)
class MemorySettings:
    """How long results are reused; `benchmarks/video.py` measures the defaults."""

    keyframe: int = 30  # frames after which everything is recomputed; 1: on every frame
    encode_every: int = 10  # frames after which features are renewed where anything changed
    motion_every: int = 3  # frames after which motion may trigger the encoder
    feature_weight: float = 0.2  # weight of one frame's features in the running average
    reuse: bool = True  # False: each frame separately, as a still picture; nothing is remembered
    side: int = flows.SIDE  # px of the longer side that flow is computed at
    max_side: int | None = 1024  # px of the texture's longer side
    device: str | None = None  # of textures and flow; None: the CPU
    maps: tuple[str, ...] = MAPS  # what a frame's texture gets of the frames before

    def __post_init__(self) -> None:
        for name in ("keyframe", "encode_every", "motion_every", "side"):
            if whole_number(getattr(self, name)) is None:
                raise ArrCocError(f"expected {name} as a whole number of at least 1, got {getattr(self, name)!r}")
        if unknown := [name for name in self.maps if name not in MAPS]:
            raise ArrCocError(f"expected maps among {', '.join(MAPS)}, got {unknown[0]!r}")
        if not 0 < self.feature_weight <= 1:
            raise ArrCocError(f"expected feature_weight above 0 and at most 1, got {self.feature_weight!r}")


@dataclass(frozen=True)
class Reuse:
    """What was reused on a frame, in shares of the frame, and why not more."""

    texture: float = 0.0  # of the channels
    features: float = 0.0  # of the encoder's cells
    why: str = "first frame"  # or keyframe, cut, fade, another size, by itself, passing; empty: the gate alone decided
    moved: float = 0.0  # the mean length of the flow, as a share of the frame's longer side
    worse: float = 0.0  # share of the windows where the flow was worse than zero motion


class Memory:
    """The state of a clip. `update` takes the next frame, `record_relevance` what was found relevant on it."""

    def __init__(self, embeddings: Embeddings | None = None, settings: MemorySettings = MemorySettings()) -> None:  # noqa: B008
        self.embeddings = embeddings
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        """Drop everything: the next frame is the first."""
        # The anchor is the last texture with computed parts: with its small luma, and the flow since.
        self._anchor: tuple[TextureArray, torch.Tensor, Flow] | None = None
        self._key: tuple[TextureArray, Flow] | None = None  # the last keyframe, and the flow since
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None  # small luma and pixels of the frame before
        self._features: torch.Tensor | None = None  # [k, h, w], as of the last encoder run
        self._drift = zero_flow((1, 1))  # the flow since then
        self._lost = torch.zeros(0)  # bool [h, w] cells whose features cannot be warped any more
        self._age = 0  # frames since the last encoder run
        self._number = 0  # frames since the last keyframe
        self._saliency: torch.Tensor | None = None
        self._step: Flow | None = None  # from the frame before to this one, on the CPU; None: nothing can be warped
        self._compared: tuple[torch.Tensor, torch.Tensor, Flow] | None = None  # the gate's input for it
        self.reset_question()

    def reset_question(self) -> None:
        """Drop relevance and fixation; texture and features stay."""
        self._relevance: torch.Tensor | None = None
        self._fixation: torch.Tensor | None = None

    def update(self, frame: ImageLike, why: str = "", *, passing: bool = False) -> tuple[TextureArray, Reuse]:
        """The texture of the next frame, with everything that can be reused. `why`: a reason to start from nothing.

        passing: a blank or unusual frame, such as a flash. It gets a texture, and the state stays as it is.
        """
        settings = self.settings
        texture = TextureArray.from_image(
            frame, device=settings.device, max_side=settings.max_side, embeddings=self.embeddings
        )
        if not why and self._last is not None:
            if self._last[1].shape != texture.pixels.shape:
                why = "another size"
            elif not settings.reuse:
                why = "by itself"
        if why:
            self.reset()
        if passing and self._last is not None:
            self._step = None
            if self.embeddings is not None and self._features is not None:
                self.embeddings.attach(texture, l2_normalize(warp(self._features, self._drift), dim=0))
            return texture, Reuse(0.0, 1.0, "passing")
        now = gates.denoise(flows.small_luma(texture.pixels, settings.side))
        result = self._start(texture, now, why or "first frame") if self._last is None else self._next(texture, now)
        self._last = now, texture.pixels
        return result

    def record_relevance(self, texture: TextureArray, relevance: torch.Tensor) -> None:
        """Remember the relevance `[rows, columns]`, 0 to 1, of the frame that was passed last."""
        before = self._fixation if self._fixation is not None else torch.zeros_like(relevance)
        self._fixation = FIXATION_DECAY * _resize(before, relevance.shape) + (1 - FIXATION_DECAY) * relevance
        self._relevance = relevance
        self._saliency = texture.grid(*_size(relevance), ["saliency"])[0].float().cpu()

    def warp_map(self, values: torch.Tensor | None, size: tuple[int, int]) -> torch.Tensor:
        """A cell map of the frame before, warped to the last frame; 0 where the gate does not trust it."""
        if values is None or self._step is None:
            return torch.zeros(size)
        assert self._compared is not None
        stale = gates.expand_windows(gates.stale_windows(*self._compared).cpu(), size)
        return warp(_resize(values, torch.Size(size)), self._step) * (1 - stale.float())

    def _start(self, texture: TextureArray, now: torch.Tensor, why: str) -> tuple[TextureArray, Reuse]:
        """A frame with nothing to reuse."""
        self._step = None
        still = zero_flow(_size(now), now.device)
        self._anchor, self._key, self._number = (texture, now, still), (texture, still), 0
        if self.embeddings is not None:
            self._features = update.encode_frame(self.embeddings, texture.pixels)
            self.embeddings.attach(texture, self._features)
            self._drift, self._age = still, 0
            self._lost = torch.zeros(self._features.shape[1:], dtype=torch.bool)
        return texture, Reuse(why=why)

    def _next(self, texture: TextureArray, now: torch.Tensor) -> tuple[TextureArray, Reuse]:
        assert self._anchor is not None
        assert self._key is not None
        assert self._last is not None
        anchor, anchor_luma, since = self._anchor
        last = gates.match_brightness(self._last[0], now)
        step, worse = gates.reject_flow(flows.luma_flow(last, now), last, now)
        moved = compose(since, step)
        recompute = gates.stale_windows(gates.match_brightness(anchor_luma, now), now, moved)
        self._step, self._compared = step.cpu(), (last, now, step)
        self._number, self._age = self._number + 1, self._age + 1
        keyframe = self._number >= self.settings.keyframe
        texture = self._add_history(texture, now, *self._last)
        still = zero_flow(_size(now), now.device)
        computed = 1.0
        if keyframe:
            self._key, self._number = (texture, still), 0
        else:
            self._key = self._key[0], compose(self._key[1], step)
            update.reuse_clusters(self._key[0], texture, self._key[1])
            computed = update.update_channels(anchor, texture, moved, recompute)
        encoded = self._update_features(texture, step, recompute.cpu(), keyframe)
        self._anchor = (texture, now, still) if computed > 0 else (anchor, anchor_luma, moved)
        length = float(flows.magnitude(step.vectors).mean()) / max(_size(now))
        why = "keyframe" if keyframe else ""
        return texture, Reuse(1 - computed, 1 - encoded, why, length, float(worse.float().mean()))

    def _update_features(self, texture: TextureArray, step: Flow, changed: torch.Tensor, keyframe: bool) -> float:
        """Warp the features and renew stale ones; returns the share of the frame that was encoded."""
        if self.embeddings is None or self._features is None:
            return 0.0
        grid = (int(self._features.shape[1]), int(self._features.shape[2]))
        drift = compose(self._drift, step)
        features = l2_normalize(warp(self._features, drift), dim=0)
        lost = gates.expand_windows(changed, grid)
        self._lost = (warp(self._lost.float(), step.cpu()) > 0.5) | lost
        distance = flows.magnitude(drift.resize(grid).vectors).cpu()
        stale = self._lost | (distance > MAX_DRIFT)
        encoded = 0.0
        if self._should_encode(stale, lost, float(distance.mean()) > FAST_DRIFT, keyframe):
            part = None if keyframe else update.encode_windows(self.embeddings, texture.pixels, grid, stale)
            new, covered = part or (update.encode_frame(self.embeddings, texture.pixels), features.new_ones(grid))
            weight = self._new_weight(stale, lost).to(features) * covered
            features = l2_normalize((1 - weight) * features + weight * new, dim=0)
            encoded = float((covered > 0).float().mean())
            self._lost = self._lost & (covered.cpu() < gates.LOW_CONFIDENCE)
            self._features, self._age = features, 0
            drift = zero_flow(step.size, step.vectors.device)
        self._drift = drift
        self.embeddings.attach(texture, features)
        return encoded

    def _should_encode(self, stale: torch.Tensor, lost: torch.Tensor, fast: bool, keyframe: bool) -> bool:
        if keyframe or float(lost.float().mean()) > MAX_LOST:
            return True
        share = float(stale.float().mean())
        if share > MIN_STALE and self._age >= max(1, self.settings.motion_every - fast):
            return True
        return share > 0 and self._age >= self.settings.encode_every

    def _new_weight(self, stale: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
        """The weight of new features in each cell `[h, w]`: as if every frame since the last run had been encoded."""
        old = 1 - self.settings.feature_weight
        weight = torch.full(stale.shape, 1 - old ** min(self._age, MAX_STILL_AGE))
        weight[stale] = 1 - old**self._age
        weight[lost] = 1.0
        return weight

    def _add_history(
        self, texture: TextureArray, now: torch.Tensor, last: torch.Tensor, pixels: torch.Tensor
    ) -> TextureArray:
        """The texture with the warped relevance maps, and the frame before for the motion channel.

        Windows that differ from the frame before by noise only are taken from this frame, and show no motion.
        """
        assert self._step is not None
        step = self._step
        maps: dict[str, torch.Tensor | None] = {
            "previous_relevance": self._relevance, "fixation": self._fixation, "previous_saliency": self._saliency,
        }  # fmt: skip
        for name, values in maps.items():
            if values is not None:
                step = step.resize(_size(values))
                maps[name] = (warp(values, step) * step.confidence).clamp(0, 1)
        self._relevance, self._fixation, self._saliency = maps.values()
        change = gates.window_mean((now - last).abs())
        still = change <= gates.noise_threshold(change)
        previous = texture.pixels
        if not bool(still.all()):
            plane = F.interpolate(still[None, None].float(), size=texture.size)[0, 0] > 0
            previous = torch.where(plane, texture.pixels, pixels)
        shown = {name: values for name, values in maps.items() if name in self.settings.maps}
        return texture.supply(previous_frame=previous, **shown)


def _size(plane: torch.Tensor) -> tuple[int, int]:
    return int(plane.shape[-2]), int(plane.shape[-1])


def _resize(values: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """A map on another grid, if the grid changed in between."""
    if values.shape == size:
        return values
    return F.interpolate(values[None, None], size=tuple(size), mode="bilinear", align_corners=False)[0, 0]
