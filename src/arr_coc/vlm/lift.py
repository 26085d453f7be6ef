"""From k dimensions back to what a language model reads: the lift, and the folder it is kept in.

Features that were compressed linearly are best restored linearly as long as they are spread like a normal distribution.
Those of an encoder are not, so beside the linear map there may be a hidden layer that learns what else k numbers say.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from arr_coc.embedding import storage
from arr_coc.embedding.encoder import fingerprint
from arr_coc.embedding.projection import Projection
from arr_coc.errors import ProjectionError

FORMAT, VERSION = "texture embeddings for a language model", 1
NOTE, PROJECTION, LIFT, LANGUAGE = (
    "texture_vlm.json",
    "projection.safetensors",
    "lift.safetensors",
    "language.safetensors",
)


class Lift(nn.Module):
    """`[.., k]` to `[.., D]`. Until it is trained it is the projection's own reconstruction.

    `hidden`: units of the hidden layer; 0 for a linear map. It is the difference of two networks that start out equal, so
    that it starts at exactly zero and yet every weight gets a gradient from the first step on.
    `spread`: the features' variance over all dimensions, where it is known: dimensions of any size then learn at one pace.
    """

    scale: torch.Tensor  # [k]

    def __init__(self, projection: Projection, hidden: int = 0, spread: float | None = None) -> None:
        super().__init__()
        k, width = projection.dims, projection.width
        self.hidden = hidden
        deviation = torch.ones(k) if spread is None else (projection.variance.clamp(min=1e-9) * spread).sqrt()
        self.register_buffer("scale", deviation)
        self.linear = nn.Linear(k, width)
        with torch.no_grad():
            self.linear.weight.copy_(projection.components.T * deviation)
            self.linear.bias.copy_(projection.image_mean)
        self.more = _network(k, hidden, width) if hidden else None
        self.less = copy.deepcopy(self.more)

    def forward(self, stored: torch.Tensor) -> torch.Tensor:
        even = stored / self.scale
        if self.more is None or self.less is None:
            return self.linear(even)
        return self.linear(even) + (self.more(even) - self.less(even))


def _network(k: int, hidden: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(k, hidden), nn.GELU(), nn.Linear(hidden, width))


def encoder_identity(model: Any, language: Any) -> str:
    """What names the tokens of `model`'s own encoder: its weights, but for those of the `language` model inside it.

    Precision that holds the same numbers does not matter.
    """
    later = {id(parameter) for parameter in language.parameters()}
    output = model.get_output_embeddings()
    later |= set() if output is None else {id(parameter) for parameter in output.parameters()}
    weights = {name: p.detach().float() for name, p in model.named_parameters() if id(p) not in later}
    return f"tokens-{fingerprint(weights, (model.config.model_type,))}"


def with_own(model: Any, own: Iterable[torch.Tensor]) -> Any:
    """A copy of a model that has weights of its own for those in `own` and shares all others with it."""
    mine = {id(parameter) for parameter in own}
    shared = {id(p): p for p in model.parameters() if id(p) not in mine}
    return copy.deepcopy(model, shared)


def language_weights(model: Any, language: Any) -> dict[str, torch.Tensor]:
    """The language model's weights by their names in `model`, with its output layer where that has weights of its own."""
    mine = {id(parameter) for parameter in language.parameters()}
    output = model.get_output_embeddings()
    mine |= set() if output is None else {id(parameter) for parameter in output.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in mine}


def write(
    folder: str | Path, projection: Projection, lift: Lift, language: Mapping[str, torch.Tensor] | None = None
) -> Path:
    """A folder with the projection, the lift and, where it was adapted, the language model's weights."""
    path = Path(folder)
    note = {
        "format": FORMAT, "version": VERSION, "encoder": projection.encoder, "dims": projection.dims,
        "width": projection.width, "hidden": lift.hidden, "language": language is not None,
    }  # fmt: skip
    try:
        path.mkdir(parents=True, exist_ok=True)
        storage.write(path / LIFT, lift.state_dict(), note)
        if language is None:
            (path / LANGUAGE).unlink(missing_ok=True)
        else:
            storage.write(path / LANGUAGE, language, note)
        (path / NOTE).write_text(json.dumps(note, indent=2) + "\n")
    except OSError as error:
        raise ProjectionError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    projection.save(path / PROJECTION)
    return path


def read(folder: str | Path) -> tuple[Projection, Lift, dict[str, torch.Tensor] | None]:
    """The way back from `write`."""
    path = Path(folder)
    try:
        note = json.loads((path / NOTE).read_text())
        if not isinstance(note, dict) or (note.get("format"), note.get("version")) != (FORMAT, VERSION):
            raise ProjectionError(f"{str(path)!r} holds no {FORMAT} of version {VERSION}: its {NOTE} says otherwise")
        weights, _ = storage.read(path / LIFT)
        language = storage.read(path / LANGUAGE)[0] if note["language"] else None
    except OSError as error:
        raise ProjectionError(f"{str(path)!r} holds no {FORMAT}: {error.strerror or error}") from None
    except (storage.DamagedFileError, ValueError, KeyError) as error:
        if isinstance(error, ProjectionError):
            raise
        raise ProjectionError(f"{str(path)!r} is damaged: {error}") from None
    projection = Projection.load(path / PROJECTION)
    lift = Lift(projection, note.get("hidden", 0))
    try:
        lift.load_state_dict(weights)
    except RuntimeError:
        expected = f"{projection.dims} to {projection.width} dimensions with {lift.hidden} hidden units"
        raise ProjectionError(f"{str(path)!r} is damaged: its lift is not from {expected}") from None
    return projection, lift, language


def unexplained(restored: torch.Tensor, features: torch.Tensor, spread: float) -> torch.Tensor:
    """The share of the features' variance that is missing in what was restored: 1 minus what principal components keep."""
    return (restored.float() - features.float()).square().sum(-1).mean() / max(spread, math.ulp(1.0))
