"""Drawn documents: pictures with the place of every character, and questions with answers and evidence."""

from arr_coc.training.documents.drawing import KINDS, Drawing, DrawnQuestion, draw_any, enrich, mix
from arr_coc.training.documents.folder import draw_folder

__all__ = ["KINDS", "Drawing", "DrawnQuestion", "draw_any", "draw_folder", "enrich", "mix"]
