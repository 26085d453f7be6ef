"""Plugins for inference engines. An engine loads its plugin by an entry point; the package itself never imports one."""

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
    from vllm import ModelRegistry

    for architecture, name in VLLM_MODELS.items():
        ModelRegistry.register_model(architecture, f"{__name__}.vllm:{name}")
