"""The interface of a model family: where its visual tokens are in a prompt, and how its encoder produces them.

An adapter reads and calls the model and never changes it. Everything that a call needs comes with its inputs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch

from arr_coc.adapters.wrapped import (
    WeightsState,
    check_placement,
    execution_device,
    weights_loaded,
    weights_state,
    without_compilation,
)
from arr_coc.errors import ModelError, PromptError, SelectorError
from arr_coc.types.grid import Cells

Inputs = Mapping[str, Any]  # what a processor returns
Features = tuple[torch.Tensor, tuple[torch.Tensor, ...]]  # tokens [K, D], and [K, D] for each DeepStack level
# Layers that read what is there: a window or chunk counts the tokens left, a state or convolution passes over them.
REMOVING_LAYERS = {"sliding_attention", "chunked_attention", "linear_attention", "conv"}


@dataclass(frozen=True, eq=False)
class Visual:
    """One image or video of a batch, and the places of its tokens in the prompt."""

    row: int
    kind: str  # "image" or "video"
    number: int  # among all of its kind in the batch
    grid: Cells
    places: torch.Tensor  # [T] token positions in the row, rising
    cells: torch.Tensor | None = None  # [N] which of those tokens are cells; None: all. The others are never dropped.

    @cached_property
    def n(self) -> int:
        """The number of cells."""
        return self.grid.n

    @cached_property
    def cell_places(self) -> torch.Tensor:
        """The places of the cells in the row: `[N]`."""
        return self.places if self.cells is None else self.places[self.cells]

    def tokens_kept(self, keep: torch.Tensor) -> torch.Tensor:
        """`[T]` bool over the visual's tokens, for kept cells `[K]`."""
        if self.cells is None:
            return torch.zeros(len(self.places), dtype=torch.bool).index_fill_(0, keep, True)
        kept = torch.ones(len(self.places), dtype=torch.bool)
        kept[self.cells] = False
        kept[self.cells[keep]] = True
        return kept


@dataclass(frozen=True, eq=False)
class Encoded:
    """The encoder's output for some cells of one visual."""

    cells: torch.Tensor  # [M] sorted
    tokens: torch.Tensor  # [M, D]
    deep: tuple[torch.Tensor, ...] = ()  # [M, D] for each of the encoder's further levels (DeepStack)
    extra: torch.Tensor | None = None  # [E, D] the tokens that are not cells (newlines, a class token), in order
    attention: Mapping[float, torch.Tensor] = field(default_factory=dict)  # depth -> [M]

    def rows(self, keep: torch.Tensor) -> torch.Tensor:
        """The index of kept cells `[K]` among the encoded ones."""
        return torch.searchsorted(self.cells, keep)

    def on(self, device: torch.device) -> Encoded:
        return Encoded(
            self.cells,
            self.tokens.to(device),
            tuple(level.to(device) for level in self.deep),
            None if self.extra is None else self.extra.to(device),
            {depth: values.to(device) for depth, values in self.attention.items()},
        )


class Adapter(ABC):
    """One model family. A new one is one file with a subclass and a line in `families.py`."""

    family: ClassVar[str]  # the name in messages and docs
    model_types: ClassVar[tuple[str, ...]]  # values of `config.model_type`
    processor: ClassVar[str]  # the name of its processor class in transformers
    oldest: ClassVar[tuple[int, int]] = (5, 18)  # the oldest transformers whose model of this family it reproduces
    fixed_grid: ClassVar[bool] = False  # whether every picture has the same number of cells
    glances: ClassVar[bool] = True  # whether the encoder can run on some of the patches
    records: ClassVar[bool] = True  # whether the encoder's attention can be recorded
    replaces: ClassVar[bool] = True  # whether a selector's features can replace the encoder's (merging)
    readable: ClassVar[bool] = (
        True  # whether language attention follows from a layer's input, projections and rotary tables
    )
    mixes: ClassVar[bool] = False  # whether one image may have cells of different sizes: positions are rows and columns
    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values",)  # inputs that hold pixels
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    other_placeholder: ClassVar[bool] = False  # whether a prompt marks a picture by another token than those it becomes
    framed: ClassVar[bool] = False  # whether the processor wants a start and an end token around each placeholder
    late_patches: ClassVar[bool] = False  # whether `encode_kind` takes `ResizedPictures` as pixels
    images_by_row: ClassVar[bool] = False  # whether the processor takes each row's images as a list

    def __init__(self, model: Any, image_processor: Any = None, batch_windows: bool = False) -> None:
        """`image_processor`: its settings say which part of a picture became pixels. None: unknown.

        `batch_windows`: encode whole pictures, too, with all attention segments in one call.
        """
        self.model = model
        self.image_processor = image_processor
        self.batch_windows = batch_windows

    # Every family implements these.

    @abstractmethod
    def grids(self, inputs: Inputs, kind: str, sizes: Sequence[tuple[int, int]] | None) -> list[Cells]:
        """The grid of every visual of a kind, in order; `sizes`: (width, height) of the originals, where known."""

    @abstractmethod
    def encode_kind(
        self, inputs: Inputs, kind: str, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None,
        depths: Sequence[float],
    ) -> list[Encoded]:  # fmt: skip
        """`encode` for all visuals of one kind, in the order of their numbers."""

    @abstractmethod
    def positions(self, inputs: Inputs) -> torch.Tensor:
        """Every token's position in the dense prompt: `[B, T]`, or `[3, B, T]` for time, row and column."""

    # Shared by all families.

    @cached_property
    def semantics(self) -> str:
        """What dropping a token means: "masked" at every layer, or "removed" before the first one.

        With full attention everywhere both are the same, and "masked" is the stronger claim.
        """
        return "removed" if _other_layers(self.config.get_text_config()) else "masked"

    @property
    def extends(self) -> bool:
        """Whether cells can be appended to a KV cache after later text, by a mask over the order of the dense prompt.

        Windows, chunks, states and FlashAttention go by the order in the cache instead.
        """
        return self.semantics == "masked" and not self.flash_attention

    @cached_property
    def probed_layers(self) -> list[int]:
        """The language layers whose attention can be read: those with full attention."""
        kinds = getattr(self.config.get_text_config(), "layer_types", None)
        layers = enumerate(self.text_model.layers)
        own = [number for number, layer in layers if hasattr(layer, "self_attn")]
        return [number for number in own if kinds is None or kinds[number] == "full_attention"] or own

    def token_kwargs(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Further arguments of the model that say something about each token of the pruned prompt `[B, L]`."""
        return {}

    def prompt_ending(self, tokenizer: Any) -> str:
        """What the family's processor itself adds to the end of every prompt."""
        return ""

    def encoder_outputs(self, kept: Mapping[str, list[Features]]) -> dict[str, Any]:
        """The model's `mm_encoder_outputs` from each row's kept tokens and deep features, by kind."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return {
            kind: BaseModelOutputWithPooling(pooler_output=tuple(tokens for tokens, _ in rows))  # type: ignore[arg-type]
            for kind, rows in kept.items()
        }

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded]:
        """Encode some `cells` of each visual, or all of them (None: by the stock encoder).

        With `depths`, also record the attention that each cell receives at those depths of the encoder.
        """
        if depths and not self.records:
            raise SelectorError(
                f"expected a selector that does not read the vision encoder's attention, because {self.family}'s is not "
                "recorded: choose another selector"
            )
        if cells is not None and all(len(some) == visual.n for some, visual in zip(cells, visuals, strict=True)):
            cells = None  # all cells: the stock encoder, bit for bit
        encoded: dict[int, Encoded] = {}
        for kind in self.kinds:
            order = sorted((i for i, v in enumerate(visuals) if v.kind == kind), key=lambda i: visuals[i].number)
            if order:
                some = None if cells is None else [cells[i] for i in order]
                with weights_loaded(self.core):
                    made = self.encode_kind(inputs, kind, [visuals[i] for i in order], some, depths)
                # The encoder's last part may be on another device than the language model's first one.
                encoded.update((i, one.on(self.device)) for i, one in zip(order, made, strict=True))
        return [encoded[i] for i in range(len(visuals))]

    @cached_property
    def core(self) -> Any:
        """The model without its output layer."""
        return self.model.model

    @cached_property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def text_model(self) -> Any:
        return self.core.language_model

    @cached_property
    def width(self) -> int:
        """Dimensions of the language model's tokens."""
        return int(self.config.get_text_config().hidden_size)

    @property
    def deep_layers(self) -> int:
        """The number of first language layers that take visual features of their own (DeepStack)."""
        return 0

    @property
    def flash_attention(self) -> bool:
        """Whether the language model uses FlashAttention, which takes no mask but that of the padding."""
        return "flash" in (self.config.get_text_config()._attn_implementation or "")

    @property
    def device(self) -> torch.device:
        """Where the prompt goes: the device of the word embeddings."""
        embeddings = self.model.get_input_embeddings()
        device = embeddings.weight.device
        return device if device.type != "meta" else execution_device(embeddings)  # offloaded weights

    def encoder_state(self) -> WeightsState:
        """Changes with everything that encodings depend on: all weights outside the language model."""
        return weights_state(self.model, without=(self.text_model, self.model.get_output_embeddings()))

    def generation_option(self, options: Mapping[str, Any], name: str) -> Any:
        """An option's value in `generate(**options)`: given, in a given `generation_config`, or in the model's own."""
        if name in options:
            return options[name]
        given = getattr(options.get("generation_config"), name, None)
        return getattr(self.model.generation_config, name, None) if given is None else given

    @property
    def max_positions(self) -> int | None:
        """How many text tokens the language model reads; None where its configuration does not say."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def pad_token(self) -> int:
        """A padding token that is not a visual token."""
        visual = self.token_ids.values()
        for source in (self.model.generation_config, self.config, self.config.get_text_config()):
            for name in ("pad_token_id", "eos_token_id"):
                value = getattr(source, name, None)
                value = value[0] if isinstance(value, list) and value else value
                if isinstance(value, int) and value >= 0 and value not in visual:
                    return value
        return 0

    def token_id(self, kind: str) -> int:
        return int(getattr(self.config, f"{kind}_token_id"))

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """The visual token of each kind."""
        return {kind: self.token_id(kind) for kind in self.kinds}

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Word embeddings: `[T]` to `[T, D]`."""
        with torch.no_grad():
            return self.model.get_input_embeddings()(ids.to(self.device))

    def visuals(self, inputs: Inputs, sizes: Mapping[str, Sequence[tuple[int, int]]] | None = None) -> list[Visual]:
        """Every image and video of the batch, row by row, in the order of the prompt."""
        if inputs.get("input_features") is not None:
            raise PromptError("expected pictures and text, got sound (input_features): ask the model without it")
        found: list[Visual] = []
        ids = inputs["input_ids"].cpu()
        for kind in self.kinds:
            grids = self.grids(inputs, kind, (sizes or {}).get(kind))
            rows, columns = (ids == self.token_ids[kind]).nonzero(as_tuple=True)
            start = 0
            for number, grid in enumerate(grids):
                length = self.token_count(grid)
                places, row = columns[start : start + length], rows[start : start + length]
                if len(places) < length or (row != row[0]).any():
                    raise PromptError(
                        f"{kind} {number + 1} needs {length} {kind} tokens in one row of the prompt, "
                        f"found {int((row == row[0]).sum()) if len(row) else 0}"
                    )
                found.append(Visual(int(row[0]), kind, number, grid, places, self.cell_tokens(grid)))
                start += length
            if start != len(rows):
                raise PromptError(f"the prompt has {len(rows)} {kind} tokens, but its {kind}s fill {start}")
        return sorted(found, key=lambda visual: (visual.row, int(visual.places[0]) if visual.n else 0))

    def token_count(self, grid: Cells) -> int:
        """The number of tokens of a visual in the prompt."""
        return grid.n

    def cell_tokens(self, grid: Cells) -> torch.Tensor | None:
        """Which of a visual's tokens are cells; None: all."""
        return None

    def check(self) -> None:
        """Raise where this model cannot be wrapped."""
        check_placement(self.model)
        unknown = sorted(_other_layers(self.config.get_text_config()) - REMOVING_LAYERS)
        if unknown:
            raise ModelError(
                f"expected language layers of a known kind (full_attention, {', '.join(sorted(REMOVING_LAYERS))}), got "
                f"{', '.join(unknown)}: what dropping tokens means there is not tested"
            )
        if "mm_encoder_outputs" not in signature(self.model.forward).parameters:
            import transformers

            raise ModelError(
                f"expected a {self.family} model that takes mm_encoder_outputs, got one of transformers "
                f"{transformers.__version__} that does not: pip install -U transformers"
            )


def _other_layers(text: Any) -> set[str]:
    """The kinds of a language model's layers that are not full attention."""
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return {"sliding_attention"} if getattr(text, "sliding_window", None) is not None else set()
    return set(kinds) - {"full_attention"}


@contextmanager
def pre_hooks(layers: Mapping[int, Any], hook: Callable[[int, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Inside the `with`, call `hook(number, args, kwargs)` before each of `layers`, in the calling thread only."""
    thread = threading.get_ident()

    def in_thread(number: int) -> Any:
        return lambda _, args, kwargs: hook(number, args, kwargs) if threading.get_ident() == thread else None

    handles = [layer.register_forward_pre_hook(in_thread(number), with_kwargs=True) for number, layer in layers.items()]
    try:
        with without_compilation():
            yield
    finally:
        for handle in handles:
            handle.remove()
