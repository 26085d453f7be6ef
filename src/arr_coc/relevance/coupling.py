"""Coupling: how much each cell has to do with the question. The best available source is used.

| source | needs | good for |
|---|---|---|
| layer | a layer trained for the model (`arr-coc train`) | what it was trained on |
| universal | nothing: this layer ships and depends on no model | documents, screens and charts, before anything is encoded |
| probe | a short run of the language model over half of the cells | documents, anything the model reads well |
| embeddings | an image-text encoder | objects in photographs |
| tokens | the model's own tokens and word embeddings | models whose tokens are aligned with their word embeddings |

The probe reads the cells with the most information. Before the first answer token, the attention of the middle layers
usually peaks at the answer. It is blurred along rows, so that words stay whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError, SelectorError
from arr_coc.layer.universal import knows_script
from arr_coc.relevance.knowing import CellScores
from arr_coc.selectors.base import LayerPrediction, SelectionInput
from arr_coc.selectors.scoring import question_similarity
from arr_coc.types.grid import Cells

UNIVERSAL = "universal layer"
PROBED_SHARE, PROBED_MIN = 0.5, 448  # candidates that the probe reads: this share, but not fewer than this
PROBE_NO_PEAK, PROBE_PEAK = 0.41, 0.55  # peak at which trust in a probe is 0, and 1 (benchmarks/probe_peak.py)
LAYER_LOGIT_RANGE = 2.0  # logit range of the best cell, centred on 0, over which trust in a layer rises from 0 to 1
CONFIRMED_CELLS = 0.0625  # share of the cells, the layer's best: a probe confirms the layer if its attention lies there
CONFIRMED_ATTENTION = 0.45  # share of the probe's attention that must lie there (benchmarks/probe_agreement.py)
IMAGE_UNFAMILIAR = 3.3  # image novelty from which the layer was not trained on this kind of image
TRUSTED = 0.5  # trust from which a layer or a probe is followed
PROBE_DEPTHS = (0.5, 2 / 3)  # of the language model's layers
ATTENTION_FLOOR = 1e-3  # relative to the largest attention: 0 on the log scale
ROW_BLUR = (0.1, 0.25, 0.5, 1.0, 0.5, 0.25, 0.1)  # blur kernel along a row
COLUMN_BLUR = 0.1  # weight of the cells above and below


@dataclass(frozen=True, eq=False)
class Coupled:
    """Coupling `[M]` in [0, 1], its source, and how far to trust it, in [0, 1]."""

    values: torch.Tensor
    by: str
    trust: float = 1.0
    prediction: LayerPrediction | None = None  # the layer's, with all of its scores
    chances: torch.Tensor | None = None  # [M] where the answer is, by this source, up to a factor; None: it cannot say

    @property
    def image_unfamiliar(self) -> bool:
        """Whether the layer was not trained on this kind of image."""
        return self.prediction is not None and self.prediction.image_novelty > IMAGE_UNFAMILIAR

    @property
    def question_unfamiliar(self) -> bool:
        """Whether the question is worded unlike the layer's training questions."""
        return self.prediction is not None and (self.prediction.question_novelty or 0.0) > 1

    @property
    def about_whole_image(self) -> bool:
        """Whether the layer takes the question for one about all of the image."""
        return self.prediction is not None and self.prediction.whole > 0.5

    @property
    def question_familiar(self) -> bool:
        """Whether the layer was trained on this question, or nearly so."""
        found = self.prediction
        return found is not None and found.question_novelty is not None and found.question_novelty <= 1

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.values).all()):
            raise ArrCocError(f"expected finite coupling from the {self.by}, got NaN or infinity")


def couple(selection: SelectionInput, scores: CellScores, how: str, probe: bool = True) -> Coupled | None:
    """Coupling with the question from the best source available; None if there is none. `probe`: "auto" may use one."""
    if not selection.question.text.strip() or how == "none":
        return None
    unfamiliar = False  # the image is unlike the layer's training images
    if how in ("auto", "layer") and selection.layer is not None:
        layer = by_layer(selection)
        if how == "layer" or (layer.trust >= TRUSTED and not layer.question_unfamiliar):
            return layer
        if layer.trust >= TRUSTED:
            return by_both(
                selection if probe else replace(selection, probe=None), layer, scores.information + scores.text
            )
        unfamiliar = layer.image_unfamiliar
    elif how == "layer":
        raise SelectorError("coupling='layer' needs a trained layer, and this model has none: run arr-coc train")
    # On a photograph a probe or an encoder finds more than the universal layer, which was trained on documents.
    documents = how == "universal" or scores.has_page or (selection.scorer is None and selection.probe is None)
    if how in ("auto", "universal") and selection.universal is not None and selection.source is not None and documents:
        universal = by_universal(selection)
        if how == "universal" or universal.trust >= TRUSTED:
            return universal
        unfamiliar = unfamiliar or universal.image_unfamiliar
    elif how == "universal":
        raise SelectorError(
            "coupling='universal' needs the image itself, and a model that was not wrapped with layer=None"
        )
    if how == "auto":
        page = scores.is_page and not unfamiliar
        how = "probe" if selection.probe is not None and (page or selection.scorer is None) else "embeddings"
        if (how == "probe" and not probe) or (how == "embeddings" and selection.scorer is None):
            return None
    if how == "probe":
        return by_probe(selection, scores.information + scores.text)
    return by_embeddings(selection) if how == "embeddings" else by_tokens(selection)


def by_layer(selection: SelectionInput) -> Coupled:
    """Coupling from the trained layer. Trust follows the logit of its best cell; it is 0 on an unfamiliar kind of image."""
    assert selection.layer is not None
    prediction = selection.layer(selection)
    trust = min(1.0, max(0.0, 0.5 + prediction.confidence / LAYER_LOGIT_RANGE))
    found = Coupled(prediction.scores["coupling"], "layer", trust, prediction, prediction.relevance)
    return replace(found, trust=0.0) if found.image_unfamiliar else found


def by_universal(selection: SelectionInput) -> Coupled:
    """Coupling from the universal layer. Trust is its own probability that the evidence exists and is among its best cells.

    It is the one before recalibration, on which the thresholds and the confidence were set. A question about all of the image
    has no such cells; then trust is the probability of that. Trust is 0 on an unfamiliar
    kind of image, and for a question in a script that the layer never saw.
    """
    assert selection.universal is not None
    prediction = selection.universal(selection)
    stated = max((prediction.found or 0.0) * (1 - prediction.absent), prediction.whole)
    trust = stated if prediction.trust is None else prediction.trust
    found = Coupled(prediction.scores["coupling"], UNIVERSAL, trust, prediction, prediction.relevance)
    known = knows_script(selection.question.text) and not found.image_unfamiliar
    return found if known else replace(found, trust=0.0)


def by_probe(selection: SelectionInput, priority: torch.Tensor) -> Coupled:
    """Coupling from the language model's attention to the half of the candidates with the highest `priority` `[M]`."""
    return _from_attention(selection, probe_attention(selection, priority))


def by_both(selection: SelectionInput, layer: Coupled, priority: torch.Tensor) -> Coupled:
    """For a question that is unfamiliar to the layer: run the probe as well, and follow it where the two disagree.

    Before encoding there is no probe. Then the layer's coupling is one term of the sum; its own relevance is not used.
    """
    assert layer.prediction is not None
    if selection.probe is None:
        return replace(layer, by="layer, unfamiliar question", prediction=None)
    attention = probe_attention(selection, priority)
    best = layer.prediction.relevance.argsort(descending=True, stable=True)
    best = best[: round(CONFIRMED_CELLS * selection.grid.n)]
    probe = _from_attention(selection, attention)
    confirmed = attention[selection.candidates[best]].sum() >= CONFIRMED_ATTENTION * attention.sum()
    if probe.trust >= TRUSTED and bool(confirmed):
        return replace(layer, by="layer, confirmed by probe")
    return probe


def probe_attention(selection: SelectionInput, priority: torch.Tensor) -> torch.Tensor:
    """The probe's attention to each cell `[N]`; 0 for cells that it does not read."""
    ranked = len(priority) > 0 and bool(priority.max() > priority.min())  # a flat map ranks nothing: read all cells
    count = min(len(priority), max(PROBED_MIN, round(PROBED_SHARE * len(priority)))) if ranked else len(priority)
    some = priority.argsort(descending=True, stable=True)[:count].sort().values
    attention = torch.zeros(selection.grid.n)
    attention[selection.candidates[some]] = selection.probe_attention(selection.candidates[some], PROBE_DEPTHS)
    return attention


def _from_attention(selection: SelectionInput, attention: torch.Tensor) -> Coupled:
    blurred = blur_along_rows(attention, selection.grid)
    peak = peak_over_chance(blurred[attention != 0])  # NaN passes: `Coupled` reports it
    trust = min(1.0, max(0.0, (peak - PROBE_NO_PEAK) / (PROBE_PEAK - PROBE_NO_PEAK)))
    values = log_scaled(blurred[selection.candidates])
    return Coupled(values, "probe", trust, chances=attention[selection.candidates])


def peak_over_chance(attention: torch.Tensor) -> float:
    """How far the largest attention stands out among the cells that were read `[R]`: 0 if all get the same, 1 if one gets all.

    The largest value is divided by what chance would give it, the mean, and put on a log scale that ends at R. So neither
    the share of attention that a model spends on images nor the number of cells matters: the same attention times 0.1 has
    the same peak. Blurred attention stays below 1, because a cell's neighbours share its attention.

    >>> round(peak_over_chance(torch.tensor([0.01, 0.01, 0.01, 0.97])), 3)
    0.978
    """
    if len(attention) < 2 or not bool(attention.max() > 0):
        return 0.0
    return math.log(float(attention.max()) / float(attention.mean())) / math.log(len(attention))


def by_embeddings(selection: SelectionInput) -> Coupled:
    """Min-max normalised similarity from an image-text encoder."""
    return Coupled(_min_max(selection.embedding_scores), "embeddings")


def by_tokens(selection: SelectionInput) -> Coupled:
    """Cosines of the model's own tokens with the mean of the question's word embeddings."""
    return Coupled(_min_max(question_similarity(selection).cpu()), "tokens")


def log_scaled(attention: torch.Tensor) -> torch.Tensor:
    """Attention `[M]` on a log scale: 1 at the largest value, 0 at a thousandth of it and below."""
    top = attention.max() if len(attention) else attention.new_zeros(())
    if bool(top <= 0):  # NaN passes: `Coupled` reports it
        return torch.zeros_like(attention)
    floor = torch.log(torch.tensor(ATTENTION_FLOOR))
    return 1 - (attention / top).clamp(min=ATTENTION_FLOOR).log() / floor


def blur_along_rows(values: torch.Tensor, grid: Cells) -> torch.Tensor:
    """Cell values `[N]` blurred with their neighbours, mostly along the row: `[N]`."""
    kernel = values.new_zeros(3, len(ROW_BLUR))
    kernel[1] = values.new_tensor(ROW_BLUR)
    kernel[[0, 2], len(ROW_BLUR) // 2] = COLUMN_BLUR
    parts, start = [], 0
    for view in grid.views:
        frames = values[start : start + view.n].view(view.t, 1, view.h, view.w)
        parts.append(F.conv2d(frames, kernel[None, None], padding="same").flatten())
        start += view.n
    return torch.cat(parts)


def _min_max(values: torch.Tensor) -> torch.Tensor:
    """Scores `[M]` scaled to [0, 1]; all 0 where they are equal."""
    if len(values) == 0:
        return values
    low, high = torch.aminmax(values.float())
    return torch.zeros_like(values) if bool(high == low) else (values - low) / (high - low)  # NaN passes
