"""A vision-language model that reads only the visual tokens it needs."""

from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM

__all__ = ["VLM", "Look"]
