"""Idefics3 and SmolVLM: tiles and the whole picture, each a run of image tokens with a tag before it.

The last run of a picture is the whole picture, so the tag before the prompt's last run marks where each picture ends.
Between two tiles of a row are two tokens, a border and a tag; a newline token after them ends the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Inputs
from arr_coc.adapters.llava import TiledAdapter
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.grid import Cells, Grid

TAGS = 2  # tokens between two tiles of a row


class Idefics3(TiledAdapter):
    family: ClassVar[str] = "Idefics3"
    model_types: ClassVar[tuple[str, ...]] = ("idefics3",)
    processor: ClassVar[str] = "Idefics3Processor"
    offloads: ClassVar[bool] = False  # whether transformers can run it with an offloaded vision encoder
    images_by_row: ClassVar[bool] = True  # the pixels of a row's tiles are stored together

    @property
    def text_model(self) -> Any:
        return self.core.text_model

    @property
    def merge(self) -> int:  # type: ignore[override]
        return int(self.config.scale_factor)

    @property
    def side(self) -> int:
        vision = self.config.vision_config
        return int(vision.image_size // vision.patch_size // self.merge)

    @property
    def blocks(self) -> Any:
        return self.core.vision_model.encoder.layers

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        if inputs.get("pixel_values") is None:
            return []
        ids = inputs["input_ids"].cpu()
        runs = self.image_runs(ids)
        tag = int(ids[runs[-1][0], runs[-1][1] - 1]) if runs else -1  # before every whole picture
        placed = Counter(row for row, _, _ in runs)
        self.check_tiles(
            [count for tiles in inputs["pixel_values"] if (count := len(_shown(tiles)))],  # rows with pictures only
            [placed[row] for row in sorted(placed)],
        )
        found: list[Cells] = []
        tiles: list[tuple[int, int, int]] = []  # row, start and end of the tiles before the next whole picture
        for row, start, end in runs:
            if end - start != self.side**2:
                raise PromptError(
                    f"expected {self.side**2} image tokens in a run, got {end - start}: "
                    "use the processor that belongs to the model"
                )
            if int(ids[row, start - 1]) != tag:
                tiles.append((row, start, end))
                continue
            columns = 1
            while columns < len(tiles) and tiles[columns][1] - tiles[columns - 1][2] == TAGS:
                columns += 1
            found.append(self.tile_grid(len(tiles) // columns, columns) if tiles else Grid(1, self.side, self.side))
            tiles = []
        return found

    def check(self) -> None:
        super().check()
        if (
            self.core.device.type == "meta" and not self.offloads
        ):  # transformers moves the word embeddings to the device of the first weight
            raise ModelError(
                f"expected a device for model.vision_model of {self.family}, got it offloaded, with which transformers "
                "cannot run it: give it a device in device_map"
            )

    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        return _shown(self.pixels(inputs).to(self.core.dtype).flatten(0, 1))

    def _encode_all(self, inputs: Inputs) -> torch.Tensor:
        mask = inputs.get("pixel_attention_mask")
        mask = None if mask is None else mask.to(self.device)
        answer = self.core.get_image_features(self.pixels(inputs), mask, return_dict=True).pooler_output
        tokens = answer if isinstance(answer, torch.Tensor) else torch.cat(list(answer))  # one tensor, or one per row
        return tokens.reshape(-1, self.side**2, tokens.shape[-1])

    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        patches = self.side * self.merge
        whole = torch.ones(len(tiles), patches, patches, dtype=torch.bool, device=tiles.device)
        return self.core.vision_model.embeddings(pixel_values=tiles, patch_attention_mask=whole)

    def _project(self, cells: torch.Tensor) -> torch.Tensor:
        channels = self.config.vision_config.hidden_size
        normed = self.core.vision_model.post_layernorm(cells.view(-1, channels)).view(len(cells), -1)
        return self.core.connector.modality_projection(normed)


def _shown(tiles: torch.Tensor) -> torch.Tensor:
    """Tiles `[T, 3, H, W]` without those of zeros, which are padding."""
    return tiles[(tiles != 0).flatten(1).any(1)]


class SmolVLM(Idefics3):
    family: ClassVar[str] = "SmolVLM"
    model_types: ClassVar[tuple[str, ...]] = ("smolvlm",)
    processor: ClassVar[str] = "SmolVLMProcessor"
    offloads: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        merge = getattr(self.core, "inputs_merger", None)
        if merge is None:
            return
        one = torch.zeros(1, 1, self.width, device=self.device, dtype=self.model.dtype)
        try:
            with torch.no_grad():
                merge(torch.full((1, 1), self.token_id("image"), device=self.device), one, one)
        except RuntimeError as error:  # some versions take whole tiles of image tokens only
            import transformers

            raise ModelError(
                "expected a transformers whose SmolVLM reads any number of image tokens (5.18, or 5.22 and newer), "
                f"got {transformers.__version__}: pip install -U transformers"
            ) from error
