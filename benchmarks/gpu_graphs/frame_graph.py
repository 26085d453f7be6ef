"""The next frame of a video, of fixed shape, in one graph: flow, features warped along it, and a new texture.

    frame -> small luma -> flow to the previous frame -> features warped
          -> texture, with motion

On a GPU computing the channels takes less time than warping them (`video/texture_update.py` warps on a CPU). The encoder is
expensive: its features are warped, and `set_features` replaces them at keyframes. The first frame of a scene is `begin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from arr_coc.errors import ArrCocError
from arr_coc.frames import flow as flows
from arr_coc.frames import gate as gating
from arr_coc.texture.filters import LUMA_WEIGHTS
from arr_coc.texture.kernels.cuda_graph import capture_graph
from arr_coc.texture.kernels.sampling import warp_planes
from arr_coc.texture.layout import FULL40
from gpu_graphs.flow import PyramidFlow, filter_matrix, resize_matrix
from gpu_graphs.texture_graph import TextureGraph


class FrameGraph:
    """Frames `[3, H, W]` of one size, one after the other. `textures` holds the texture, `flow` the backward flow."""

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
        """features: the encoder's grid (h, w). side: px of the longer side at which flow is computed."""
        self.textures = TextureGraph(
            1, size, layout=layout, dtype=dtype, device=device, levels=levels, moving=True, embeddings=features
        )
        share = min(1.0, side / max(size))
        small = max(flows.MIN_SIDE, round(size[0] * share)), max(flows.MIN_SIDE, round(size[1] * share))
        self._flow = PyramidFlow(small, device)
        self._weights = torch.tensor(LUMA_WEIGHTS, device=device)
        self._last = torch.zeros(small, device=device)
        # To the size of the flow, denoised; and from there to the encoder's cells.
        self._smaller = [
            (filter_matrix(less, gating.denoise_kernel()) @ resize_matrix(length, less)).float().to(device)
            for length, less in zip(size, small, strict=True)
        ]
        self._to_cells = [
            resize_matrix(less, cells).float().to(device) for less, cells in zip(small, features, strict=True)
        ]
        self._in_cells = torch.tensor([features[1] / small[1], features[0] / small[0]], device=device).view(2, 1, 1)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._begun = False

    @property
    def flow(self) -> flows.Flow:
        """The flow to the previous frame; the next frame overwrites it."""
        return self._flow.flow

    def begin(self, frame: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The first frame of a scene, with the encoder's features `[16, h, w]`: the texture `[1, C, H, W]`."""
        made = self.textures
        made.update(frame[None], frame[None], features[None])
        self._last.copy_(self._small(frame))
        assert made.before is not None
        made.before.copy_(frame[None])
        self._begun = True
        return made.block

    def set_features(self, features: torch.Tensor) -> None:
        """New features of the last frame, warped from there on."""
        assert self.textures.features is not None
        self.textures.features.copy_(features[None])

    def next(self, frame: torch.Tensor) -> torch.Tensor:
        """The texture of the next frame: `[1, C, H, W]`, written by the graph if it is captured."""
        if not self._begun:
            raise ArrCocError("expected `begin` for the first frame of a scene, got `next`")
        if frame.shape != self.textures.pixels.shape[1:]:
            raise ArrCocError(
                f"expected frames {list(self.textures.pixels.shape[1:])}, got {list(frame.shape)}: make another FrameGraph"
            )
        self.textures.pixels.copy_(frame[None], non_blocking=True)
        if self._graph is None:
            self.write()
        else:
            self._graph.replay()
        return self.textures.block

    def capture(self) -> FrameGraph:
        """Capture the work of a next frame. CUDA only; the state is lost, so call `begin` afterwards."""
        self._graph = capture_graph(self.write, self.textures.device)
        self._begun = False
        return self

    def write(self) -> None:
        """Write everything from the buffers, which then hold the previous frame."""
        made = self.textures
        assert made.before is not None
        assert made.features is not None
        now = self._small(made.pixels[0])
        made.write(self._warp_features(now))
        made.before.copy_(made.pixels)
        self._last.copy_(now)

    def _warp_features(self, now: torch.Tensor) -> Callable[[], None]:
        """Flow, and features warped along it: runs at the same time as the channels that need neither."""

        def warp() -> None:
            features = self.textures.features
            assert features is not None
            found = self._flow.between(self._last, now)
            down, across = self._to_cells
            vectors = down @ found.vectors @ across.T * self._in_cells
            features.copy_(warp_planes(features[0], vectors)[None])

        return warp

    def _small(self, frame: torch.Tensor) -> torch.Tensor:
        """The small, denoised luma for the flow."""
        down, across = self._smaller
        luma = (self._weights @ frame.flatten(1)).view(frame.shape[1:])
        return down @ luma @ across.T
