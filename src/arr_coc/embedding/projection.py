"""Compressing features from D to k dimensions: the projection, how it is fitted, and what its scores mean.

Score. Image features f are centred on their mean m, question vectors t on their own mean n. The score is the cosine
between f - m and t - n. A plain cosine would also rank cells by what all questions share, whatever is asked.

Compression. One linear map takes features to k dimensions and another takes questions there; the score is the cosine in
k dimensions. Plain dot products estimate the full scores with less error on average, but rare objects have short
vectors after the projection: only normalised vectors find them (docs/embeddings.md has measurements of both).

Fit. The pair of linear maps to k dimensions with the least mean squared error of dot products over features and
questions. For questions from anywhere (`text_weight` 0) this is the PCA of the features. With known questions, the
directions that they use count more.

- Separate means: the gap between image and text vectors takes no dimension.
- Components are uncorrelated and sorted: the first 16 of a fit to 32 are the fit to 16.
- The components' shares of the variance add up, with and without questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding import storage
from arr_coc.embedding.encoder import l2_normalize
from arr_coc.errors import ProjectionError, whole_number

DIMS = 16  # the number of embedding channels of the texture
TEXT_WEIGHT = 0.0
FORMAT, VERSION = "embedding projection", 1
TENSORS = ("components", "dual", "image_mean", "text_mean", "variance")
METADATA = ("encoder", "pictures", "cells", "questions", "text_weight", "mode", "quality")
MIN_QUESTIONS = 8  # the mean of fewer is mostly those few
RANK_EPS = 1e-9  # of the largest variance: a direction with less is rounding
ROWS_PER_CHUNK = 1 << 14  # vectors converted to float64 at a time


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and scatter of vectors `[N, D]`, collected in one pass and constant memory.

    `scatter` is the sum of outer products around the mean: N times the covariance. It is never a difference of large
    sums, so vectors far from zero lose no precision. `a + b` is exact up to float64 rounding, in any order.
    """

    count: int
    mean: torch.Tensor  # [D] float64
    scatter: torch.Tensor  # [D, D] float64

    @classmethod
    def empty(cls, width: int) -> Moments:
        return cls(0, torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64))

    @classmethod
    def of(cls, vectors: torch.Tensor) -> Moments:
        """The moments of vectors `[N, D]`."""
        if vectors.ndim != 2:
            raise ProjectionError(f"expected vectors as [N, D], got {list(vectors.shape)}")
        found = cls.empty(vectors.shape[1])
        for chunk in torch.split(vectors.detach(), ROWS_PER_CHUNK):
            rows = chunk.to(device="cpu", dtype=torch.float64)
            if not bool(torch.isfinite(rows).all()):
                raise ProjectionError("expected finite vectors, got NaN or infinity")
            mean = rows.mean(0)
            centred = rows - mean
            found = found + cls(len(rows), mean, centred.T @ centred)
        return found

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def covariance(self) -> torch.Tensor:
        """`[D, D]`, divided by the count; zero if there are no vectors."""
        return self.scatter / max(self.count, 1)

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of vectors."""
        if self.width != other.width:
            raise ProjectionError(f"expected vectors of {self.width} dimensions, got {other.width}")
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        between = torch.outer(gap, gap) * (self.count * (other.count / count))
        return Moments(count, mean, self.scatter + other.scatter + between)

    def with_count(self, count: int) -> Moments:
        """The same mean and covariance with the weight of `count` vectors, to merge two sets with equal weight."""
        return Moments(count, self.mean, self.covariance * count)

    def to_tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """Named tensors for a file."""
        count = torch.tensor(self.count, dtype=torch.int64)
        return {f"{prefix}.count": count, f"{prefix}.mean": self.mean, f"{prefix}.scatter": self.scatter}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], prefix: str) -> Moments:
        """The inverse of `to_tensors`."""
        count, mean, scatter = (tensors[f"{prefix}.{part}"] for part in ("count", "mean", "scatter"))
        return cls(int(count), mean.double(), scatter.double())


@dataclass(frozen=True, eq=False)
class Projection:
    """Linear maps from D to k dimensions, for features and for questions. Made by `fit_projection` or `load`."""

    encoder: str  # the identity of the encoder
    components: torch.Tensor  # [k, D] of length 1; `reconstruct` returns a sum of these
    dual: torch.Tensor  # [k, D] features are multiplied with it; equal to `components` if the fit used no questions
    image_mean: torch.Tensor  # [D]
    text_mean: torch.Tensor  # [D]; zero if the fit used no questions
    variance: torch.Tensor  # [k] each component's share of the features' variance
    pictures: int = 0  # what it was fitted on
    cells: int = 0
    questions: int = 0
    text_weight: float = 0.0
    mode: str = "fast"
    quality: Mapping[str, Any] = field(default_factory=dict)  # the validation's figures, ready for JSON

    @property
    def dims(self) -> int:
        return len(self.components)

    @property
    def width(self) -> int:
        return self.components.shape[1]

    @property
    def is_pca(self) -> bool:
        """Whether no question influenced the fit, so that features and questions use the same map."""
        return torch.equal(self.dual, self.components)

    @property
    def identity(self) -> str:
        """16 hexadecimal digits over everything that changes a compressed feature."""
        digest = hashlib.sha256(self.encoder.encode())
        for tensor in (self.components, self.dual, self.image_mean):
            digest.update(f"{list(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def transform(self, features: torch.Tensor) -> torch.Tensor:
        """Features `[D, h, w]` or `[N, D]` through the linear map: float32 `[k, h, w]` or `[N, k]`."""
        rows = _rows(features, self.width, "features")
        dual, mean = self.dual.to(rows.device), self.image_mean.to(rows.device)
        return _reshape((rows - mean) @ dual.T, features)

    def transform_text(self, vectors: torch.Tensor) -> torch.Tensor:
        """Questions `[Q, D]` through their linear map: float32 `[Q, k]`."""
        rows = _rows(vectors, self.width, "questions")
        return (rows - self.text_mean.to(rows.device)) @ self.components.to(rows.device).T

    def compress(self, features: torch.Tensor) -> torch.Tensor:
        """`transform`, then scaled to length 1, ready for dot products."""
        return l2_normalize(self.transform(features), dim=0 if features.ndim == 3 else 1)

    def compress_text(self, vectors: torch.Tensor) -> torch.Tensor:
        """`transform_text`, then scaled to length 1: float32 `[Q, k]`."""
        return l2_normalize(self.transform_text(vectors), dim=1)

    def scores(self, compressed: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Scores of questions `[Q, D]` for compressed features `[k, h, w]` or `[N, k]`: `[Q, N]`."""
        return self.compress_text(vectors) @ _rows(compressed, self.dims, "compressed features").T

    def full_scores(self, features: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Scores of questions `[Q, D]` for features in full, `[D, h, w]` or `[N, D]`: `[Q, N]`."""
        cells = _rows(features, self.width, "features")
        questions = _rows(vectors, self.width, "questions")
        questions = l2_normalize(questions - self.text_mean.to(questions.device), dim=1)
        return questions @ l2_normalize(cells - self.image_mean.to(cells.device), dim=1).T

    def reconstruct(self, transformed: torch.Tensor) -> torch.Tensor:
        """The inverse of `transform` up to what was lost: `[k, h, w]` to `[D, h, w]`, `[N, k]` to `[N, D]`."""
        rows = _rows(transformed, self.dims, "transformed features")
        components, mean = self.components.to(rows.device), self.image_mean.to(rows.device)
        return _reshape(rows @ components + mean, transformed)

    def first(self, dims: int) -> Projection:
        """The same fit truncated to its first `dims` dimensions."""
        if whole_number(dims) is None or dims > self.dims:
            raise ProjectionError(f"expected 1 to {self.dims} dimensions of this projection, got {dims!r}")
        if dims == self.dims:
            return self
        some = {name: getattr(self, name)[:dims].clone() for name in ("components", "dual", "variance")}
        return replace(self, **some, quality={})

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with the fit's history as JSON in its metadata."""
        tensors = {name: getattr(self, name) for name in TENSORS if name != "dual" or not self.is_pca}
        note = {name: getattr(self, name) for name in METADATA}
        try:
            storage.write(Path(path), tensors, note | {"format": FORMAT, "version": VERSION, "dims": self.dims})
        except OSError as error:
            raise ProjectionError(f"cannot write {str(path)!r}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Projection:
        """Read a file that `save` wrote."""
        try:
            tensors, note = storage.read(Path(path))
        except OSError as error:
            raise ProjectionError(f"cannot read the projection {str(path)!r}: {error.strerror or error}") from None
        except storage.DamagedFileError as error:
            raise ProjectionError(f"{str(path)!r} is no projection of embeddings: {error}") from None
        if note.get("format") != FORMAT:
            raise ProjectionError(f"{str(path)!r} is no projection of embeddings: it holds {note.get('format')!r}")
        if note.get("version") != VERSION:
            raise ProjectionError(
                f"{str(path)!r} has version {note.get('version')!r}, this is code for version {VERSION}: fit it again"
            )
        try:
            found = cls(**({"dual": tensors["components"]} | tensors | {name: note[name] for name in METADATA}))
        except (KeyError, TypeError) as error:
            raise ProjectionError(f"{str(path)!r} is damaged: {error} is missing or not expected") from None
        k, width = found.components.shape if found.components.ndim == 2 else (0, 0)
        shapes = ((k, width), (k, width), (width,), (width,), (k,))
        for name, shape in zip(TENSORS, shapes, strict=True):
            tensor = getattr(found, name)
            if tuple(tensor.shape) != shape or 0 in shape or not bool(torch.isfinite(tensor).all()):
                got = list(tensor.shape)
                raise ProjectionError(f"{str(path)!r} is damaged: {name} has shape {got} or is not finite")
        return found


def _rows(values: torch.Tensor, width: int, what: str) -> torch.Tensor:
    """Dense `[width, h, w]` or rows `[N, width]` as float32 rows `[N, width]`."""
    dense = values.ndim == 3
    if values.ndim not in (2, 3) or values.shape[0 if dense else 1] != width:
        raise ProjectionError(
            f"expected {what} of {width} dimensions, [{width}, h, w] or [N, {width}], got {list(values.shape)}"
        )
    return values.flatten(1).T.float() if dense else values.float()


def _reshape(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Rows `[N, k]` as `[k, h, w]` if `like` is dense."""
    return rows.T.reshape(-1, *like.shape[1:]).contiguous() if like.ndim == 3 else rows


def fit_projection(
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

    `text_weight`: 0 for questions from anywhere, 1 for questions like those seen only. Fewer than 8 questions are
    neither used nor centred.
    """
    if whole_number(dims) is None or dims > features.width:
        raise ProjectionError(f"expected 1 to {features.width} dimensions for this encoder, got {dims!r}")
    if not 0 <= text_weight <= 1:
        raise ProjectionError(f"expected a text weight from 0 to 1, got {text_weight!r}")
    if features.count <= dims:
        raise ProjectionError(
            f"{features.count} cells are too few to fit {dims} dimensions: expected more cells than dimensions"
        )
    if questions is None or questions.count < MIN_QUESTIONS:
        questions, text_weight = Moments.empty(features.width), 0.0
    spread, directions = torch.linalg.eigh(features.covariance)  # ascending
    spread, directions = spread.flip(0), directions.flip(1)
    rank = int((spread > RANK_EPS * spread[0].clamp(min=1e-30)).sum())
    if rank < dims:
        raise ProjectionError(
            f"the features vary in {rank} directions only, too few to fit {dims} dimensions: "
            "use more varied pictures, or fewer dimensions"
        )
    spread, directions = spread[:rank], directions[:, :rank]  # [r], [D, r]
    asked = _question_covariance(questions, text_weight)  # [D, D]
    # The least mean squared error of scores is the best rank-k approximation of sqrt(C) sqrt(T), with the covariances C
    # of the features and T of the questions; it comes from the eigenvectors of sqrt(C) T sqrt(C).
    root = spread.sqrt()
    inner = root[:, None] * (directions.T @ asked @ directions) * root  # [r, r]
    eigenvalues, eigenvectors = torch.linalg.eigh((inner + inner.T) / 2)
    eigenvalues, eigenvectors = eigenvalues.flip(0)[:dims], eigenvectors.flip(1)[:, :dims]
    if not bool(eigenvalues[-1] > RANK_EPS * eigenvalues[0]):
        raise ProjectionError(f"the questions vary in fewer than {dims} directions: use a text weight below 1")
    synthesis = directions @ (root[:, None] * eigenvectors)  # [D, k]
    length = synthesis.norm(dim=0)
    analysis = (asked @ synthesis) / eigenvalues * length  # C**-.5 times the eigenvectors, without the inverse
    components = (synthesis / length).T
    analysis = (directions @ (directions.T @ analysis)).T  # within the span of the features
    # Eigenvectors are defined up to their sign: the largest entry is made positive.
    sign = torch.sign(components.gather(1, components.abs().argmax(1, keepdim=True)))
    return Projection(
        encoder=encoder,
        components=(components * sign).float().contiguous(),
        dual=((analysis if text_weight else components) * sign).float().contiguous(),
        image_mean=features.mean.float(),
        text_mean=questions.mean.float(),
        variance=(length.square() / float(spread.sum())).float(),
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


def _question_covariance(questions: Moments, weight: float) -> torch.Tensor:
    """`weight` times the covariance of the questions seen, the rest isotropic; the trace is 1."""
    isotropic = torch.eye(questions.width, dtype=torch.float64) / questions.width
    if weight == 0:
        return isotropic
    seen = questions.covariance
    return (1 - weight) * isotropic + weight * seen / seen.trace().clamp(min=1e-30)
