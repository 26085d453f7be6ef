"""A layer's shape, and the model that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from arr_coc.errors import LayerError

# What the texture tells about each cell; colours come in finer, as the cell's own pixels.
CHANNELS = (
    "edges", "edges_inverted", "highpass", "lowpass", "saliency", "text", "distance", "x", "y", "eccentricity",
)  # fmt: skip
POOLINGS = ("learned", "max", "mean", "sum")
BALANCES = ("sigmoid", "softmax")


@dataclass(frozen=True)
class LayerConfig:
    """Sizes of a layer. `model` names whose tokens and words it understands."""

    model: str
    token_width: int  # of the encoder's tokens
    word_width: int  # of the word embeddings
    width: int = 96
    heads: int = 4
    seeing: int = 1  # blocks that know no question, and are worked out once for a picture
    asking: int = 2  # blocks that do
    pixels: int = 8  # a cell's pixels, so many across and down
    channels: tuple[str, ...] = CHANNELS
    pooling: str = "learned"  # how a cell's likeness to the question's tokens becomes one number
    balance: str = "sigmoid"  # weights of the ways of knowing: each for itself, or shares of 1

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise LayerError(f"expected {one.name} as a whole number from 1 on, got {value!r}")
        if self.width % (4 * self.heads) or self.heads % 2:
            raise LayerError(
                f"expected an even number of heads, and a width that is a multiple of 4 times it, "
                f"got {self.heads} and {self.width}"
            )
        if not self.channels or not all(isinstance(name, str) for name in self.channels):
            raise LayerError(f"expected the names of one channel or more, got {self.channels!r}")
        if self.pooling not in POOLINGS:
            raise LayerError(f"expected pooling as one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.balance not in BALANCES:
            raise LayerError(f"expected balance as one of {', '.join(BALANCES)}, got {self.balance!r}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> LayerConfig:
        try:
            return cls(**{**said, "channels": tuple(said["channels"])})
        except (TypeError, KeyError) as error:
            raise LayerError(f"expected the shape of a layer, got {sorted(said)} ({error})") from None
