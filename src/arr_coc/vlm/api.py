"""`arr_coc.wrap`, `arr_coc.load`: transformers is imported when they are called, not with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings
    from arr_coc.layer import ArrCocLayer
    from arr_coc.vlm.model import VLM


def wrap(
    model: Any, processor: Any = None, *, batch_windows: bool = False, embeddings: Embeddings | str | None = None,
    layer: ArrCocLayer | str | Path | None = None,
) -> VLM:  # fmt: skip
    """Wrap a model that you loaded yourself, and its processor. The model is left as it is.

    `batch_windows`: whole pictures, too, are encoded with all attention windows in one call. This is equal to the stock
    encoder to rounding, and much faster on a GPU for models whose encoder has windows (Qwen2.5-VL).
    `embeddings` (or an encoder's name): for selectors that ask what the question has in common with the picture (`coupling`, or your own through
    `sight.embedding_scores`); a picture is embedded once, and its texture's embedding channels are filled.
    `layer`: what `arr-coc train` learned for this model, or its folder.
    """
    from arr_coc.vlm.model import VLM

    return VLM(model, processor, batch_windows=batch_windows, embeddings=embeddings, layer=layer)


def load(
    name: str | Path, *, batch_windows: bool = False, embeddings: Embeddings | str | None = None,
    layer: ArrCocLayer | str | Path | None = "auto", **options: Any,
) -> VLM:  # fmt: skip
    """Load a model folder or hub id and wrap it as `wrap` does; `options` go to `from_pretrained` (dtype, device_map, ...).

    `"reader"` is the small model that ships with the package. `layer`: "auto" takes a learned layer that lies in the model's
    folder, None does without.
    """
    from arr_coc import reader
    from arr_coc.adapters.loading import load_model, load_processor
    from arr_coc.layer.model import WEIGHTS
    from arr_coc.vlm.model import VLM

    if str(name) == reader.NAME:
        name = reader.WEIGHTS
        options = {"dtype": "float32"} | options  # stored in half precision, which CPUs are slow at
    model = load_model(name, **options)
    processor = load_processor(name, model.config.model_type)
    if layer == "auto":
        layer = name if (Path(name) / WEIGHTS).is_file() else None
    return VLM(model, processor, batch_windows=batch_windows, embeddings=embeddings, layer=layer)
