"""Modules whose doctests are not collected, because a package that they import is optional and not installed."""

from importlib.util import find_spec

_OPTIONAL = {
    "src/arr_coc/demo": "gradio",
    "src/arr_coc/engines/lmms.py": "lmms_eval",
    "src/arr_coc/engines/vllm.py": "vllm",
    "src/arr_coc/ray": "ray",
    "src/arr_coc/serve": "fastapi",
    "src/arr_coc/texture/kernels": "triton",
}
collect_ignore = [path for path, package in _OPTIONAL.items() if find_spec(package) is None]
