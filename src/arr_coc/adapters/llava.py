"""LLaVA-1.5, and the base classes of the families with a plain vision transformer and one position per token.

- A plain ViT gives every token its own learned position and attends within a tile, so leaving a token out equals masking
  it in every layer.
- The processor crops the picture's centre, or pads it to a square: the grid's area is the part that the model sees.
- The features come from a block before the last one, so the later blocks are skipped when some of the cells are encoded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Adapter, Encoded, Features, Inputs, Visual
from arr_coc.adapters.encoder import CLIP_BLOCK, BlockNames, TileRecorder
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.grid import Cells, Grid, Mosaic

TOWERS = {"clip_vision_model": 1, "siglip_vision_model": 0}  # tokens before the patches (CLIP: the class token)


class OnePositionPerToken(Adapter):
    """Families whose positions `[B, T]` count visual tokens like text, as the model's own `generate` does."""

    as_tensor: ClassVar[tuple[str, ...]] = ()  # kinds whose features the model takes as one tensor, not one per row

    def positions(self, inputs: Inputs) -> torch.Tensor:
        self._check_attention()
        mask = inputs["attention_mask"].long()
        return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        made = super().encoder_outputs({kind: rows for kind, rows in kept.items() if kind not in self.as_tensor})
        for kind in self.as_tensor:
            tokens = [tokens for tokens, _ in kept.get(kind, ())]  # one tensor per row
            if any(len(part) for part in tokens):  # without tokens the model takes no features
                made[kind] = row_repeating_output()(pooler_output=torch.cat(tokens)[:, None])  # [K, 1, D]
                made[kind].counts = [len(part) for part in tokens]
        return made

    def pixels(self, inputs: Inputs, key: str = "pixel_values") -> torch.Tensor:
        """The processor's pixels, on the model's device."""
        pixels = inputs.get(key)
        if pixels is None:
            raise PromptError(f"expected {key} for the visual tokens of the prompt, got none: pass it in the inputs")
        return pixels.to(self.device)

    def check(self) -> None:
        super().check()
        if not hasattr(self.text_model, "rotary_emb"):
            raise ModelError(
                f"expected a language model with rotary positions, got {self.config.get_text_config().model_type!r}: "
                "kept tokens could not keep their own positions"
            )
        self._check_attention()

    def _check_attention(self) -> None:
        if self.flash_attention and not _flash_allows_gaps():
            chosen = self.config.get_text_config()._attn_implementation
            raise ModelError(
                f"expected attn_implementation='sdpa' for {self.family}, got {chosen!r}, with which this version of "
                "transformers reads a gap in the positions as the start of another text: load the model with "
                "attn_implementation='sdpa'"
            )


@cache
def _flash_allows_gaps() -> bool:
    """Whether transformers gives FlashAttention a row of positions with a gap, from which tokens were dropped, as one text."""
    try:
        from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
    except ImportError:
        return False
    (starts, _), _ = prepare_fa_kwargs_from_position_ids(torch.tensor([[2, 3, 7, 8]]))
    return bool(starts.tolist() == [0, 4])


@cache
def row_repeating_output() -> type:
    """An output class for features `[K, 1, D]` of rows with `counts` tokens each, which beam search repeats row by row.

    Some versions of transformers repeat each token instead, and assign a list of tokens in that wrong order.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    class RowRepeatingOutput(BaseModelOutputWithPooling):
        counts: ClassVar[Sequence[int]] = ()
        mirrored: ClassVar[bool] = False  # whether the model reads `last_hidden_state`, which beam search leaves alone

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "pooler_output" and isinstance(value, list) and self.counts:
                times = len(value) // sum(self.counts)
                whole: Any = self.pooler_output
                rows = whole.split(list(self.counts))
                value = [token for row in rows for _ in range(times) for token in row]
            super().__setattr__(name, value)
            if name == "pooler_output" and self.mirrored and isinstance(value, torch.Tensor):
                super().__setattr__("last_hidden_state", value)

    return dataclass(RowRepeatingOutput)


class TiledAdapter(OnePositionPerToken):
    """Families that cut a picture into tiles of equal size; a cell is `merge` x `merge` patches of a tile."""

    as_tensor: ClassVar[tuple[str, ...]] = ("image",)
    block_names: ClassVar[BlockNames] = CLIP_BLOCK
    first: int = 0  # tokens of the tower before the first patch
    extras: int = 0  # those of them that the language model also reads
    merge: int = 1  # patches along a cell's side

    @property
    @abstractmethod
    def side(self) -> int:
        """Cells along a tile's side."""

    @property
    @abstractmethod
    def blocks(self) -> Any:
        """The tower's blocks that the features depend on."""

    @property
    def outputs(self) -> list[int]:
        """The blocks whose inputs are the features (the number of blocks: the last one's output)."""
        return [len(self.blocks)]

    @abstractmethod
    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        """The pixels of all tiles that are encoded, in order: `[T, 3, H, W]`."""

    @abstractmethod
    def _encode_all(self, inputs: Inputs) -> torch.Tensor:
        """All tiles' tokens by the stock encoder: `[T, N, D]`."""

    @abstractmethod
    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        """The first block's input: `[T, S, D]`."""

    @abstractmethod
    def _project(self, cells: torch.Tensor) -> torch.Tensor:
        """Cells with their patches concatenated, row by row, `[M, merge ** 2 * C]` to tokens `[M, D]`."""

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        tiles = [visual.n // self.side**2 for visual in visuals]
        starts = [0, *accumulate(tiles)]
        recorder = TileRecorder(self.blocks, self.block_names, depths)
        if dense := cells is None:
            with recorder.attached():
                answer = self._encode_all(inputs).flatten(0, 1)
            tokens = answer.split([visual.n + self.extras for visual in visuals])
            cells = [torch.arange(visual.n) for visual in visuals]
        else:
            tokens = self._encode_some(inputs, tiles, cells, recorder)
        return [
            Encoded(
                chosen, part[self.extras :], extra=part[: self.extras] if self.extras else None,
                attention=self._attention(recorder, start, count, dense),
            )
            for chosen, part, start, count in zip(cells, tokens, starts[:-1], tiles, strict=True)
        ]  # fmt: skip

    def _encode_some(
        self, inputs: Inputs, tiles: Sequence[int], cells: Sequence[torch.Tensor], recorder: TileRecorder
    ) -> Sequence[torch.Tensor]:
        """Each visual's tokens `[K, D]`, extras first, from the patches of its chosen cells only."""
        if not self.extras and not any(len(some) for some in cells):
            return [torch.zeros(0, self.width, device=self.device, dtype=self.model.dtype)] * len(cells)
        in_tile = self.side**2
        chosen: list[torch.Tensor] = [torch.zeros(0, dtype=torch.long)] * sum(tiles)
        for start, some in zip([0, *accumulate(tiles)][:-1], cells, strict=True):
            for tile in {*(some // in_tile).tolist(), *range(min(self.extras, 1))}:
                patches = self._patches(some[some // in_tile == tile] % in_tile)
                chosen[start + tile] = torch.cat([torch.arange(self.first), patches + self.first])
        hidden = self._embed(self._tile_pixels(inputs))  # cheap compared with the blocks
        states = run_blocks(self.blocks, self.block_names, hidden, chosen, self.outputs, recorder)
        merged = [state[self.first - self.extras :].reshape(-1, self.merge**2 * state.shape[-1]) for state in states]
        return self._project(torch.cat(merged)).split([len(some) + self.extras for some in cells])

    def _patches(self, cells: torch.Tensor) -> torch.Tensor:
        """The patches `[K * merge ** 2]` of a tile's cells `[K]`, cell by cell, row by row inside each."""
        inside = torch.arange(self.merge)
        rows = (cells // self.side * self.merge)[:, None, None] + inside[:, None]
        columns = (cells % self.side * self.merge)[:, None, None] + inside
        return (rows * self.side * self.merge + columns).flatten()

    def _attention(self, recorder: TileRecorder, start: int, tiles: int, by_row: bool) -> dict[float, torch.Tensor]:
        """Depth -> the attention that each encoded cell receives, averaged over its patches `[M]`.

        `by_row`: the patches of a tile are ordered row by row, as in the stock encoder; else cell by cell.
        """
        found: dict[float, list[torch.Tensor]] = {depth: [] for depth in recorder.layers}
        order = self._patches(torch.arange(self.side**2))
        for tile in range(start, start + tiles):
            for depth, values in recorder.tile(tile).items():
                patches = values[self.first :]
                patches = patches[order.to(patches.device)] if by_row else patches
                found[depth].append(patches.view(-1, self.merge**2).mean(1))
        return {depth: torch.cat(parts) for depth, parts in found.items()}

    def image_runs(self, ids: torch.Tensor) -> list[tuple[int, int, int]]:
        """Row, start and end of every unbroken run of image tokens in `[B, T]`."""
        edges = torch.nn.functional.pad((ids.cpu() == self.token_id("image")).int(), (1, 1)).diff(dim=1)
        starts, ends = (edges == 1).nonzero(), (edges == -1).nonzero()
        return [(row, start, end) for (row, start), (_, end) in zip(starts.tolist(), ends.tolist(), strict=True)]

    def check_tiles(self, shown: Sequence[int], placed: Sequence[int]) -> None:
        """Raise unless the prompt has image tokens for the tiles that the pixels show, part by part."""
        if list(shown) != list(placed):
            counts = [" + ".join(map(str, part)) or "0" for part in (shown, placed)]
            raise PromptError(
                f"expected image tokens for the {counts[0]} tiles of pixel_values, got those of {counts[1]}: pass the "
                "processor's whole output, not truncated"
            )

    def tile_grid(self, rows: int, columns: int) -> Cells:
        """`rows` x `columns` tiles, row by row, and then a thumbnail: the whole picture squeezed into a tile."""
        parts = [
            Grid(1, self.side, self.side, (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows))
            for row in range(rows)
            for column in range(columns)
        ]
        return Mosaic((*parts, Grid(1, self.side, self.side)))


def run_blocks(
    blocks: Sequence[Any], names: BlockNames, hidden: torch.Tensor, chosen: Sequence[torch.Tensor],
    outputs: Sequence[int], recorder: TileRecorder,
) -> list[torch.Tensor]:  # fmt: skip
    """Run the chosen tokens `[s]` of each tile through the blocks, tiles with equally many of them in one batch.

    `hidden` `[T, S, D]` is the first block's input. Returns, for each tile, the inputs of the blocks `outputs` (the number
    of blocks: the last one's output), concatenated: `[s, D * len(outputs)]`.
    """
    out = [hidden.new_zeros(0, hidden.shape[-1] * len(outputs))] * len(chosen)
    by_count: dict[int, list[int]] = {}
    for tile, tokens in enumerate(chosen):
        by_count.setdefault(len(tokens), []).append(tile)
    by_count.pop(0, None)
    for tiles in by_count.values():
        state = torch.stack([hidden[tile, chosen[tile].to(hidden.device)] for tile in tiles])  # [G, s, D]
        states = [state]
        for number in range(max(outputs)):
            recorder.record(number, state, tiles)
            block = blocks[number]
            state = block(state, None) if names.takes_mask else block(state)
            states.append(state)
        for tile, features in zip(tiles, torch.cat([states[number] for number in outputs], -1), strict=True):
            out[tile] = features
    return out


class Llava(TiledAdapter):
    family: ClassVar[str] = "LLaVA-1.5"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    processor: ClassVar[str] = "LlavaProcessor"
    fixed_grid: ClassVar[bool] = True
    as_tensor: ClassVar[tuple[str, ...]] = ()

    @property
    def vision(self) -> Any:
        return self.core.vision_tower

    @property
    def first(self) -> int:  # type: ignore[override]
        return TOWERS[self.config.vision_config.model_type]

    @property
    def extras(self) -> int:  # type: ignore[override]
        return self.first if self.config.vision_feature_select_strategy == "full" else 0

    @property
    def side(self) -> int:
        return int(self.config.vision_config.image_size // self.config.vision_config.patch_size)

    @property
    def outputs(self) -> list[int]:
        chosen = self.config.vision_feature_layer
        count = len(self.vision.encoder.layers)
        return [layer % (count + 1) for layer in ([chosen] if isinstance(chosen, int) else chosen)]

    @property
    def blocks(self) -> Any:
        return self.vision.encoder.layers[: max(self.outputs)]

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        pixels = inputs.get("pixel_values")
        if pixels is None:
            return []
        if sizes is None:
            return [Grid(1, self.side, self.side)] * len(pixels)
        shown = (pixels.shape[-1], pixels.shape[-2])
        return [Grid(1, self.side, self.side, seen_area(self.image_processor, size, shown)) for size in sizes]

    def token_count(self, grid: Cells) -> int:
        return grid.n + self.extras

    def cell_tokens(self, grid: Cells) -> torch.Tensor | None:
        return torch.arange(grid.n) + self.extras if self.extras else None

    def _tile_pixels(self, inputs: Inputs) -> torch.Tensor:
        return self.pixels(inputs)

    def _encode_all(self, inputs: Inputs) -> torch.Tensor:
        answer: Any = self.core.get_image_features(self.pixels(inputs), return_dict=True).pooler_output
        return answer if isinstance(answer, torch.Tensor) else torch.stack(list(answer))

    def _embed(self, tiles: torch.Tensor) -> torch.Tensor:
        norm = getattr(self.vision, "pre_layrnorm", torch.nn.Identity())
        return norm(self.vision.embeddings(tiles))

    def _project(self, cells: torch.Tensor) -> torch.Tensor:
        return self.core.multi_modal_projector(cells)

    def check(self) -> None:
        super().check()
        check_tower(self.config, self.family)


def check_tower(config: Any, family: str) -> None:
    """Raise where the vision tower, or its settings, are not supported."""
    kind = config.vision_config.model_type
    if kind not in TOWERS:
        raise ModelError(
            f"expected a CLIP or SigLIP vision tower in {family}, got {kind!r}: this model cannot be wrapped"
        )
    if config.vision_feature_select_strategy == "default" and not TOWERS[kind]:
        raise ModelError(
            f"expected vision_feature_select_strategy='full' with {kind!r}, which has no class token, got 'default', "
            "which drops the first patch: correct the model's configuration"
        )


def seen_area(settings: Any, size: tuple[int, int], seen: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part of a picture of `size` that an image processor turned into `seen` pixels (both width, height), as fractions.

    Without `settings`: the shorter side is resized to that of `seen` and the centre cropped, as CLIP does. Padding around
    the picture extends the area below 0 and above 1, so that every cell's box is where its pixels are.
    """
    padded = hasattr(settings, "pad_to_square") and bool(settings.do_pad)
    cropped = settings is None or bool(getattr(settings, "do_center_crop", False))
    canvas = (max(size), max(size)) if padded else size
    resized = _resized(settings, canvas, seen)
    edges = []
    for whole, now, shown, original in zip(canvas, resized, seen, size, strict=True):
        start, end = ((now - shown) // 2, (now - shown) // 2 + shown) if cropped else (0, now)
        before = (whole - original) // 2
        edges.append([(at * whole / now - before) / original for at in (start, end)])
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _resized(settings: Any, canvas: tuple[int, int], seen: tuple[int, int]) -> tuple[int, int]:
    """Width and height of the canvas after resizing."""
    size = {"shortest_edge": min(seen)} if settings is None else dict(settings.size or {})
    if settings is not None and not settings.do_resize:
        return canvas
    if size.get("shortest_edge") is None:
        return size["width"], size["height"]
    short = size["shortest_edge"]
    long = int(short * max(canvas) / min(canvas))
    return (short, long) if canvas[0] <= canvas[1] else (long, short)
