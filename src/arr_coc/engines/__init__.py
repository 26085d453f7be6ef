"""Plugins for inference engines. An engine loads its plugin by an entry point; the package itself never imports one."""

import warnings
from typing import Any

VLLM_VERSIONS = ("0.32.",)  # the plugin overrides methods that vLLM may change in any version
VLLM_MODELS = {
    "Qwen2VLForConditionalGeneration": "Qwen2VL",
    "Qwen2_5_VLForConditionalGeneration": "Qwen25VL",
    "Qwen3VLForConditionalGeneration": "Qwen3VL",
}


def register_vllm() -> None:
    """The entry point `vllm.general_plugins`: vLLM calls it in each of its processes.

    The classes replace vLLM's own and are equal to them unless the server is started with the option `arr_coc`. They are
    imported when such a model is served.
    """
    from vllm import ModelRegistry, __version__

    if not __version__.startswith(VLLM_VERSIONS):
        known = " or ".join(f"{one}*" for one in VLLM_VERSIONS)
        warnings.warn(
            f"expected vLLM {known} for arr-coc, got {__version__}: the option arr_coc has no effect", stacklevel=2
        )
        return
    for architecture, name in VLLM_MODELS.items():
        ModelRegistry.register_model(architecture, f"{__name__}.vllm:{name}")


def lmms_manifest() -> Any:
    """The entry point `lmms_eval.models`: what lmms-eval loads as `--model arr_coc`."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("arr_coc", simple_class_path=f"{__name__}.lmms.ArrCocModel")
