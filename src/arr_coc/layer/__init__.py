"""What ARR-COC learns for one model: which cells of a picture a question needs."""

from arr_coc.layer.model import ArrCocLayer, Judged

__all__ = ["ArrCocLayer", "Judged"]
