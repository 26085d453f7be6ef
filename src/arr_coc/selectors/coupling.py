"""Keep what the question is about, as an image-text encoder sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.grid import Grid
from arr_coc.selectors.base import Choice, Selector, Sight
from arr_coc.selectors.pixels import by_cell
from arr_coc.selectors.ranking import best_cells

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings
    from arr_coc.texture import TextureArray


class Coupling(Selector):
    """The `k` cells that have most in common with the question.

    Each cell's score is the estimated cosine between the question and the picture there, from embeddings in the texture.
    Needs: pixels, words, and `embeddings=` where the model was wrapped or loaded. It can glance: nothing of the
    vision-language model itself is asked.
    """

    name = "coupling"

    def relevance(self, sight: Sight) -> torch.Tensor:
        """The question's score inside each candidate: `[M]`."""
        return sight.embedding_scores

    def select(self, sight: Sight) -> Choice:
        return best_cells(sight, self.relevance(sight), "the cells nearest the question")

    before_encoding = select


def couple(embeddings: Embeddings, sight: Sight) -> torch.Tensor:
    """What the question has in common with each candidate of a sight: `[M]`; the picture is encoded once for all questions."""
    asked = embeddings.asked([sight.words.text])

    def score(texture: TextureArray, view: Grid) -> torch.Tensor:
        return asked.scores(embeddings.see(texture).view(view).flatten(1))[0].reshape(view.h, view.w)

    return by_cell(sight, score)
