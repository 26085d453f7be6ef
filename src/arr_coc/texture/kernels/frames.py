"""The next frame of a video, of fixed shape, in one graph: flow, features carried along it, and the whole texture anew.

    frame -> small luma -> flow to the frame before -> features carried, each as sure as the flow
          -> whole texture, with motion

On a GPU the channels take less time than carrying them along would (`video/renewing.py` does that on a CPU). What is dear is
the encoder: its features are carried, and `renew` sets new ones at keyframes, or whenever it was asked. A frame in which
nothing was known before starts with `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from arr_coc.errors import ArrCocError
from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gating
from arr_coc.texture.filters import LUMA_WEIGHTS
from arr_coc.texture.kernels.axes import filtered, resized
from arr_coc.texture.kernels.flowing import Flowing
from arr_coc.texture.kernels.recording import captured
from arr_coc.texture.kernels.warping import warp_planes
from arr_coc.texture.kernels.whole import Whole
from arr_coc.texture.layout import FULL40


class Frames:
    """Frames `[3, H, W]` of one size, one after the other. `whole` holds the texture, `flow` where everything was."""

    def __init__(
        self,
        size: tuple[int, int],
        *,
        layout: str | Sequence[str] = FULL40,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cuda",
        levels: int = 5,
        features: tuple[int, int] = (7, 7),
        side: int = flows.SIDE,
    ) -> None:
        """features: the encoder's grid (h, w). side: px of the longer side that flow is worked out at."""
        self.whole = Whole(
            1, size, layout=layout, dtype=dtype, device=device, levels=levels, moving=True, embeddings=features
        )
        share = min(1.0, side / max(size))
        small = max(flows.MIN_SIDE, round(size[0] * share)), max(flows.MIN_SIDE, round(size[1] * share))
        self._flowing = Flowing(small, device)
        self._weights = torch.tensor(LUMA_WEIGHTS, device=device)
        self._last = torch.zeros(small, device=device)
        # To the size of flow, without most of the noise; and from there to the encoder's cells.
        self._smaller = [
            (filtered(less, gating.denoise_kernel()) @ resized(length, less)).float().to(device)
            for length, less in zip(size, small, strict=True)
        ]
        self._to_cells = [resized(less, cells).float().to(device) for less, cells in zip(small, features, strict=True)]
        self._in_cells = torch.tensor([features[1] / small[1], features[0] / small[0]], device=device).view(2, 1, 1)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._begun = False

    @property
    def flow(self) -> flows.Flow:
        """Where everything was in the frame before; the next frame overwrites it."""
        return self._flowing.flow

    def begin(self, frame: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The first frame of a scene, with what the encoder says of it `[16, h, w]`: the texture `[1, C, H, W]`."""
        made = self.whole
        made.update(frame[None], frame[None], features[None])
        self._last.copy_(self._small(frame))
        assert made.before is not None
        made.before.copy_(frame[None])
        self._begun = True
        return made.block

    def renew(self, features: torch.Tensor) -> None:
        """What the encoder says of the frame that was seen last: carried from there on."""
        assert self.whole.features is not None
        self.whole.features.copy_(features[None])

    def next(self, frame: torch.Tensor) -> torch.Tensor:
        """The texture of the next frame: `[1, C, H, W]`, written by the graph if there is one."""
        if not self._begun:
            raise ArrCocError("expected `begin` for the first frame of a scene, got `next`")
        if frame.shape != self.whole.pixels.shape[1:]:
            raise ArrCocError(
                f"expected frames {list(self.whole.pixels.shape[1:])}, got {list(frame.shape)}: make other `Frames` for them"
            )
        self.whole.pixels.copy_(frame[None], non_blocking=True)
        if self._graph is None:
            self.write()
        else:
            self._graph.replay()
        return self.whole.block

    def capture(self) -> Frames:
        """Record all that a next frame takes. CUDA only; what is known so far is lost, so begin anew afterwards."""
        self._graph = captured(self.write, self.whole.device)
        self._begun = False
        return self

    def write(self) -> None:
        """Everything, from the buffers of this object, which are then those of the frame before."""
        made = self.whole
        assert made.before is not None
        assert made.features is not None
        now = self._small(made.pixels[0])
        made.write(self._carry_along(now))
        made.before.copy_(made.pixels)
        self._last.copy_(now)

    def _carry_along(self, now: torch.Tensor) -> Callable[[], None]:
        """Flow, and features carried along it: runs beside the channels that need neither."""

        def carry() -> None:
            features = self.whole.features
            assert features is not None
            found = self._flowing.between(self._last, now)
            down, across = self._to_cells
            vectors = down @ found.vectors @ across.T * self._in_cells
            features.copy_(warp_planes(features[0], vectors)[None])

        return carry

    def _small(self, frame: torch.Tensor) -> torch.Tensor:
        """The luma that flow is worked out at, without most of its noise."""
        down, across = self._smaller
        luma = (self._weights @ frame.flatten(1)).view(frame.shape[1:])
        return down @ luma @ across.T
