"""The trained layers: which cells of an image a question needs, learned for one model or for any."""

from arr_coc.layer.model import ArrCocLayer, LayerOutput

__all__ = ["ArrCocLayer", "LayerOutput"]
