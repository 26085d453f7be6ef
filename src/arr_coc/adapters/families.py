"""The supported model families, and the models that are refused with a reason."""

from __future__ import annotations

from typing import Any

from arr_coc.adapters.base import Adapter
from arr_coc.adapters.generic import Unlisted
from arr_coc.adapters.generic_families import GENERIC
from arr_coc.adapters.glm4v import GLM
from arr_coc.adapters.idefics3 import Idefics3, SmolVLM
from arr_coc.adapters.internvl import InternVL
from arr_coc.adapters.llava import Llava
from arr_coc.adapters.llava_next import Granite4Vision, LlavaNext, LlavaNextVideo, LlavaOnevision
from arr_coc.adapters.qwen2_vl import Qwen2VL, Qwen3Omni, Qwen3VL, Qwen25Omni, Qwen25VL, Qwen35
from arr_coc.adapters.refusals import REFUSED
from arr_coc.adapters.strips import STRIPS, Pixtral
from arr_coc.adapters.wrapped import unwrap
from arr_coc.errors import ModelError

FAMILIES: tuple[type[Adapter], ...] = (
    Qwen2VL, Qwen25VL, Qwen3VL, Qwen35, Qwen25Omni, Qwen3Omni, *GLM, Llava, LlavaNext, LlavaNextVideo, LlavaOnevision,
    InternVL, Idefics3, SmolVLM, Granite4Vision, *STRIPS, *GENERIC,
)  # fmt: skip


def adapter(model: Any, image_processor: Any = None, batch_windows: bool = False) -> Adapter:
    """The adapter of a model's family, whatever wraps the model; raises with a list of the supported families."""
    check_transformers()
    model = unwrap(model)
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None or not callable(getattr(model, "generate", None)):
        came = f"{type(model).__module__}.{type(model).__name__}"
        raise ModelError(f"expected a transformers model that generates ({_supported()}), got {came}")
    if callable(getattr(getattr(model, "model", model), "get_image_features", None)) and not _is_listed(kind):
        known: type[Adapter] = Unlisted
    else:
        known = family(kind)
    if kind == "llava" and model.config.vision_config.model_type == "pixtral":
        known = Pixtral
    check_transformers(known)
    found = known(model, image_processor, batch_windows)
    found.check()
    return found


def family(model_type: str) -> type[Adapter]:
    """The adapter class for a `config.model_type`. A type in no list is tried, and has to prove itself."""
    for known in FAMILIES:
        if model_type in known.model_types:
            return known
    reason = REFUSED.get(model_type)
    if reason is None and model_type in image_text_types():
        return Unlisted
    raise ModelError(f"{reason or f'model type {model_type!r} is not supported'} (supported: {_supported()})")


def processor_name(model_type: str) -> str:
    """The name of a type's processor class in transformers."""
    from transformers.models.auto import processing_auto

    name = family(model_type).processor or processing_auto.PROCESSOR_MAPPING_NAMES.get(model_type)  # type: ignore[attr-defined]
    if name is None:
        raise ModelError(f"expected a processor for model type {model_type!r}, got none: wrap the model with your own")
    return str(name)


def image_text_types() -> dict[str, str]:
    """The image-text-to-text types of the installed transformers, with the names of their model classes."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def _is_listed(model_type: str) -> bool:
    return model_type in REFUSED or any(model_type in known.model_types for known in FAMILIES)


def _supported() -> str:
    return ", ".join(known.family for known in FAMILIES)


def check_transformers(known: type[Adapter] = Adapter) -> None:
    """Raise if the installed transformers is too old, for every family or for one."""
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    if version < known.oldest:
        oldest = ".".join(map(str, known.oldest))
        whose = "" if known is Adapter else f" for {known.family}"
        raise ModelError(
            f"expected transformers {oldest} or newer{whose}, got {transformers.__version__}: "
            f'pip install "transformers>={oldest}"'
        )
