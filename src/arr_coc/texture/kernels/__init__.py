"""The GPU path: Triton kernels, the torch code they must equal, and the dispatch between the two."""

from arr_coc.texture.kernels.dispatch import reason, used, using

__all__ = ["reason", "used", "using"]
