"""Keep what the question is about, as an image-text encoder sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from arr_coc.selectors.base import Choice, Selector, Sight
from arr_coc.selectors.pixels import by_cell
from arr_coc.selectors.ranking import best_cells
from arr_coc.types.grid import Grid

if TYPE_CHECKING:
    from arr_coc.embedding.embeddings import Embeddings
    from arr_coc.texture import TextureArray


class Coupling(Selector):
    """The `k` cells that have most in common with the question.

    Each cell's score is how much of what is particular to the question the picture has there, from embeddings in the texture.
    Needs: pixels, words, and `embeddings=` where the model was wrapped or loaded. It can glance: nothing of the
    vision-language model itself is asked.
    """

    name = "coupling"
    asks_embeddings = True

    def relevance(self, sight: Sight) -> torch.Tensor:
        """The question's score inside each candidate: `[M]`."""
        return sight.embedding_scores

    def select(self, sight: Sight) -> Choice:
        return best_cells(sight, self.relevance(sight), "the cells nearest the question")

    before_encoding = select


def couple(embeddings: Embeddings, sight: Sight) -> torch.Tensor:
    """What the question has in common with each candidate of a sight: `[M]`; the picture is encoded once for all questions."""
    question = embeddings.query([sight.words.text])[0]  # [k]

    def score(texture: TextureArray, view: Grid) -> torch.Tensor:
        features = embeddings.field(texture).view(view)  # [k, h, w]
        return torch.tensordot(question.to(features.device), features, dims=1)

    return by_cell(sight, score)
