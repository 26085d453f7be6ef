"""Count, mean and scatter of any number of vectors, in one pass and constant memory.

Notable:
- two parts merge exactly: whatever the order and the sizes of the parts, only float64 rounding differs;
- the scatter is kept around the mean, never as a difference of large sums, so features far from zero lose nothing;
- parts that were gathered elsewhere (another process, an interrupted run) are tensors like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from arr_coc.errors import ProjectionError

ROWS_AT_ONCE = 1 << 14  # vectors turned into float64 at a time


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known of vectors `[N, D]` without keeping them.

    `scatter` is the sum of outer products around the mean: N times the covariance.
    """

    count: int
    mean: torch.Tensor  # [D] float64
    scatter: torch.Tensor  # [D, D] float64

    @classmethod
    def none(cls, width: int) -> Moments:
        """Of no vectors at all."""
        return cls(0, torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64))

    @classmethod
    def of(cls, vectors: torch.Tensor) -> Moments:
        """Of vectors `[N, D]` at hand."""
        if vectors.ndim != 2:
            raise ProjectionError(f"expected vectors as [N, D], got {list(vectors.shape)}")
        found = cls.none(vectors.shape[1])
        for part in torch.split(vectors.detach(), ROWS_AT_ONCE):
            rows = part.to(device="cpu", dtype=torch.float64)
            if not bool(torch.isfinite(rows).all()):
                raise ProjectionError("expected finite vectors, got NaN or infinity")
            mean = rows.mean(0)
            around = rows - mean
            found = found + cls(len(rows), mean, around.T @ around)
        return found

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def covariance(self) -> torch.Tensor:
        """`[D, D]`, divided by the count; zero where nothing was seen."""
        return self.scatter / max(self.count, 1)

    def __add__(self, other: Moments) -> Moments:
        """Of the vectors of both."""
        if self.width != other.width:
            raise ProjectionError(f"expected vectors of {self.width} dimensions, got {other.width}")
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        # What lies between the two means is scatter, too.
        between = torch.outer(apart, apart) * (self.count * (other.count / count))
        return Moments(count, mean, self.scatter + other.scatter + between)

    def counted_as(self, count: int) -> Moments:
        """The same mean and covariance, with the weight of `count` vectors: for merging kinds that should count alike."""
        return Moments(count, self.mean, self.covariance * count)

    def tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        """For a file: named tensors that `read` understands."""
        count = torch.tensor(self.count, dtype=torch.int64)
        return {f"{prefix}.count": count, f"{prefix}.mean": self.mean, f"{prefix}.scatter": self.scatter}

    @classmethod
    def read(cls, tensors: Mapping[str, torch.Tensor], prefix: str) -> Moments:
        """The way back from `tensors`."""
        count, mean, scatter = (tensors[f"{prefix}.{part}"] for part in ("count", "mean", "scatter"))
        return cls(int(count), mean.double(), scatter.double())
