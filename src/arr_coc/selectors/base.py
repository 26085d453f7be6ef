"""What a selector sees, and what it answers: the one interface that every way of choosing cells shares.

A selector is asked up to three times, and answers each time with cell numbers on the full grid:
- `before_encoding`, when only pixels and words are known (a glance);
- `select`, when the encoder has spoken (a gaze);
- `at_layer`, inside the language model, at the depths it names.

A plain function `sight -> cells` is a selector too. Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from arr_coc.errors import SelectorError
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Cells

if TYPE_CHECKING:
    from arr_coc.layer.inference import Judgement


@dataclass(frozen=True)
class Words:
    """The question: its text, its tokens `[T]` and, on demand, their embeddings `[T, D]` in the language model."""

    text: str
    ids: torch.Tensor
    embed: Callable[[torch.Tensor], torch.Tensor] = field(repr=False, default=lambda ids: ids.new_zeros(0, 0).float())

    @cached_property
    def embeddings(self) -> torch.Tensor:
        return self.embed(self.ids)


@dataclass(frozen=True)
class Sight:
    """One image or video at one stage of looking."""

    grid: Cells
    k: int | None  # cells to keep, at most; None: the selector decides
    candidates: torch.Tensor  # [M] sorted cells to choose from: all, or those that were encoded
    words: Words
    tokens: torch.Tensor | None = None  # [M, D] the candidates' encoder tokens; None before encoding
    attention: Mapping[float, torch.Tensor] = field(default_factory=dict)  # depth -> [M] attention a cell receives
    picture: Callable[[], TextureArray] | None = field(default=None, repr=False)
    kind: str = "image"
    seed: int = 0
    couple: Callable[[Sight], torch.Tensor] | None = field(default=None, repr=False)
    send: Callable[[torch.Tensor, tuple[float, ...]], torch.Tensor] | None = field(default=None, repr=False)
    learned: Callable[[Sight], Judgement] | None = field(
        default=None, repr=False
    )  # what a layer trained for the model says
    mass: float | None = None  # beside a `k` of None: the share of the relevance that the kept cells are to hold

    @property
    def texture(self) -> TextureArray:
        """The picture's texture array, built when first asked for and kept for the next question."""
        if self.kind != "image":
            raise SelectorError("a video has a texture for each frame, not one: choose by its tokens")
        if self.picture is None:
            raise SelectorError("this picture came as model inputs, so it has no texture: pass the image itself")
        return self.picture()

    @property
    def embedding_scores(self) -> torch.Tensor:
        """What the question has in common with each candidate, `[M]`: the picture is embedded when this is first asked for."""
        if self.couple is None:
            raise SelectorError(
                "this selector asks the picture's embeddings, and there are none: pass the image itself, and embeddings= to "
                "arr_coc.load or arr_coc.wrap (--embeddings labels)"
            )
        return self.couple(self)

    def scout(self, cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        """What the language model looks for: the attention `[K]` that some candidates get before anything is answered.

        It reads the question and those cells alone, as far as the deepest of `depths` (0 to 1) and no further.
        """
        if self.send is None:
            raise SelectorError("this selector asks the language model, and nothing is encoded yet")
        return self.send(cells, depths)

    @property
    def count(self) -> int:
        """How many cells to keep, for selectors that cannot set a budget themselves."""
        if self.k is None:
            asked = '"auto"' if self.mass is None else "a mass"
            raise SelectorError(
                f"this selector scores nothing that {asked} could be read from: give a count or a share"
            )
        return min(self.k, len(self.candidates))


@dataclass(frozen=True)
class Inside:
    """One row's tokens inside the language model, between two of its layers."""

    depth: float  # as the selector named it
    layer: int  # the layer about to run
    hidden: torch.Tensor  # [T, D]
    cells: torch.Tensor  # [T] the cell of the row's image that a token stands for; -1 for text
    attend: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    k: int | None = None
    seed: int = 0

    @property
    def count(self) -> int:
        """How many of the cells that are still there may stay in the end."""
        if self.k is None:
            raise SelectorError("dropping inside the language model cannot set a budget: give a count or a share")
        return min(self.k, int((self.cells >= 0).sum()))

    def attention(self, queries: torch.Tensor) -> torch.Tensor:
        """Attention of the tokens `queries` `[Q]` in the layer that has just run: `[heads, Q, T]`."""
        return self.attend(queries)


@dataclass(frozen=True)
class Choice:
    """A selector's answer: the kept cells, and what it wants to say about them."""

    keep: torch.Tensor  # [K] sorted cells
    features: torch.Tensor | None = None  # [K, D] tokens to use in place of the encoder's (merging)
    relevance: torch.Tensor | None = None  # [N]; inside the language model [V], of the cells still there
    scores: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tensions: Mapping[str, float] = field(default_factory=dict)
    strategy: str = ""


@dataclass(frozen=True)
class Smaller:
    """An answer to `before_encoding`: scale the picture down so that it has about `cells` cells, and keep them all."""

    cells: int


class Selector:
    """Base of the named selectors. Override what the selector can do."""

    name: str = ""
    attention_at: tuple[float, ...] = ()  # encoder depths (0 to 1) whose attention `select` wants to see
    early: bool = False  # its budget is spent before encoding: `before_encoding` is asked in place of `select`
    depths: tuple[float, ...] = ()  # language model depths (0 to 1) at which `at_layer` is asked
    kinds: tuple[str, ...] = ("image", "video")  # what it can choose from
    glances: bool = False  # it can say itself how much is worth encoding (glance "auto"); else everything is
    asks_embeddings: bool = False  # it cannot do without an image-text encoder

    def select(self, sight: Sight) -> Choice | torch.Tensor:
        raise SelectorError(f"selector {self.name!r} does not choose among encoded cells")

    def before_encoding(self, sight: Sight) -> Choice | Smaller | torch.Tensor:
        raise SelectorError(
            f"selector {self.name!r} chooses among encoded cells, so it cannot glance: name another with glance_selector"
        )

    def at_layer(self, inside: Inside) -> Choice | torch.Tensor:
        raise SelectorError(f"selector {self.name!r} does not choose inside the language model")

    def relevance(self, sight: Sight) -> torch.Tensor | None:
        """Each candidate's worth `[M]`, by which several pictures share one budget; None where there is no such thing."""
        return None

    def __repr__(self) -> str:
        return f"<selector {self.name}>"


class Function(Selector):
    """A plain function as a selector."""

    def __init__(self, function: Callable[[Sight], Choice | torch.Tensor]) -> None:
        self.function = function
        self.glances = True
        self.name = getattr(function, "__name__", type(function).__name__)

    def select(self, sight: Sight) -> Choice | torch.Tensor:
        return self.function(sight)

    def before_encoding(self, sight: Sight) -> Choice | torch.Tensor:
        return self.function(sight)
