"""The generic adapter: a prompt of placeholders, an encoder that gives one token for each, positions from the model.

It calls the model's own `get_image_features` and `get_rope_index` and reads the grid from the processor's output. The
families that it serves are listed in `generic_families.py`. A type that is in no list is served by `Unlisted`, which has
to prove itself on a small picture first (`proof.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from inspect import signature
from itertools import accumulate
from typing import Any, ClassVar

import torch

from arr_coc.adapters.base import Encoded, Inputs, Visual
from arr_coc.adapters.llava import OnePositionPerToken
from arr_coc.adapters.processor import TOKEN_COUNTS
from arr_coc.adapters.proof import prove
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.grid import WHOLE, Cells, Grid, Mosaic


class Generic(OnePositionPerToken):
    """Gaze by the model's own methods. Subclasses say where the grid is, and encode some of the cells if they can."""

    glances: ClassVar[bool] = False
    records: ClassVar[bool] = False
    readable: ClassVar[bool] = False
    other_placeholder: ClassVar[bool] = True  # in some of these families

    @cached_property
    def core(self) -> Any:
        inner = getattr(self.model, "model", None)
        return inner if hasattr(inner, "get_image_features") else self.model

    @cached_property
    def text_model(self) -> Any:
        for name in ("language_model", "text_model"):
            if hasattr(self.core, name):
                inner = getattr(self.core, name)
                return inner if hasattr(inner, "layers") else inner.model
        return self.core

    @cached_property
    def rope_index(self) -> Any:
        """The model's method for positions of several axes; None: one position per token."""
        return getattr(self.core, "get_rope_index", None)

    # The grid.

    def views(self, inputs: Inputs, kind: str) -> list[Grid]:
        """The grids of everything that was encoded, in order: pictures, or tiles of pictures."""
        count = int((inputs["input_ids"] == self.token_id(kind)).sum())
        if inputs.get(f"{kind}_grid_thw") is not None:
            return self._thw_views(inputs, kind, count)
        pixels = inputs.get("pixel_values" if kind == "image" else "pixel_values_videos")
        if pixels is None:
            return []
        many = math.prod(pixels.shape[:-3]) if pixels.ndim > 3 else len(pixels)
        return [square(equal_share(count, many))] * many

    def _thw_views(self, inputs: Inputs, kind: str, count: int) -> list[Grid]:
        """From `grid_thw`, in patches: `merge` x `merge` of them make a cell."""
        thw = inputs[f"{kind}_grid_thw"].tolist()
        merge = self.merge or math.isqrt(sum(map(math.prod, thw)) // max(1, count))
        return [Grid(t, h // merge, w // merge) for t, h, w in thw]

    @property
    def merge(self) -> int | None:
        """Patches along a cell's side; None: not in the configuration."""
        vision = self.config.vision_config
        merge = getattr(vision, "spatial_merge_size", None) or getattr(self.config, "spatial_merge_size", None)
        return None if merge is None else int(merge)

    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        """Views grouped to pictures: by the processor's counts, else by unbroken runs of image tokens."""
        views = self.views(inputs, kind)
        if inputs.get(f"{kind}_grid_thw") is not None:
            return list(views)
        counts = inputs.get(TOKEN_COUNTS) if kind == "image" else None
        lengths = run_lengths(inputs["input_ids"], self.token_id(kind)) if counts is None else counts.tolist()
        ends = set(accumulate(lengths))
        found: list[Cells] = []
        group: list[Grid] = []
        at = list(accumulate(self.token_count(view) for view in views))
        for view, end in zip(views, at, strict=True):
            group.append(view)
            if end in ends or end == at[-1]:
                found.append(group[0] if len(group) == 1 else Mosaic(tuple(group)))
                group = []
        return found

    # Positions and features.

    def positions(self, inputs: Inputs) -> torch.Tensor:
        grids = {key: value for key, value in inputs.items() if key.endswith("_grid_thw") and value is not None}
        if self.rope_index is None:
            return super().positions(inputs)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        known = signature(self.rope_index).parameters
        given = dict(grids)
        if "mm_token_type_ids" in known:
            given["mm_token_type_ids"] = self.token_types(ids)
        positions, _ = self.rope_index(ids, attention_mask=mask, **given)
        return positions

    def token_types(self, ids: torch.Tensor) -> torch.Tensor:
        """0 for text, 1 for image tokens, 2 for video tokens: `[B, T]`."""
        kinds = torch.zeros_like(ids, dtype=torch.int32)
        for number, kind in enumerate(("image", "video"), start=1):
            token = getattr(self.config, f"{kind}_token_id", None)
            if token is not None:
                kinds[ids == token] = number
        return kinds

    def _check_attention(self) -> None:
        if getattr(self.core, "get_rope_index", None) is None:  # with several axes, a gap is not read as a new text
            super()._check_attention()

    def stock_features(self, inputs: Inputs, kind: str) -> torch.Tensor:
        """Every token of a kind by the stock encoder, in order: `[T, D]`."""
        return flat(self.stock_output(inputs, kind).pooler_output)

    def stock_output(self, inputs: Inputs, kind: str) -> Any:
        method = getattr(self.core, f"get_{kind}_features")
        known = signature(method).parameters
        given = {name: self._on_device(inputs[name]) for name in known if inputs.get(name) is not None}
        needed = [
            name for name, one in known.items() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        if missing := [name for name in needed if name not in given]:
            raise PromptError(
                f"expected {' and '.join(missing)} for the {kind} tokens of the prompt, got none: pass them in the inputs"
            )
        return method(**given, return_dict=True)

    def _on_device(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, self.model.dtype if value.is_floating_point() else value.dtype)

    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        if cells is not None:
            return self.encode_some(inputs, kind, visuals, cells)
        made, counts = self.stock_features(inputs, kind), [len(visual.places) for visual in visuals]
        if len(made) != sum(counts):
            raise PromptError(
                f"expected {len(made)} {kind} tokens, as many as the encoder gives, got {sum(counts)}: "
                "use the processor that belongs to the model"
            )
        tokens = made.split(counts)
        return [self.split_extra(visual, part) for visual, part in zip(visuals, tokens, strict=True)]

    def split_extra(self, visual: Visual, tokens: torch.Tensor) -> Encoded:
        """A picture's tokens `[T, D]` as cells and the others."""
        everything = torch.arange(visual.n)
        if visual.cells is None:
            return Encoded(everything, tokens)
        others = torch.ones(len(tokens), dtype=torch.bool)
        others[visual.cells] = False
        return Encoded(everything, tokens[visual.cells.to(tokens.device)], extra=tokens[others.to(tokens.device)])

    def encode_some(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor]
    ) -> list[Encoded]:
        """Tokens of some cells of each picture, from their patches alone."""
        raise ModelError(f"{self.family} encodes whole pictures only: expected all cells, got some")

    def check(self) -> None:
        if self.rope_index is None:
            super().check()
        else:
            super(OnePositionPerToken, self).check()


class Unlisted(Generic):
    """A type that is in no list: it is used only after it reproduced the stock model on a picture."""

    family: ClassVar[str] = "an unlisted family"
    model_types: ClassVar[tuple[str, ...]] = ()
    processor: ClassVar[str] = ""

    def __init__(self, model: Any, image_processor: Any = None, batch_windows: bool = False) -> None:
        super().__init__(model, image_processor, batch_windows)
        self.family = f"model type {model.config.model_type!r}"  # type: ignore[misc]
        self.proved = False

    def visuals(self, inputs: Inputs, sizes: Any = None) -> list[Visual]:
        if not self.proved and any(inputs.get(key) is not None for key in self.pixel_keys):
            self.prove(inputs)
        return super().visuals(inputs, sizes)

    def prove(self, inputs: Inputs) -> None:
        self.proved = True  # the proof calls `visuals`
        try:
            with torch.no_grad():
                tokens = self.stock_output(inputs, "image").pooler_output
            self.as_tensor = ("image",) if isinstance(tokens, torch.Tensor) else ()  # type: ignore[misc]
            prove(self, inputs)
        except BaseException:
            self.proved = False
            raise

    def check(self) -> None:
        for what, there in (
            ("an image_token_id in its configuration", getattr(self.config, "image_token_id", None) is not None),
            ("a get_image_features method", hasattr(self.core, "get_image_features")),
        ):
            if not there:
                raise ModelError(f"expected {what} for the generic adapter, got {self.family} without: it is refused")
        super().check()


def flat(tokens: Any) -> torch.Tensor:
    """A stock encoder's output, one tensor or one per picture, as `[T, D]`."""
    if isinstance(tokens, torch.Tensor):
        return tokens.reshape(-1, tokens.shape[-1])
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in tokens])


def equal_share(tokens: int, views: int) -> int:
    """The image tokens of each of the views that were encoded, which must be equally many."""
    if not tokens or tokens % views:
        raise PromptError(
            f"expected equally many image tokens for each of the {views} views that came, got {tokens} in the prompt: "
            "use the processor that belongs to the model"
        )
    return tokens // views


def square(tokens: int) -> Grid:
    """The grid of a view with that many tokens, which must be a square.

    >>> str(square(16))
    '1 x 4 x 4'
    """
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise PromptError(
            f"expected views of a square number of image tokens, got {tokens}: the layout of this family is not known"
        )
    return Grid(1, side, side)


def whole_picture_cells(tokens: int) -> Cells:
    """Cells that each see the whole picture, for encoders that end in learned queries."""
    return Mosaic((Grid(1, 1, 1, WHOLE),) * tokens)


def run_lengths(ids: torch.Tensor, token: int) -> list[int]:
    """The lengths of the unbroken runs of a token in `[B, T]`, row by row.

    >>> run_lengths(torch.tensor([[7, 7, 1, 7], [7, 1, 1, 1]]), 7)
    [2, 1, 1]
    """
    edges = torch.nn.functional.pad((ids.cpu() == token).int(), (1, 1)).diff(dim=1)
    starts, ends = (edges == 1).nonzero(), (edges == -1).nonzero()
    return (ends - starts)[:, 1].tolist()
