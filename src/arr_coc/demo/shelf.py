"""The models that the page answers with, each loaded once, with whatever layer is asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.demo.folders import inside
from arr_coc.errors import ModelError

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

LAYERS = 4  # other layers that are kept ready


class Shelf:
    """Models by name; the first is the usual one. `root`: where layers may be opened from."""

    def __init__(self, models: Sequence[str], root: Path, device: str = "cpu", embeddings: str | None = None) -> None:
        import arr_coc

        self.names = tuple(dict.fromkeys(models))
        self.embeddings = embeddings
        self.root = root
        self._models: dict[str, VLM] = {}
        for name in self.names:
            self._models[name] = arr_coc.load(name, embeddings=embeddings)
            self._models[name].model.to(device)
        self._layered: OrderedDict[tuple[str, str], VLM] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, model: str = "", layer: str = "auto") -> VLM:
        """A model with its own layer (`auto`), with none, or with one from a folder."""
        name = model or self.names[0]
        if name not in self._models:
            raise ModelError(f"expected a model among {', '.join(self.names)}, got {name[:80]!r}: name it with --model")
        wanted = layer.strip() or "auto"
        if wanted == "auto":
            return self._models[name]
        with self._lock:
            key = (name, wanted)
            if key not in self._layered:
                self._layered[key] = self._with_layer(self._models[name], wanted)
                while len(self._layered) > LAYERS:
                    self._layered.popitem(last=False)
            self._layered.move_to_end(key)
            return self._layered[key]

    def _with_layer(self, vlm: VLM, layer: str) -> Any:
        """The same model in another wrapping: nothing is loaded again but the layer."""
        import arr_coc

        folder = None if layer == "none" else inside(self.root, layer, "a layer's folder")
        return arr_coc.wrap(vlm.model, vlm.processor, embeddings=vlm.embeddings, layer=folder)
