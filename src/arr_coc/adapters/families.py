"""Which models are known, which are refused and why."""

from __future__ import annotations

from typing import Any

from arr_coc.adapters.base import Adapter
from arr_coc.adapters.qwen2_5_vl import Qwen25VL
from arr_coc.adapters.qwen2_vl import Qwen2VL
from arr_coc.adapters.qwen3_vl import Qwen3VL
from arr_coc.errors import ModelError

OLDEST_TRANSFORMERS = (5, 18)

FAMILIES: tuple[type[Adapter], ...] = (Qwen2VL, Qwen25VL, Qwen3VL)

REFUSED: dict[str, str] = {}


def adapter(model: Any) -> Adapter:
    """The adapter of a model's family, or one sentence that says what is supported."""
    check_transformers()
    supported = ", ".join(family.family for family in FAMILIES)
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind is None or not callable(getattr(model, "generate", None)):
        raise ModelError(
            f"expected a transformers model that generates ({supported}), got {type(model).__module__}.{type(model).__name__}"
        )
    if kind in REFUSED:
        raise ModelError(f"{REFUSED[kind]} (supported: {supported})")
    for family in FAMILIES:
        if kind in family.model_types:
            found = family(model)
            found.check()
            return found
    raise ModelError(f"model type {kind!r} is not supported; supported are {supported}")


def check_transformers() -> None:
    """An installed transformers that is too old gets a sentence, not a missing keyword."""
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    if version < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise ModelError(
            f'expected transformers {oldest} or newer, got {transformers.__version__}: pip install "transformers>={oldest}"'
        )
