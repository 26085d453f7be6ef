"""What a selector gets and what it returns: the interface that all ways of choosing cells share.

A selector is called at up to three points. Each time it returns cell numbers on the full grid:
- `before_encoding`: only pixels and the question are known (the glance);
- `select`: the encoder's tokens are known (the gaze);
- `at_layer`: inside the language model, at the depths that the selector names.

A plain function `SelectionInput -> cells` is a selector, too. Nothing here depends on a model family.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from arr_coc.devices import Stopwatch
from arr_coc.errors import SelectorError
from arr_coc.texture import TextureArray, TextureBatch
from arr_coc.types.budget import Budget
from arr_coc.types.grid import Cells
from arr_coc.types.pyramid import View


@dataclass(frozen=True)
class Question:
    """The question: its text, its token ids `[T]` and, on demand, their input embeddings `[T, D]`."""

    text: str
    ids: torch.Tensor
    embed: Callable[[torch.Tensor], torch.Tensor] = field(repr=False, default=lambda ids: ids.new_zeros(0, 0).float())

    @cached_property
    def embeddings(self) -> torch.Tensor:
        return self.embed(self.ids)


class ImageSource:
    """An original image (or a video's frames) and its texture, which is built on first use."""

    def __init__(
        self,
        picture: Any = None,
        size: tuple[int, int] | None = None,
        embeddings: Any = None,
        texture: Any = None,
        notes: tuple[str, ...] = (),
        view: View | None = None,
    ) -> None:
        """`size`: (width, height). `embeddings`: an `Embeddings` that fills the texture's embedding channels.
        `texture`: a `TextureArray`, or a `TextureBatch` for the frames of a video. `view`: which part of a large image it is."""
        self.picture = picture
        self.size = size
        self.embeddings = embeddings
        self.notes = notes  # changes made while reading
        self.view = view
        self._texture: Any = texture
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}  # locks cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def supply(self, maps: Mapping[str, Any]) -> ImageSource:
        """The same image, whose texture has these maps as well; the texture itself is still built once."""
        return SuppliedSource(self, maps) if maps else self

    @property
    def built(self) -> TextureArray | None:
        """The texture, if it exists already."""
        return self._texture

    def texture(self, watch: Stopwatch | None = None) -> Any:
        """A `TextureArray`; for the frames of a video a `TextureBatch`.

        A picture's texture is computed on the GPU if the answer is. A tensor stays where it is, and frames are on the CPU.
        """
        if self._texture is None:
            on_gpu = watch is not None and watch.device.type == "cuda"
            here = isinstance(self.picture, torch.Tensor | list | tuple)
            device = watch.device if watch is not None and on_gpu and not here else None
            with self._lock:
                if self._texture is None:
                    with nullcontext() if watch is None else watch.stage("texture"):
                        made = TextureArray.from_image(self.picture, embeddings=self.embeddings, device=device)
                        self._texture = made
        return self._texture


class SuppliedSource(ImageSource):
    """An image with maps that only this question has, such as a gaze."""

    def __init__(self, base: ImageSource, maps: Mapping[str, Any]) -> None:
        super().__init__(base.picture, base.size, base.embeddings, notes=base.notes)
        self.base, self.maps = base, maps

    def texture(self, watch: Stopwatch | None = None) -> Any:
        if self._texture is None:
            self._texture = self.base.texture(watch).supply(**self.maps)
        return self._texture


@dataclass(frozen=True, eq=False)
class LayerPrediction:
    """What a trained layer predicts for the candidates: `[M]` each."""

    relevance: torch.Tensor  # probabilities
    scores: dict[str, torch.Tensor]  # information, salience and coupling, in [0, 1]
    weights: dict[str, float]
    image_novelty: float = 0.0  # distance from the training images: about 1 for one of them
    confidence: float = 0.0  # logit of the best cell
    question_novelty: float | None = None  # distance from the training questions: up to 1 for one of them
    found: float | None = (
        None  # probability that the best eighth of the cells holds the evidence; None: it is not known
    )
    absent: float = 0.0  # probability that the question is about something that is not in the image
    whole: float = 0.0  # probability that the question is about all of the image
    trust: float | None = None  # how far the layer would follow itself; None: by the probabilities above
    logits: tuple[
        float, ...
    ] = ()  # of found, absent and whole, before they were calibrated; empty if they are not known


@dataclass(frozen=True)
class SelectionInput:
    """One image or video at one stage of an answer, with everything a selector may use.

    `scorer`, `probe`, `layer` and `universal` are evaluated only when a selector calls them.
    """

    grid: Cells
    k: int | None  # keep at most this many cells; None: the selector decides
    candidates: torch.Tensor  # [M] sorted cells to choose from: all, or the encoded ones
    question: Question
    tokens: torch.Tensor | None = None  # [M, D] the candidates' encoder tokens; None before encoding
    attention: Mapping[float, torch.Tensor] = field(default_factory=dict)  # encoder depth -> [M] attention received
    source: ImageSource | None = field(default=None, repr=False)  # None: only the processor's output is known
    kind: str = "image"  # or "video"
    seed: int = 0
    scorer: Callable[[SelectionInput], torch.Tensor] | None = field(
        default=None, repr=False
    )  # image-text similarity [M]
    probe: Callable[[torch.Tensor, tuple[float, ...]], torch.Tensor] | None = field(default=None, repr=False)
    layer: Callable[[SelectionInput], LayerPrediction] | None = field(default=None, repr=False)  # the model's own
    universal: Callable[[SelectionInput], LayerPrediction] | None = field(default=None, repr=False)  # of any model
    mass: float | None = None  # where `k` is None: share of the relevance that the kept cells must hold
    watch: Stopwatch | None = field(default=None, repr=False)

    @property
    def texture(self) -> TextureArray:
        """The image's texture array. It is built on first use and kept for the next question."""
        if self.kind != "image":
            raise SelectorError("a video has one texture per frame: choose by its tokens, or use selection.textures")
        return self.textures[0]

    @cached_property
    def textures(self) -> tuple[TextureArray, ...]:
        """One texture per frame of a video; an image has one."""
        if self.source is None:
            raise SelectorError("only model inputs were passed, so there is no texture: pass the image itself")
        made = self.source.texture(self.watch)
        return tuple(made) if isinstance(made, TextureBatch) else (made,)

    @property
    def is_gazed(self) -> bool:
        """Whether it is known where a person looks (`texture["gaze"]`)."""
        return self.source is not None and any(
            "gaze" in texture.names and "gaze" not in texture.absent for texture in self.textures
        )

    @property
    def embedding_scores(self) -> torch.Tensor:
        """Similarity of the question to each candidate, `[M]`, from the image-text embeddings."""
        if self.scorer is None:
            raise SelectorError(
                "this selector needs image-text embeddings: pass the image itself, and embeddings= to arr_coc.load or "
                "arr_coc.wrap (--embeddings labels)"
            )
        return self.scorer(self)

    def probe_attention(self, cells: torch.Tensor, depths: tuple[float, ...]) -> torch.Tensor:
        """Attention `[K]` that the language model pays to `cells` before it answers.

        The model reads the question and these cells only, up to the deepest of `depths` (0 to 1).
        """
        if self.probe is None:
            raise SelectorError("this selector runs the language model, which needs encoded cells: none exist yet")
        return self.probe(cells, depths)

    @property
    def count(self) -> int:
        """Number of cells to keep, for selectors that cannot set a budget themselves."""
        if self.k is None:
            asked = '"auto"' if self.mass is None else "a mass"
            raise SelectorError(f"this selector has no scores to derive {asked} from: give a count or a share")
        return min(self.k, len(self.candidates))


@dataclass(frozen=True)
class LayerState:
    """One row's tokens between two layers of the language model."""

    depth: float  # as the selector named it
    layer: int  # the layer that runs next
    hidden: torch.Tensor  # [T, D]
    cells: torch.Tensor  # [T] cell number of each token; -1 for text
    attend: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    k: int | None = None
    seed: int = 0
    project_keys: Callable[[], torch.Tensor] | None = field(default=None, repr=False)
    attend_next: Callable[[torch.Tensor], torch.Tensor] | None = field(default=None, repr=False)
    row: int = 0  # of the batch

    @property
    def count(self) -> int:
        """How many of the remaining cells may stay in the end."""
        if self.k is None:
            raise SelectorError("dropping inside the language model cannot set a budget: give a count or a share")
        return min(self.k, int((self.cells >= 0).sum()))

    def attention(self, queries: torch.Tensor) -> torch.Tensor:
        """Attention of the tokens `queries` `[Q]` in the layer that ran last: `[heads, Q, T]`."""
        return self.attend(queries)

    def next_attention(self, queries: torch.Tensor) -> torch.Tensor:
        """Attention of the tokens `queries` `[Q]` in the layer that runs next, before anything is dropped: `[heads, Q, T]`."""
        if self.attend_next is None:
            raise SelectorError("this selector needs the next layer's attention, and this state was made without it")
        return self.attend_next(queries)

    @property
    def keys(self) -> torch.Tensor:
        """The keys of all tokens in the layer that ran last, rotated to their positions: `[T, heads * d]`."""
        if self.project_keys is None:
            raise SelectorError("this selector needs the layer's keys, and this state was made without them")
        return self.project_keys()


@dataclass(frozen=True)
class Choice:
    """A selector's result: the kept cells, and optionally why."""

    keep: torch.Tensor  # [K] sorted cells
    features: torch.Tensor | None = None  # [K, D] replaces the encoder's tokens (merging)
    relevance: torch.Tensor | None = None  # [N]; inside the language model [V], of the remaining cells
    scores: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tensions: Mapping[str, float] = field(default_factory=dict)
    strategy: str = ""  # in words
    rule: str = ""  # which rule chose: "relevance", "camouflage", "void", ...
    coupled_by: str = ""  # source of the coupling with the question
    confidence: float | None = None  # probability that the kept cells show what was asked for; None: not known
    auto: int | None = None  # of `before_encoding` under `auto`: how many cells to keep where the budget is `auto`, too


@dataclass(frozen=True)
class Downscale:
    """A result of `before_encoding`: downscale the image to about `cells` cells and keep them all."""

    cells: int


class Selector:
    """Base class of the named selectors. Override what the selector can do."""

    name: str = ""
    attention_at: tuple[float, ...] = ()  # encoder depths (0 to 1) whose attention `select` needs
    early: bool = False  # spends its budget before encoding: `before_encoding` replaces `select`
    depths: tuple[float, ...] = ()  # language model depths (0 to 1) at which `at_layer` is called
    kinds: tuple[str, ...] = ("image", "video")
    glances: bool = False  # can decide how much to encode (glance "auto"); otherwise everything is encoded
    sets_budget: bool = True  # can decide how many cells to keep (budget "auto")
    asks_embeddings: bool = False  # requires an image-text encoder
    continues: bool = False  # where it probes the language model, the prefill continues from there
    continues_up_to: int = (
        0  # encoded cells up to which it does so anyway: there a separate probe costs more than it saves
    )
    reads_gaze: bool = False  # uses where a person looks

    def prepare(self, selections: Sequence[SelectionInput]) -> Sequence[SelectionInput]:
        """Several images that are chosen for next, one after the other: the same, with what was worked out for all at once."""
        return selections

    def select(self, selection: SelectionInput) -> Choice | torch.Tensor:
        raise SelectorError(f"selector {self.name!r} does not choose among encoded cells")

    def before_encoding(self, selection: SelectionInput) -> Choice | Downscale | torch.Tensor:
        raise SelectorError(
            f"selector {self.name!r} chooses among encoded cells, so it cannot glance: name another with glance_selector"
        )

    def at_layer(self, state: LayerState) -> Choice | torch.Tensor:
        raise SelectorError(f"selector {self.name!r} does not choose inside the language model")

    def relevance(self, selection: SelectionInput) -> torch.Tensor | None:
        """Each candidate's score `[M]`, used to split one budget among several images; None if there is none."""
        return None

    def check_budget(self, budget: Budget) -> None:
        """Raise if this selector cannot keep so many cells; what depends on the image is found out later."""
        if not self.sets_budget and isinstance(budget, str) and budget.strip().lower() == "auto":
            raise SelectorError(f'selector {self.name!r} has no scores to derive "auto" from: give a count or a share')

    def __repr__(self) -> str:
        return f"<selector {self.name}>"


class FunctionSelector(Selector):
    """A plain function as a selector."""

    reads_gaze = True

    def __init__(self, function: Callable[[SelectionInput], Choice | torch.Tensor]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def select(self, selection: SelectionInput) -> Choice | torch.Tensor:
        return self.function(selection)

    before_encoding = select
