"""ARR-COC: keep the visual tokens that matter for the question, at their original positions.

vlm = arr_coc.load("reader")  # or a model folder; or arr_coc.wrap(model, processor)
answer = vlm.ask("receipt.jpg", "What is the total amount?", budget="12.5%", glance="50%")
answer.text, answer.tokens, answer.timings, answer.allocation

texture = arr_coc.TextureArray.from_image("receipt.jpg")  # 40 named channels, each computed on first use
texture["edges"], texture.grid(44, 20), texture.sample(points, level=2.0)

Public names are imported on first use: `import arr_coc` loads neither torch nor transformers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc import selectors
    from arr_coc.draw import samples as pictures
    from arr_coc.embedding.cache import EmbeddingCache
    from arr_coc.embedding.embeddings import Embeddings
    from arr_coc.embedding.projection import Projection
    from arr_coc.errors import ArrCocError, ChannelError, ImageError
    from arr_coc.evaluation.runner import evaluate
    from arr_coc.find.index import Index
    from arr_coc.layer import ArrCocLayer
    from arr_coc.texture import (
        FULL40,
        LAYOUTS,
        MVP13,
        Channel,
        TextureArray,
        TextureBatch,
        all_channels,
        channel,
        kernels,
    )  # fmt: skip
    from arr_coc.types.allocation import Allocation
    from arr_coc.types.grid import Grid
    from arr_coc.video.stream import watch
    from arr_coc.vlm.api import load, realize, wrap

__version__ = "0.3.0"

__all__ = [
    "FULL40",
    "LAYOUTS",
    "MVP13",
    "Allocation",
    "ArrCocError",
    "ArrCocLayer",
    "Channel",
    "ChannelError",
    "EmbeddingCache",
    "Embeddings",
    "Grid",
    "ImageError",
    "Index",
    "Projection",
    "TextureArray",
    "TextureBatch",
    "all_channels",
    "channel",
    "evaluate",
    "kernels",
    "load",
    "pictures",
    "realize",
    "selectors",
    "watch",
    "wrap",
]

_MODULES = {"kernels": "arr_coc.texture.kernels", "pictures": "arr_coc.draw.samples", "selectors": "arr_coc.selectors"}
_HOMES = {
    "arr_coc.embedding.cache": ("EmbeddingCache",),
    "arr_coc.embedding.embeddings": ("Embeddings",),
    "arr_coc.embedding.projection": ("Projection",),
    "arr_coc.errors": ("ArrCocError", "ChannelError", "ImageError"),
    "arr_coc.evaluation.runner": ("evaluate",),
    "arr_coc.find.index": ("Index",),
    "arr_coc.layer": ("ArrCocLayer",),
    "arr_coc.texture": (
        "FULL40", "LAYOUTS", "MVP13", "Channel", "TextureArray", "TextureBatch", "all_channels", "channel",
    ),
    "arr_coc.types.allocation": ("Allocation",),
    "arr_coc.types.grid": ("Grid",),
    "arr_coc.video.stream": ("watch",),
    "arr_coc.vlm.api": ("load", "realize", "wrap"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(_MODULES[name])
    elif name in _HOME:
        found = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
