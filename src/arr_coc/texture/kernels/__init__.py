"""The GPU path: Triton kernels beside the torch code that they equal, and the one place that decides between the two."""

from arr_coc.texture.kernels.dispatch import reason, used, using

__all__ = ["reason", "used", "using"]
