"""Keep the cells most similar to the question, by an image-text encoder."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.pixels import by_cell
from arr_coc.selectors.ranking import best_cells
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid


class Coupling(Selector):
    """The `k` cells most similar to the question in the image-text embedding space.

    Needs: pixels, the question, and `embeddings=` in `load` or `wrap`. It can glance: it does not use the model itself.
    """

    name = "coupling"
    asks_embeddings = True

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """The question's score inside each candidate: `[M]`."""
        return selection.embedding_scores

    def select(self, selection: SelectionInput) -> Choice:
        return best_cells(selection, self.relevance(selection), "the cells most similar to the question")

    before_encoding = select


class EmbeddingScorer:
    """Similarity of the question to each candidate, `[M]`. The image is encoded once for all questions."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings

    def __call__(self, selection: SelectionInput) -> torch.Tensor:
        with nullcontext() if selection.watch is None else selection.watch.stage("embed"):
            question = self.embeddings.query([selection.question.text])[0]  # [k]

            def score(texture: TextureArray, view: Grid) -> torch.Tensor:
                features = self.embeddings.field(texture).view(view)  # [k, h, w]
                return torch.tensordot(question.to(features.device), features, dims=1)

            return by_cell(selection, score)
