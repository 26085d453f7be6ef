"""Single cues: the cells with the highest saliency, contrast, or similarity to the question."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from arr_coc.embedding.embeddings import Embeddings
from arr_coc.selectors.base import Choice, SelectionInput, Selector
from arr_coc.selectors.scoring import area_mean, choose_top_k, score_cells
from arr_coc.texture import TextureArray
from arr_coc.texture.channels.edges import luma
from arr_coc.types.grid import Grid


class Saliency(Selector):
    """The `k` cells with the highest mean saliency.

    Centre-surround contrast over several scales, after Itti, Koch and Niebur, "A model of saliency-based visual attention
    for rapid scene analysis" (1998), from the texture's channel of that name. Needs: pixels.
    """

    name = "saliency"
    sets_budget = False

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Mean saliency of each candidate: `[M]`."""
        return score_cells(selection, lambda texture, view: area_mean(texture["saliency"], view))

    def select(self, selection: SelectionInput) -> Choice:
        return choose_top_k(selection, self.relevance(selection), "the cells that stand out most")

    before_encoding = select


class Ink(Selector):
    """The `k` cells with the highest contrast: the standard deviation of luma inside the cell.

    RMS contrast, after Peli, "Contrast in complex images" (1990). Needs: pixels.
    """

    name = "ink"
    sets_budget = False

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """Contrast of each candidate, 0 to 0.5: `[M]`."""
        return score_cells(selection, contrast)

    def select(self, selection: SelectionInput) -> Choice:
        return choose_top_k(selection, self.relevance(selection), "the cells with most contrast inside")

    before_encoding = select


class Coupling(Selector):
    """The `k` cells most similar to the question in the image-text embedding space.

    Needs: pixels, the question, and `embeddings=` in `load` or `wrap`. It can glance: it does not use the model itself.
    """

    name = "coupling"
    sets_budget = False
    asks_embeddings = True

    def relevance(self, selection: SelectionInput) -> torch.Tensor:
        """The question's score of each candidate: `[M]`."""
        return selection.embedding_scores

    def select(self, selection: SelectionInput) -> Choice:
        return choose_top_k(selection, self.relevance(selection), "the cells most similar to the question")

    before_encoding = select


class EmbeddingScorer:
    """What each candidate has to do with the question, `[M]`. The image is encoded once for all questions."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings

    def __call__(self, selection: SelectionInput) -> torch.Tensor:
        with nullcontext() if selection.watch is None else selection.watch.stage("embed"):
            text = selection.question.text
            question = None  # [k], encoded if a cosine is needed

            def score(texture: TextureArray, view: Grid) -> torch.Tensor:
                nonlocal question
                related = self.embeddings.relation(texture, text)
                if related is not None:
                    return related.view(view)[0]
                question = self.embeddings.query([text])[0] if question is None else question
                features = self.embeddings.field(texture).view(view)  # [k, h, w]
                return torch.tensordot(question.to(features.device), features, dims=1)

            return score_cells(selection, score)


def contrast(texture: TextureArray, view: Grid) -> torch.Tensor:
    """Standard deviation of luma over each cell of one frame of `view`: `[h, w]`."""
    light = luma(texture).double()
    variance = area_mean(light.square(), view) - area_mean(light, view).square()
    # Below 1e-10 is rounding: all even cells must tie.
    return torch.where(variance > 1e-10, variance, 0.0).sqrt()
