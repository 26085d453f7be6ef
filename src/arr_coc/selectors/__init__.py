"""Ways of choosing cells. None of them depends on a model family."""

from arr_coc.selectors.base import (
    Choice,
    Downscale,
    FunctionSelector,
    ImageSource,
    LayerPrediction,
    LayerState,
    Question,
    SelectionInput,
    Selector,
)  # fmt: skip
from arr_coc.selectors.oracle import Oracle
from arr_coc.selectors.registry import SelectorLike, names, register, selector

Sight = SelectionInput  # the former name, for one release

__all__ = [
    "Choice", "Downscale", "FunctionSelector", "ImageSource", "LayerPrediction", "LayerState", "Oracle", "Question",
    "SelectionInput", "Selector", "SelectorLike", "Sight", "names", "register", "selector",
]  # fmt: skip
