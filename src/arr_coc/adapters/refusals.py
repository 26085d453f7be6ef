"""Why the other image-text-to-text types of transformers are refused, one sentence each."""

from __future__ import annotations

_DECODER = "a decoder reads the picture's tokens by cross-attention, and none of them is in its prompt"
_CROSS = "its language layers read the picture by cross-attention, and none of its tokens is in the prompt"
_NO_OUTPUTS = "its forward does not take mm_encoder_outputs, so that kept features cannot be passed to it"
_LEARNED = "its tokens are learned queries of the whole picture before a language model with learned positions"
_INDEXED = (
    "its indexed layers choose themselves which tokens to attend to, so that dropping some changes which are left"
)
_TIMM = "its vision tower needs timm, which needs torchvision, so that it could not be tested"

REFUSED: dict[str, str] = {
    "blip": f"BLIP is not supported: {_NO_OUTPUTS}",
    "blip-2": f"BLIP-2 is not supported: {_LEARNED}",
    "deepseek_ocr2": "DeepSeek-OCR 2 is not supported: its tokens are learned queries, whose order is not that of a grid",
    "diffusion_gemma": "DiffusionGemma is not supported: it generates by block diffusion, not token by token",
    "evolla": f"Evolla is not supported: it reads proteins, not pictures, and {_CROSS}",
    "fast_vlm": f"FastVLM is not supported: {_TIMM}",
    "florence2": f"Florence-2 is not supported: {_DECODER}",
    "gemma3n": f"Gemma 3n is not supported: {_TIMM}",
    "git": f"GIT is not supported: {_NO_OUTPUTS}",
    "glm5_next": f"GLM-5 Next is not supported: {_INDEXED}",
    "idefics": f"IDEFICS is not supported: {_CROSS}",
    "inkling_mm_model": "Inkling is not supported: every layer mixes attention with a state, and what that reads is not tested",
    "instructblip": f"InstructBLIP is not supported: {_LEARNED}",
    "instructblipvideo": f"InstructBLIP for video is not supported: {_LEARNED}",
    "kosmos-2": f"Kosmos-2 is not supported: {_NO_OUTPUTS}",
    "kosmos-2.5": f"Kosmos-2.5 is not supported: {_NO_OUTPUTS}",
    "mistral4": "Mistral 4 is not supported: this type is the language model alone, without a vision encoder",
    "mistral_large4": f"Mistral Large 4 is not supported: {_INDEXED}",
    "mllama": f"Llama 3.2 Vision is not supported: {_CROSS}",
    "nemotron_h_omni": (
        "Nemotron-H Omni is not supported: its layers are states, experts and attention in turn, and what dropping means there "
        "is not tested"
    ),
    "perception_lm": f"PerceptionLM is not supported: {_TIMM}",
    "pi0": f"PI0 is not supported: it gives a robot's actions, and {_NO_OUTPUTS}",
    "pix2struct": f"Pix2Struct is not supported: {_DECODER}",
    "pp_formulanet": f"PP-FormulaNet is not supported: {_DECODER}",
    "qwen4_exp": f"Qwen4-Exp is not supported: {_INDEXED}",
    "t5gemma2": f"T5Gemma 2 is not supported: {_DECODER}",
    "udop": f"UDOP is not supported: {_DECODER}",
    "unlimited_ocr": (
        "Unlimited-OCR is not supported: its windows are counted from reference tokens, which dropping would move"
    ),
    "vision-encoder-decoder": f"vision encoder-decoders are not supported: {_DECODER}",
}

# Not in the table of tested families. The generic adapter tries them, and refuses where it is not exact.
TRIED: dict[str, str] = {
    "cohere2_vision": "Cohere 2 Vision",
    "cohere_compass": "Cohere Compass",
    "cosmos3_edge": "Cosmos 3 Edge",
    "cosmos3_omni": "Cosmos 3 Omni",
    "deepseek_vl_hybrid": "DeepSeek-VL hybrid",
    "exaone4_5": "EXAONE 4.5",
    "gemma4_unified": "Gemma 4 unified",
    "hyperclovax_vision_v2": "HyperCLOVA X Vision 2",
    "idefics2": "Idefics2",
    "minicpm_ocr": "MiniCPM-OCR",
    "minicpmv4_7": "MiniCPM-V 4.7",
    "minimax_m3_vl": "MiniMax M3 VL",
    "molmo2": "Molmo 2",
    "muse_glimmer": "Muse Glimmer",
    "muse_spark": "Muse Spark",
    "paligemma": "PaliGemma",
    "pp_chart2table": "PP-Chart2Table",
    "shieldgemma2": "ShieldGemma 2",
    "step3p7": "Step 3.7",
}
