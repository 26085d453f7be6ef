"""Features of D dimensions in k: a projection, how it is fitted, and what it promises about a question's scores.

What a score is. Each modality is centred on its own mean, m for the pictures' features f and n for the questions' vectors t,
and the score is the cosine between f - m and t - n: how much the place has of what is particular to this question. The plain
cosine would rank places also by what they share with all questions, alike whatever is asked.

What compression does to it. Features and questions are taken to k dimensions by one linear map each, and the score is the
cosine there. Dot products would estimate those in full with less error on average, but the places where it counts, those
that show a rare thing, are the ones whose vectors come out short: normalised, they are found
(docs/embeddings.md has both, measured).

How the maps are fitted. Among all pairs of linear maps to k dimensions, the pair whose dot products are nearest those of the
centred vectors in full, in the mean square over features and questions. For questions from anywhere (`text_weight` 0) that
is the principal component analysis of the features; with questions at hand, directions that they use count for more.

Notable:
- each modality has its own mean, so the gap between pictures and texts takes no dimension;
- components are uncorrelated and in order: the first 16 of a fit to 32 are the fit to 16;
- a component's share of the variance adds up with the others', with and without questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding import storage
from arr_coc.embedding.encoder import unit
from arr_coc.embedding.moments import Moments
from arr_coc.errors import ProjectionError, whole_number

DIMS = 16  # as many as the texture has embedding channels
TEXT_WEIGHT = 0.0
FORMAT, VERSION = "embedding projection", 1
TENSORS = ("components", "dual", "image_mean", "text_mean", "variance")
SAID = ("encoder", "pictures", "cells", "questions", "text_weight", "mode", "quality")
FEW = 8  # questions, whose mean would be mostly themselves
RANK_EPS = 1e-9  # of the largest variance: a direction with less is rounding


@dataclass(frozen=True, eq=False)
class Projection:
    """Fitted maps from D dimensions to k, for pictures and for questions. `fit` makes one, `load` reads one."""

    encoder: str  # the identity of the encoder whose features these are
    components: torch.Tensor  # [k, D] of length 1: a transformed feature stands for a sum of these
    dual: torch.Tensor  # [k, D] what a feature is multiplied with; equal to the components where no question had a say
    image_mean: torch.Tensor  # [D]
    text_mean: torch.Tensor  # [D]; zero where no question was seen
    variance: torch.Tensor  # [k] each component's share of the features' variance
    pictures: int = 0  # what it was fitted on
    cells: int = 0
    questions: int = 0
    text_weight: float = 0.0
    mode: str = "fast"
    quality: Mapping[str, Any] = field(default_factory=dict)  # what a validation found, ready for JSON

    @property
    def dims(self) -> int:
        return len(self.components)

    @property
    def width(self) -> int:
        return self.components.shape[1]

    @property
    def identity(self) -> str:
        """16 hexadecimal digits over everything that changes a compressed feature."""
        digest = hashlib.sha256(self.encoder.encode())
        for tensor in (self.components, self.dual, self.image_mean):
            digest.update(f"{list(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        """Features, dense `[D, h, w]` or in rows `[N, D]`, by the linear map: float32 `[k, h, w]` or `[N, k]`."""
        rows = self._rows(features, self.width, "features")
        dual, mean = self.dual.to(rows.device), self.image_mean.to(rows.device)
        return _like((rows - mean) @ dual.T, features)

    def transform_text(self, vectors: torch.Tensor) -> torch.Tensor:
        """Questions `[Q, D]` by their linear map: float32 `[Q, k]`."""
        rows = self._rows(vectors, self.width, "questions")
        return (rows - self.text_mean.to(rows.device)) @ self.components.to(rows.device).T

    def compress(self, features: torch.Tensor) -> torch.Tensor:
        """Features, dense or in rows, in k dimensions and of length 1, ready for dot products."""
        return unit(self.transform(features), dim=0 if features.ndim == 3 else 1)

    def compress_text(self, vectors: torch.Tensor) -> torch.Tensor:
        """Questions `[Q, D]` in k dimensions and of length 1: float32 `[Q, k]`."""
        return unit(self.transform_text(vectors), dim=1)

    def scores(self, compressed: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """The scores of questions `[Q, D]` with compressed features (`[k, h, w]` or `[N, k]`): `[Q, N]`."""
        return self.compress_text(vectors) @ self._rows(compressed, self.dims, "compressed features").T

    def full_scores(self, features: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """The same from the features in full (`[D, h, w]` or `[N, D]`): `[Q, N]`."""
        cells = self._rows(features, self.width, "features")
        questions = self._rows(vectors, self.width, "questions")
        questions = unit(questions - self.text_mean.to(questions.device), dim=1)
        return questions @ unit(cells - self.image_mean.to(cells.device), dim=1).T

    def reconstruct(self, transformed: torch.Tensor) -> torch.Tensor:
        """The features that transformed ones stand for: `[k, h, w]` to `[D, h, w]`, `[N, k]` to `[N, D]`."""
        rows = self._rows(transformed, self.dims, "transformed features")
        components, mean = self.components.to(rows.device), self.image_mean.to(rows.device)
        return _like(rows @ components + mean, transformed)

    def first(self, dims: int) -> Projection:
        """The same fit with fewer dimensions."""
        if whole_number(dims) is None or dims > self.dims:
            raise ProjectionError(f"expected 1 to {self.dims} dimensions of this projection, got {dims!r}")
        if dims == self.dims:
            return self
        some = {name: getattr(self, name)[:dims].clone() for name in ("components", "dual", "variance")}
        return replace(self, **some, quality={})

    def save(self, path: str | Path) -> None:
        """Write it as safetensors with its history as JSON in the file's metadata."""
        tensors = {name: getattr(self, name) for name in TENSORS if name != "dual" or not self.plain}
        note = {name: getattr(self, name) for name in SAID} | {"format": FORMAT, "version": VERSION, "dims": self.dims}
        try:
            storage.write(Path(path), tensors, note)
        except OSError as error:
            raise ProjectionError(f"cannot write {str(path)!r}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Projection:
        """Read a projection that `save` wrote."""
        try:
            tensors, note = storage.read(Path(path))
        except OSError as error:
            raise ProjectionError(f"cannot read the projection {str(path)!r}: {error.strerror or error}") from None
        except storage.Damaged as error:
            raise ProjectionError(f"{str(path)!r} is no projection of embeddings: {error}") from None
        if note.get("format") != FORMAT:
            raise ProjectionError(f"{str(path)!r} is no projection of embeddings: it holds {note.get('format')!r}")
        if note.get("version") != VERSION:
            raise ProjectionError(
                f"{str(path)!r} has version {note.get('version')!r}, this is code for version {VERSION}: fit it again"
            )
        try:
            given: dict[str, Any] = {"dual": tensors["components"]} | tensors | {name: note[name] for name in SAID}
            found = cls(**given)
        except (KeyError, TypeError) as error:
            raise ProjectionError(f"{str(path)!r} is damaged: {error} is missing or too much") from None
        found._check(path)
        return found

    @property
    def plain(self) -> bool:
        """Whether no question had a say, so that features and questions are multiplied with the same directions."""
        return torch.equal(self.dual, self.components)

    def _check(self, path: str | Path) -> None:
        k, width = self.components.shape if self.components.ndim == 2 else (0, 0)
        expected = {
            "components": (k, width), "dual": (k, width), "image_mean": (width,), "text_mean": (width,), "variance": (k,),
        }  # fmt: skip
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape or 0 in shape or not bool(torch.isfinite(tensor).all()):
                raise ProjectionError(
                    f"{str(path)!r} is damaged: {name} has shape {list(tensor.shape)} or is not finite"
                )

    def _rows(self, values: torch.Tensor, width: int, what: str) -> torch.Tensor:
        """Dense or in rows, as float32 rows `[N, width]`."""
        dense = values.ndim == 3
        if values.ndim not in (2, 3) or values.shape[0 if dense else 1] != width:
            raise ProjectionError(
                f"expected {what} of {width} dimensions, [{width}, h, w] or [N, {width}], got {list(values.shape)}"
            )
        return values.flatten(1).T.float() if dense else values.float()


def _like(rows: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Rows `[N, k]` in the form of what was given: dense or in rows."""
    return rows.T.reshape(-1, *given.shape[1:]).contiguous() if given.ndim == 3 else rows


def fit(
    features: Moments,
    questions: Moments | None = None,
    dims: int = DIMS,
    *,
    encoder: str,
    text_weight: float = TEXT_WEIGHT,
    pictures: int = 0,
    mode: str = "fast",
) -> Projection:
    """The projection to `dims` dimensions that keeps scores best.

    `text_weight`: 0 for questions from anywhere, 1 for none but the kind that was seen. Fewer than 8 questions have no say
    and are not centred: the mean of a few is mostly those few.
    """
    if whole_number(dims) is None or dims > features.width:
        raise ProjectionError(f"expected 1 to {features.width} dimensions for this encoder, got {dims!r}")
    if not 0 <= text_weight <= 1:
        raise ProjectionError(f"expected a text weight from 0 to 1, got {text_weight!r}")
    if features.count <= dims:
        raise ProjectionError(
            f"{features.count} cells are too few to fit {dims} dimensions: expected more cells than dimensions"
        )
    if questions is None or questions.count < FEW:
        questions, text_weight = Moments.none(features.width), 0.0
    spread, directions = torch.linalg.eigh(features.covariance)  # ascending
    spread, directions = spread.flip(0), directions.flip(1)
    rank = int((spread > RANK_EPS * spread[0].clamp(min=1e-30)).sum())
    if rank < dims:
        raise ProjectionError(
            f"the features vary in {rank} directions only, which {dims} dimensions cannot be fitted to: "
            "use more varied pictures, or fewer dimensions"
        )
    spread, directions = spread[:rank], directions[:, :rank]  # [r], [D, r]
    total = float(spread.sum())
    asked = _expected(questions, text_weight)  # [D, D]
    # The pair of maps with the least mean squared error of scores: the best rank-k form of sqrt(C) sqrt(T), with the
    # features' covariance C and the questions' T; through the eigenvectors of sqrt(C) T sqrt(C).
    root = spread.sqrt()
    inner = root[:, None] * (directions.T @ asked @ directions) * root  # [r, r]
    worth, turned = torch.linalg.eigh((inner + inner.T) / 2)
    worth, turned = worth.flip(0)[:dims], turned.flip(1)[:, :dims]
    if not bool(worth[-1] > RANK_EPS * worth[0]):
        raise ProjectionError(
            f"the questions vary in fewer than {dims} directions: a text weight below 1 lets others have a say"
        )
    synthesis = directions @ (root[:, None] * turned)  # [D, k]
    length = synthesis.norm(dim=0)
    analysis = (asked @ synthesis) / worth * length  # equals C**-.5 times the eigenvectors, without the inverse
    components = (synthesis / length).T
    analysis = (directions @ (directions.T @ analysis)).T  # what the features never show is not looked for
    # Eigenvectors have no sign of their own.
    sign = torch.sign(components.gather(1, components.abs().argmax(1, keepdim=True)))
    return Projection(
        encoder=encoder,
        components=(components * sign).float().contiguous(),
        dual=((analysis if text_weight else components) * sign).float().contiguous(),
        image_mean=features.mean.float(),
        text_mean=questions.mean.float(),
        variance=(length.square() / total).float(),
        pictures=pictures,
        cells=features.count,
        questions=questions.count,
        text_weight=float(text_weight),
        mode=mode,
    )


def spectrum(features: Moments) -> torch.Tensor:
    """Each principal component's share of the features' variance, largest first: float64 `[D]`."""
    spread = torch.linalg.eigvalsh(features.covariance).flip(0).clamp(min=0)
    return spread / spread.sum().clamp(min=1e-30)


def _expected(questions: Moments, weight: float) -> torch.Tensor:
    """The covariance of the questions to come: that of those seen, and with the rest of the weight any direction alike."""
    anywhere = torch.eye(questions.width, dtype=torch.float64) / questions.width
    if weight == 0:
        return anywhere
    seen = questions.covariance
    return (1 - weight) * anywhere + weight * seen / seen.trace().clamp(min=1e-30)
