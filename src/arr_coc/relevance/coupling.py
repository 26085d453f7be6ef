"""Coupling: what each cell has to do with the question, by whoever knows best.

| who | what it takes | good for |
|---|---|---|
| layer | what `arr-coc train` learned for the model | what it was trained with |
| scout | a short run of the language model over half of the cells | documents, whatever the model reads well |
| embeddings | an image-text encoder | things on photographs |
| tokens | the model's own tokens and word embeddings | models whose encoder was trained beside their words |

A scout reads the cells with most information. What it looks for before it says a word, in the middle of its layers, is where
the answer stands more often than not; one cell's glow is shared with its neighbours along the line, so that words stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError
from arr_coc.layer.inference import Judgement
from arr_coc.selectors.base import Sight
from arr_coc.selectors.similarity import to_question
from arr_coc.types.grid import Cells

SCOUTED, AT_LEAST = 0.5, 448  # of the candidates; of few, all
LOST, SURE = 0.03, 0.06  # the strongest attention of a scout that finds nothing, and of one that does
HESITANT = 2.0  # log-odds of the best cell about even ones, over which trust in a layer rises from 0 to 1
CONFIRMED_IN = 0.0625  # of the cells, a layer's best: what a scout looks at has to lie there
CONFIRMED = 0.45  # of the scout's attention (benchmarks/scout_agreement.py)
STRANGE = 3.3  # from here on a picture is of another kind than those that the layer was trained with
ENOUGH = 0.5  # trust from which a layer, or a scout that confirms one, is not doubted
DEPTHS = (0.5, 2 / 3)  # of the language model's layers
FAINT = 1e-3  # of the strongest attention: as good as none
ALONG = (0.1, 0.25, 0.5, 1.0, 0.5, 0.25, 0.1)  # how much of its glow a cell lends to its neighbours in the same row
ACROSS = 0.1  # and to those above and below


@dataclass(frozen=True, eq=False)
class Coupled:
    """Coupling `[M]` from 0 to 1, who it is from, and how far to be trusted, from 0 to 1."""

    values: torch.Tensor
    by: str
    trust: float = 1.0
    judgement: Judgement | None = None  # a layer's, with all of its scores

    @property
    def strange(self) -> bool:
        """Whether the picture is of another kind than those that the layer was trained with."""
        return self.judgement is not None and self.judgement.strangeness > STRANGE

    @property
    def new(self) -> bool:
        """Whether the question is put in other words than those that the layer was trained with."""
        return self.judgement is not None and (self.judgement.novelty or 0.0) > 1

    @property
    def familiar(self) -> bool:
        """Whether a layer judged that was asked the same in training, or nearly so: then it knows what is meant."""
        return self.judgement is not None and self.judgement.novelty is not None and self.judgement.novelty <= 1

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.values).all()):
            raise ArrCocError(f"expected finite scores of the question from the {self.by}, got NaN or infinity")


def by_layer(sight: Sight) -> Coupled:
    """What the layer that was trained for the model says; to be trusted as far as it is sure of its best cell.

    On a picture of another kind it is not trusted at all.
    """
    assert sight.learned is not None
    judgement = sight.learned(sight)
    trust = min(1.0, max(0.0, 0.5 + judgement.sureness / HESITANT))
    found = Coupled(judgement.scores["coupling"], "layer", trust, judgement)
    return replace(found, trust=0.0) if found.strange else found


def by_scout(sight: Sight, worth: torch.Tensor) -> Coupled:
    """What the language model looks for among the half of the candidates that is worth most, `worth` `[M]`."""
    return _of_scout(sight, scouted(sight, worth))


def by_both(sight: Sight, layer: Coupled, worth: torch.Tensor) -> Coupled:
    """A question that is new to the layer: the scout is asked as well, and believed where it looks elsewhere.

    Before the encoder there is no scout. The layer's coupling then counts beside information, and not its own relevance.
    """
    assert layer.judgement is not None
    if sight.send is None:
        return replace(layer, by="layer, in new words", judgement=None)
    seen = scouted(sight, worth)
    best = layer.judgement.relevance.argsort(descending=True, stable=True)[: round(CONFIRMED_IN * sight.grid.n)]
    scout = _of_scout(sight, seen)
    if scout.trust >= ENOUGH and bool(seen[sight.candidates[best]].sum() >= CONFIRMED * seen.sum()):
        return replace(layer, by="layer, confirmed by scout")
    return scout


def scouted(sight: Sight, worth: torch.Tensor) -> torch.Tensor:
    """A scout's attention to each cell `[N]`, 0 where it does not look."""
    known = len(worth) > 0 and bool(worth.max() > worth.min())  # else any half is as good as the other: all of them
    count = min(len(worth), max(AT_LEAST, round(SCOUTED * len(worth)))) if known else len(worth)
    some = worth.argsort(descending=True, stable=True)[:count].sort().values
    seen = torch.zeros(sight.grid.n)
    seen[sight.candidates[some]] = sight.scout(sight.candidates[some], DEPTHS)
    return seen


def _of_scout(sight: Sight, seen: torch.Tensor) -> Coupled:
    trust = min(1.0, max(0.0, (float(seen.max()) - LOST) / (SURE - LOST)))
    return Coupled(faded(beside(seen, sight.grid)[sight.candidates]), "scout", trust)


def by_embeddings(sight: Sight) -> Coupled:
    """What an image-text encoder finds in common, from the least to the most."""
    return Coupled(_stretched(sight.embedding_scores), "embeddings")


def by_tokens(sight: Sight) -> Coupled:
    """Cosines of the model's own tokens with the mean of the question's word embeddings."""
    return Coupled(_stretched(to_question(sight).cpu()), "tokens")


def faded(seen: torch.Tensor) -> torch.Tensor:
    """Attention `[M]` to [0, 1] by its order of magnitude: 1 at the strongest, 0 a thousand times below."""
    top = seen.max() if len(seen) else seen.new_zeros(())
    if bool(top <= 0):  # not a number passes, to be complained about
        return torch.zeros_like(seen)
    floor = torch.log(torch.tensor(FAINT))
    return 1 - (seen / top).clamp(min=FAINT).log() / floor


def beside(values: torch.Tensor, grid: Cells) -> torch.Tensor:
    """Each cell's value `[N]` with a part of its neighbours', most along the line: `[N]`."""
    kernel = values.new_zeros(3, len(ALONG))
    kernel[1] = values.new_tensor(ALONG)
    kernel[[0, 2], len(ALONG) // 2] = ACROSS
    parts, start = [], 0
    for view in grid.views:
        frames = values[start : start + view.n].view(view.t, 1, view.h, view.w)
        parts.append(F.conv2d(frames, kernel[None, None], padding="same").flatten())
        start += view.n
    return torch.cat(parts)


def _stretched(values: torch.Tensor) -> torch.Tensor:
    """Scores `[M]` from the lowest at 0 to the highest at 1; all 0 where they do not differ."""
    if len(values) == 0:
        return values
    low, high = torch.aminmax(values.float())
    return torch.zeros_like(values) if bool(high == low) else (values - low) / (high - low)  # not a number passes
