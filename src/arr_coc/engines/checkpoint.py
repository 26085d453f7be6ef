"""What a layer needs of its model, read from the model's files: word embeddings by row, and the model's identity.

The process that reads requests has no model: the engine runs it elsewhere. Only the rows that are asked for are read.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open

from arr_coc.adapters.families import family
from arr_coc.adapters.loading import empty_model, model_folder
from arr_coc.errors import LayerError, first_line
from arr_coc.layer.identity import HASHED_ROWS, identity_of, identity_weights
from arr_coc.layer.model import ArrCocLayer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PREFIXES = ("model.", "language_model.")  # they differ between versions of the same checkpoint


class Checkpoint:
    """The files of a model: a folder, or a hub id in the local cache."""

    def __init__(self, model: str) -> None:
        try:
            self.folder = model_folder(model)
        except OSError as error:
            raise LayerError(
                f"expected the files of {model!r} in a folder or in the hub's cache, to look for a layer: {first_line(error)}; "
                'set "layer" to null'
            ) from None
        self._words = ""

    def fit(self, layer: ArrCocLayer) -> ArrCocLayer:
        """The layer, if it was trained for this model."""
        model = empty_model(self.folder)
        names = {id(weights): name for name, weights in model.named_parameters(remove_duplicate=False)}
        names |= {id(weights): name for name, weights in model.named_parameters()}
        parts_of = family(model.config.model_type)(model, None, False)  # unchecked: it has no weights
        parts = {what: names[id(weights)] for what, weights in identity_weights(parts_of).items()}
        self._words = parts["words"]
        found = identity_of(model.config.model_type, {what: self._head(name) for what, name in parts.items()})
        if layer.config.model != found:
            raise LayerError(
                f"this layer was trained for {layer.config.model}, and the model is {found}: train one with arr-coc train, "
                'or set "layer" to null'
            )
        return layer

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Word embeddings `[T, D]` of token ids `[T]`."""
        file, key = self._place(self._words)
        with safe_open(file, "pt") as opened:
            table = opened.get_slice(key)
            width = table.get_shape()[1]
            rows = [table[number : number + 1] for number in ids.tolist()]
        return torch.cat(rows) if rows else torch.zeros(0, width)

    def _head(self, name: str) -> torch.Tensor:
        file, key = self._place(name)
        with safe_open(file, "pt") as opened:
            return opened.get_slice(key)[:HASHED_ROWS]

    def _place(self, name: str) -> tuple[Path, str]:
        """The file of a parameter, and its name there."""
        wanted = _bare(name)
        found = [key for key in self._files if _bare(key) == wanted]
        if len(found) != 1:
            raise LayerError(
                f"expected the weights {name!r} in {str(self.folder)!r} for the layer, found {len(found)}: "
                'save the model as safetensors, or set "layer" to null'
            )
        return self._files[found[0]], found[0]

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Parameter name -> file."""
        if (self.folder / INDEX).is_file():
            index = json.loads((self.folder / INDEX).read_text())["weight_map"]
            return {name: self.folder / file for name, file in index.items()}
        if not (self.folder / WEIGHTS).is_file():
            return {}
        with safe_open(self.folder / WEIGHTS, "pt") as opened:
            return dict.fromkeys(opened.keys(), self.folder / WEIGHTS)


def _bare(name: str) -> str:
    """A parameter's name without the prefixes that differ between checkpoints."""
    while (shorter := next((name.removeprefix(one) for one in PREFIXES if name.startswith(one)), None)) is not None:
        name = shorter
    return name
