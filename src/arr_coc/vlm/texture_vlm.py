"""A vision-language model that reads a picture from k dimensions of its texture.

    encoder -> k dimensions -> planes of the texture -> samples at the cells -> lift -> language model

The model's own frozen encoder makes a token for each cell; a projection takes it to k dimensions (16, 32, 64), which are kept
as planes `[k, h, w]`. What the language model reads are samples of these planes at the cells' centres, lifted to its own
width, each at its cell's own position. Everything else is the wrapped model's: prompts, selectors, budgets, generation.

Notable:
- the wrapped model is not changed, and may go on answering from its own tokens;
- a look keeps the k dimensions, so a picture is encoded once for any number of questions, however the lift is trained;
- no gradient reaches the encoder: what is stored is stored;
- features for the first layers of the language model (DeepStack) go through the same k dimensions, beside the token;
- tokens that are no cells (line ends) are the model's own constants and stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.adapters.base import Encoded, Visual
from arr_coc.embedding.projection import DIMS, Moments, Projection, fit_projection
from arr_coc.errors import ProjectionError
from arr_coc.types.allocation import Allocation
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget
from arr_coc.types.image import ImageLike
from arr_coc.vlm import lift as lifts
from arr_coc.vlm.lift import Lift
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM
from arr_coc.vlm.planes import EmbeddingPlanes

Keep = Budget | torch.Tensor | np.ndarray | Allocation


@dataclass(frozen=True, eq=False)
class Stored(Encoded):
    """A picture as it is kept: the planes, and in place of tokens the samples `[M, k]` at the encoded cells."""

    planes: EmbeddingPlanes | None = None


class TextureMedium:
    """Between encoder and language model: the k dimensions of the texture."""

    def __init__(self, projection: Projection, lift: Lift, levels: int, dtype: torch.dtype) -> None:
        self.projection, self.lift, self.levels, self.dtype = projection, lift, levels, dtype
        self.key = projection.identity
        self._placed: dict[torch.device, Projection] = {}

    def store(self, visual: Visual, seen: Encoded) -> Stored:
        features = token_rows(seen).detach()
        planes = EmbeddingPlanes.of(visual.grid, seen.cells, self._on(features.device).transform(features))
        return Stored(seen.cells, planes.at(seen.cells), (), seen.extra, seen.attention, planes)

    def hand_on(self, stored: Encoded) -> Encoded:
        tokens, *deep = self.lift(stored.tokens).to(self.dtype).chunk(1 + self.levels, dim=-1)
        return Encoded(stored.cells, tokens, tuple(deep), stored.extra, stored.attention)

    def _on(self, device: torch.device) -> Projection:
        """The projection with its tensors on `device`, so that they do not travel with every picture."""
        if device not in self._placed:
            names = ("components", "dual", "image_mean", "text_mean", "variance")
            moved: dict[str, Any] = {name: getattr(self.projection, name).to(device) for name in names}
            self._placed[device] = replace(self.projection, **moved)
        return self._placed[device]


class TextureEmbeddingVLM:
    """A wrapped model, a projection of its encoder's tokens, and the lift that leads back. `fit` makes all of it.

    `vlm` is a wrapped model like any other that reads from the texture: `ask`, `generate` and `prepare` on it take what they
    always take. `wrapped` is the one that was given, as it was.
    """

    def __init__(self, vlm: VLM, projection: Projection, lift: Lift | None = None) -> None:
        if vlm.adapter.medium is not None:
            raise ProjectionError("expected a model that reads its encoder's own tokens, got one that reads a texture")
        identity = lifts.encoder_identity(vlm.model, vlm.adapter.text_model)
        if projection.encoder != identity:
            raise ProjectionError(
                f"this projection is for the encoder {projection.encoder!r}, the model's is {identity!r}: "
                "fit one with TextureEmbeddingVLM.fit"
            )
        table = vlm.model.get_input_embeddings().weight
        levels = vlm.adapter.deep_layers
        if projection.width != table.shape[1] * (1 + levels):
            raise ProjectionError(
                f"expected a projection of {table.shape[1] * (1 + levels)} dimensions, got {projection.width}"
            )
        own = Lift(projection) if lift is None else lift
        if (own.linear.in_features, own.linear.out_features) != (projection.dims, projection.width):
            raise ProjectionError(
                f"expected a lift from {projection.dims} to {projection.width} dimensions, "
                f"got one from {own.linear.in_features} to {own.linear.out_features}"
            )
        self.wrapped, self.projection, self.lift = vlm, projection, own.to(table.device)
        self.vlm = copy.copy(vlm)
        self.vlm.adapter = copy.copy(vlm.adapter)
        self.vlm.adapter.medium = TextureMedium(projection, self.lift, levels, table.dtype)

    @classmethod
    def fit(cls, vlm: VLM, images: Iterable[ImageLike], dims: int = DIMS, hidden: int = 0) -> TextureEmbeddingVLM:
        """With the principal components of the tokens of `images`, which are looked at one by one and not kept."""
        identity = lifts.encoder_identity(vlm.model, vlm.adapter.text_model)
        moments, pictures = None, 0
        for image in images:
            found = Moments.of(token_rows(_encoded(vlm, image)))
            moments, pictures = found if moments is None else moments + found, pictures + 1
        if moments is None:
            raise ProjectionError("expected pictures to fit a projection on, got none")
        projection = fit_projection(moments, dims=dims, encoder=identity, pictures=pictures)
        return cls(vlm, projection, Lift(projection, hidden, float(moments.covariance.trace())))

    @property
    def dims(self) -> int:
        return self.projection.dims

    def look(self, images: Any = None, **options: Any) -> Look:
        """Pictures for any number of questions, kept in k dimensions once the first is asked."""
        return self.vlm.look(images, **options)

    def planes(self, image: ImageLike | Look) -> tuple[EmbeddingPlanes, ...]:
        """The k dimensions of each picture as planes; a look remembers them."""
        seen = image if isinstance(image, Look) else self.look(image)
        medium = self.vlm.adapter.medium
        assert medium is not None
        self.vlm.prepare(look=seen, text="?")  # whatever the question: it is the pictures that are kept
        kept = [encoding for key, encoding in seen.encoded.items() if key[0] is None and key[-1] == medium.key][-1]
        return tuple(one.planes for one in kept.tokens if isinstance(one, Stored) and one.planes is not None)

    def ask(
        self, image: Any, question: str | list[str], keep: Keep | list[Budget] = "all", **options: Any
    ) -> Answer | list[Answer]:
        """An answer from samples of the texture.

        `keep`: how many cells to read, as a budget (128, "12.5%", "mass 90%", "auto", "all"; `selector=` chooses them), or the cells
        themselves, as an allocation or a tensor of their numbers. Other options are those of the wrapped model's `ask`.
        """
        cells = isinstance(keep, Allocation | torch.Tensor | np.ndarray)
        wish: dict[str, Any] = {"allocation" if cells else "budget": keep}
        return self.vlm.ask(image, question, **wish, **options)

    def save_pretrained(self, folder: str | Path, language: bool = False) -> Path:
        """Write projection and lift; with `language`, also the language model's weights, where those were trained."""
        weights = lifts.language_weights(self.vlm.model, self.vlm.adapter.text_model) if language else None
        return lifts.write(folder, self.projection, self.lift, weights)

    @classmethod
    def from_pretrained(cls, folder: str | Path, vlm: VLM) -> TextureEmbeddingVLM:
        """Read what `save_pretrained` wrote, for the model it was made for.

        Where the folder holds language weights, the model that reads is a copy of `vlm`'s with these weights; it shares the
        encoder with it, and `vlm` stays as it is.
        """
        projection, lift, language = lifts.read(folder)
        if language is None:
            return cls(vlm, projection, lift)
        own = lifts.language_weights(vlm.model, vlm.adapter.text_model)
        wrong = sorted(name for name in {*own, *language} if name not in own or name not in language)
        wrong += sorted(name for name in own.keys() & language.keys() if own[name].shape != language[name].shape)
        if wrong:
            raise ProjectionError(f"{str(folder)!r} holds another language model than {vlm!r} has: {wrong[0]} differs")
        reader = VLM(
            lifts.with_own(vlm.model, own.values()),
            vlm.processor,
            batch_windows=vlm.adapter.batched,
            embeddings=vlm.embeddings,
        )
        with torch.no_grad():
            for name, weights in lifts.language_weights(reader.model, reader.adapter.text_model).items():
                weights.copy_(language[name])
        return cls(reader, projection, lift)

    def __repr__(self) -> str:
        return f"TextureEmbeddingVLM({self.dims} dimensions, {self.vlm!r})"


def token_rows(seen: Encoded) -> torch.Tensor:
    """All that an encoder hands on for each cell, the token and the deep features side by side: `[M, D]`."""
    return torch.cat([seen.tokens, *seen.deep], dim=-1)


def _encoded(vlm: VLM, image: ImageLike) -> Encoded:
    prompter = vlm.prompter
    seen = vlm.look(image)
    inputs = prompter.tokenize([prompter.placeholders["image"]], seen.vision) | seen.vision.tensors
    visuals = vlm.adapter.visuals(inputs, seen.sizes())
    with torch.no_grad():
        [encoded] = vlm.adapter.encode(inputs, visuals, None, ())
    return encoded
