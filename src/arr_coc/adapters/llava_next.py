"""LLaVA-NeXT (1.6), LLaVA-NeXT-Video, LLaVA-OneVision and Granite 4 Vision: an overview and tiles of each picture.

A picture's tokens are the overview's cells, then those of all tiles as one large grid, row by row, with a newline token
after each row. Newline tokens are not cells: they always stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Encoded, Features, Inputs, Visual
from arr_coc.adapters.encoder import CLIP_BLOCK, TileRecorder
from arr_coc.adapters.llava import TOWERS, OnePositionPerToken, check_tower
from arr_coc.errors import ModelError
from arr_coc.types.grid import Cells, Grid, Mosaic

Size = tuple[int, int]  # width, height


class LlavaNext(OnePositionPerToken):
    family: ClassVar[str] = "LLaVA-NeXT"
    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)
    processor: ClassVar[str] = "LlavaNextProcessor"
    # Padding around a picture is encoded but has no cells: a choice of cells does not say which padding to encode.
    glances: ClassVar[bool] = False

    @property
    def cells_a_side(self) -> int:
        vision = self.config.vision_config
        return int(vision.image_size // vision.patch_size)

    @property
    def first(self) -> int:
        """Tokens of the tower before the first patch."""
        return TOWERS[self.config.vision_config.model_type]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        originals = inputs.get("image_sizes")
        return [] if originals is None else [self._mosaic((width, height)) for height, width in originals.tolist()]

    def _mosaic(self, size: tuple[int, int], most: int | None = None) -> Cells:
        best = best_canvas(size, self.config.image_grid_pinpoints)
        return mosaic(size, best, self.config.vision_config.image_size, self.cells_a_side, most)

    def token_count(self, grid: Cells) -> int:
        """Cells and newline tokens; a single view, or a video, has one newline at its end."""
        return grid.n + (grid.views[1].h if isinstance(grid, Mosaic) else 1)

    def cell_tokens(self, grid: Cells) -> torch.Tensor:
        if not isinstance(grid, Mosaic):
            return torch.arange(grid.n)
        overview, large = grid.views
        rows = torch.arange(large.h)[:, None] * (large.w + 1) + torch.arange(large.w)
        return torch.cat([torch.arange(overview.n), overview.n + rows.flatten()])

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        if cells is not None:
            raise ModelError(f"{self.family} encodes whole pictures only: expected all cells, got some")
        recorder = TileRecorder(self.core.vision_tower.encoder.layers, CLIP_BLOCK, depths)
        with recorder.attached():
            features = self._features(inputs, kind)
        maps = {depth: self._maps(inputs, kind, recorder, depth) for depth in depths}
        encoded = []
        for number, (visual, tokens) in enumerate(zip(visuals, features, strict=True)):
            at = self.cell_tokens(visual.grid).to(tokens.device)
            newlines = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
            newlines[at] = False
            attention = {depth: values[number] for depth, values in maps.items()}
            encoded.append(Encoded(torch.arange(visual.n), tokens[at], extra=tokens[newlines], attention=attention))
        return encoded

    def _features(self, inputs: Inputs, kind: str) -> Sequence[torch.Tensor]:
        """Every picture's tokens, newlines included: `[T, D]` each."""
        sizes = inputs["image_sizes"]
        return self.core.get_image_features(self.pixels(inputs), sizes, return_dict=True).pooler_output

    def _maps(self, inputs: Inputs, kind: str, recorder: TileRecorder, depth: float) -> list[torch.Tensor]:
        """The attention that every picture's cells receive: `[N]` each."""
        tiles = self._tiles(inputs)
        maps = self._stack_tiles(recorder, depth, sum(tiles)).split(tiles)
        return [values[:, 0] for values in self._pack(list(maps), inputs)]

    def _stack_tiles(self, recorder: TileRecorder, depth: float, count: int) -> torch.Tensor:
        """The attention that the patches of the first `count` tiles receive: `[tiles, patches, 1]`."""
        return torch.stack([recorder.tile(tile)[depth][self.first :, None] for tile in range(count)])

    def _tiles(self, inputs: Inputs) -> list[int]:
        """The number of views of each picture."""
        side = self.config.vision_config.image_size
        offered = self.config.image_grid_pinpoints
        canvases = [best_canvas((width, height), offered) for height, width in inputs["image_sizes"].tolist()]
        return [1 + (width // side) * (height // side) for width, height in canvases]

    def _pack(self, values: list[torch.Tensor], inputs: Inputs) -> list[torch.Tensor]:
        """Values of every picture's patches `[tiles, patches, 1]` as values of its cells `[N, 1]`."""
        strategy = self.config.vision_feature_select_strategy
        return self.core.pack_image_features(values, inputs["image_sizes"], strategy)[0]

    def check(self) -> None:
        super().check()
        check_tower(self.config, self.family)
        if self.first and self.config.vision_feature_select_strategy != "default":
            raise ModelError(
                f"expected vision_feature_select_strategy='default' in {self.family} with a class token, got "
                f"{self.config.vision_feature_select_strategy!r}, which leaves that token among the patches: "
                "correct the model's configuration"
            )


class LlavaOnevision(LlavaNext):
    """Single pictures as in LLaVA-NeXT, one view of each of several, pooled frames of a video.

    The large grid of a big picture is scaled down after the encoder, and frames are pooled. Both mix neighbouring tokens,
    so the encoder cannot run on some of the cells.
    """

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
        maps = self._stack_tiles(recorder, depth, videos * frames)
        return list(self.core.apply_pooling(maps).reshape(videos, -1))

    def _tiles(self, inputs: Inputs) -> list[int]:
        return [
            tiles if single else 1 for tiles, single in zip(super()._tiles(inputs), self._singles(inputs), strict=True)
        ]

    def _pack(self, values: list[torch.Tensor], inputs: Inputs) -> list[torch.Tensor]:
        ratio = self.config.vision_aspect_ratio
        return self.core.pack_image_features(values, inputs["image_sizes"], vision_aspect_ratio=ratio)[0]


class LlavaNextVideo(LlavaNext):
    """Pictures as in LLaVA-NeXT; the frames of a video are pooled, without newline tokens."""

    family: ClassVar[str] = "LLaVA-NeXT-Video"
    model_types: ClassVar[tuple[str, ...]] = ("llava_next_video",)
    processor: ClassVar[str] = "LlavaNextVideoProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)
    records: ClassVar[bool] = False
    kinds: ClassVar[tuple[str, ...]] = ("image", "video")
    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_values_videos")

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        if kind == "image":
            return super().grids(inputs, kind, sizes)
        videos = inputs.get("pixel_values_videos")
        side = self.cells_a_side // self.config.spatial_pool_stride
        return [] if videos is None else [Grid(len(video), side, side) for video in videos]

    def token_count(self, grid: Cells) -> int:
        return super().token_count(grid) if isinstance(grid, Mosaic) else grid.n

    def _features(self, inputs: Inputs, kind: str) -> Sequence[torch.Tensor]:
        if kind == "image":
            return super()._features(inputs, kind)
        pixels = self.pixels(inputs, "pixel_values_videos")
        return self.core.get_video_features(pixels, return_dict=True).pooler_output


class Granite4Vision(LlavaNext):
    """Pictures as in LLaVA-NeXT, with windows of patches pooled by learned queries, and features for several layers."""

    family: ClassVar[str] = "Granite 4 Vision"
    model_types: ClassVar[tuple[str, ...]] = ("granite4_vision",)
    processor: ClassVar[str] = "Granite4VisionProcessor"
    oldest: ClassVar[tuple[int, int]] = (5, 22)
    records: ClassVar[bool] = False
    readable: ClassVar[bool] = False
    replaces: ClassVar[bool] = False

    @property
    def cells_a_side(self) -> int:
        return int(super().cells_a_side * Fraction(self.config.downsample_rate))

    @property
    def language_layers(self) -> list[int]:
        """The language layers that take features, in the encoder's order."""
        return [layer for _, layer in self.config.deepstack_layer_map] + list(self.config.spatial_target_layers)

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        if cells is not None:
            raise ModelError(f"{self.family} encodes whole pictures only: expected all cells, got some")
        output = self.core.get_image_features(self.pixels(inputs), inputs["image_sizes"], return_dict=True)
        levels = [packed for _, packed in output.deepstack_features]
        encoded = []
        for number, visual in enumerate(visuals):
            at = self.cell_tokens(visual.grid).to(self.device)
            newlines = torch.ones(len(visual.places), dtype=torch.bool, device=self.device)
            newlines[at] = False
            deep = tuple(level[number][at] for level in levels)
            encoded.append(Encoded(torch.arange(visual.n), deep[0], deep, extra=levels[0][number][newlines]))
        return encoded

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        from transformers.models.granite4_vision.modeling_granite4_vision import Granite4VisionImageFeaturesOutput

        return {
            kind: Granite4VisionImageFeaturesOutput(
                deepstack_features=[
                    (layer, [deep[number] for _, deep in rows]) for number, layer in enumerate(self.language_layers)
                ]
            )
            for kind, rows in kept.items()
        }


def mosaic(size: Size, best: Size, side: int, cells: int, most: int | None) -> Mosaic:
    """Overview and large grid of a picture of `size`, resized into a canvas of `best` pixels (both width, height).

    A tile's side has `side` pixels and `cells` cells. With `most`, a grid with clearly more cells than that many tiles is
    scaled down. The overview is the whole picture, squeezed into a square. The canvas is padded around the picture. Rows
    and columns of padding only are cut off, but a row may be half padding: the large grid's area can exceed 0 and 1 a
    little. Pixels at a tile's end that fill no patch count as part of its last cells.
    """
    full = [pixels // side * cells for pixels in best]  # columns, rows of the canvas
    shown_size = _resized_into(size, best)
    cut = _padding(size, full)
    edges = []
    for canvas, count, shown, off in zip(best, full, shown_size, cut, strict=True):
        pixels, before = canvas / count, (canvas - shown) // 2  # of a cell, and of the padding before the picture
        edges.append([(at * pixels - before) / shown for at in (off, count - off)])
    columns, rows = (count - 2 * off for count, off in zip(full, cut, strict=True))
    if most is not None and (ratio := math.sqrt(rows * columns / (most * cells**2))) > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    (start, end), (top, bottom) = edges
    return Mosaic((Grid(1, cells, cells), Grid(1, rows, columns, (start, top, end, bottom))))


def best_canvas(size: Size, offered: Sequence[Sequence[int]]) -> Size:
    """The canvas (width, height) for a picture of `size`, out of those `offered` as (height, width)."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = select_best_resolution((size[1], size[0]), list(offered))
    return width, height


def padded_square(size: Size, cells: int) -> Grid:
    """One view of the picture, padded to a square: the area includes the padding."""
    side = max(size)
    edges = []
    for length in size:
        before = (side - length) // 2
        edges.append((-before / length, (side - before) / length))
    (left, right), (top, bottom) = edges
    return Grid(1, cells, cells, (left, top, right, bottom))


def _resized_into(size: Size, best: Size) -> Size:
    """Width and height of the picture inside its canvas."""
    across, down = best[0] / size[0], best[1] / size[1]
    if across < down:
        return best[0], min(math.ceil(size[1] * across), best[1])
    return min(math.ceil(size[0] * down), best[0]), best[1]


def _padding(size: Size, full: Sequence[int]) -> Size:
    """Columns on each side, and rows on each end, that are cut off a canvas of `full` cells."""
    columns, rows = full
    if size[0] / size[1] > columns / rows:
        return 0, (rows - int(round(size[1] * (columns / size[0]), 7))) // 2
    return (columns - int(round(size[0] * (rows / size[1]), 7))) // 2, 0
