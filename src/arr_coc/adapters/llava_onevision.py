"""LLaVA-OneVision: an overview and tiles of a single picture, one view of each of several, pooled frames of a video.

The large grid of a big picture is scaled down after the encoder, and frames are pooled. Both mix neighbouring tokens, so
the encoder cannot run on some of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch

from arr_coc.adapters.base import Inputs
from arr_coc.adapters.encoder import TileRecorder
from arr_coc.adapters.llava_next import LlavaNext, padded_square
from arr_coc.types.grid import Cells, Grid


class LlavaOnevision(LlavaNext):
    family: ClassVar[str] = "LLaVA-OneVision"
    model_types: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    processor: ClassVar[str] = "LlavaOnevisionProcessor"
    kinds: ClassVar[tuple[str, ...]] = ("image", "video")
    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_values_videos")
    as_tensor: ClassVar[tuple[str, ...]] = ("video",)
    images_by_row: ClassVar[bool] = True  # the number of pictures in a prompt decides how each is encoded

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        if kind == "video":
            videos = inputs.get("pixel_values_videos")
            side = math.ceil(self.cells_a_side / 2)
            # Frames are squeezed into a square, not cropped.
            return [] if videos is None else [Grid(len(video), side, side) for video in videos]
        if inputs.get("image_sizes") is None:
            return []
        originals = [(width, height) for height, width in inputs["image_sizes"].tolist()]
        most = int(self.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        return [
            self._mosaic(size, most) if single else padded_square(size, self.cells_a_side)
            for size, single in zip(originals, self._singles(inputs), strict=True)
        ]

    def _singles(self, inputs: Inputs) -> list[bool]:
        """Whether each picture is the only one of its prompt."""
        counts = inputs.get("batch_num_images")
        if counts is None:
            return [True] * len(inputs["image_sizes"])
        return [count == 1 for count in torch.as_tensor(counts).tolist() for _ in range(count)]

    def _features(self, inputs: Inputs, kind: str) -> Sequence[torch.Tensor]:
        if kind == "video":
            pixels = self.pixels(inputs, "pixel_values_videos")
            return self.core.get_video_features(pixels, return_dict=True).pooler_output
        return self.core.get_image_features(
            self.pixels(inputs), inputs["image_sizes"], batch_num_images=inputs.get("batch_num_images"),
            return_dict=True,
        ).pooler_output  # fmt: skip

    def _maps(self, inputs: Inputs, kind: str, recorder: TileRecorder, depth: float) -> list[torch.Tensor]:
        if kind == "image":
            return super()._maps(inputs, kind, recorder, depth)
        videos, frames = inputs["pixel_values_videos"].shape[:2]
        maps = torch.stack([recorder.tile(frame)[depth][self.first :] for frame in range(videos * frames)])
        return list(self.core.apply_pooling(maps[..., None]).reshape(videos, -1))

    def _tiles(self, inputs: Inputs) -> list[int]:
        return [
            tiles if single else 1 for tiles, single in zip(super()._tiles(inputs), self._singles(inputs), strict=True)
        ]

    def _pack(self, values: list[torch.Tensor], inputs: Inputs) -> list[torch.Tensor]:
        ratio = self.config.vision_aspect_ratio
        return self.core.pack_image_features(values, inputs["image_sizes"], vision_aspect_ratio=ratio)[0]
