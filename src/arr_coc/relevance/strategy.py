"""Strategy: when not to trust the scores, and what to do instead.

| case | detected by | what is done |
|---|---|---|
| void: a wall, a blank page, noise | hardly any edges, or the same everywhere, and no text | evenly spaced cells |
| whole: a question about all of the image | the universal layer says so | information, not coupling; round-robin over components |
| vague question | no word names a thing, and no layer was trained on it | information, not coupling; round-robin over components |
| nothing matches the question | the probe's attention has no peak | information and coupling; round-robin over components |
| camouflage: pale text next to bright colours | text lies where salience is low | salience does not count |

By information alone, one loud object takes the whole budget and a pale line of text next to it gets nothing. Round-robin
selection takes the best cell of every connected component, then the second best of every component, and so on.

The thresholds were set on drawn cases (`arr_coc.evaluation.robustness`) and on scanned pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.relevance.knowing import TEXT_THRESHOLD, CellScores, cached_scores, edge_energy
from arr_coc.selectors.base import SelectionInput

FAINT_EDGES = 0.02  # Sobel magnitude of the strongest cell below which an image is a void
EVEN_EDGES = 0.35  # coefficient of variation of the cells' edges below which they are the same everywhere
PALE = 0.8  # salience of text cells relative to the mean below which text is camouflaged
FOLLOW_QUESTION = ("relevance", "camouflage")  # rules that follow the question
SPREAD_OUT = ("void", "blind")  # rules that spread over the image
BACKGROUND_SHARE = 0.25  # at least this share of the cells is background
BACKGROUND = -1  # component number of background cells


@dataclass(frozen=True)
class Strategy:
    """What was decided, as a word and a sentence, and how far the scores count."""

    name: str = "relevance"
    why: str = "the most relevant cells"
    even: bool = False  # evenly spaced cells instead of the most relevant ones
    round_robin: bool = False  # every connected component gets its share
    coupling: float = 1.0  # trust in each score
    salience: float = 1.0


def decide(selection: SelectionInput, scores: CellScores, clear: bool = True, whole: bool = False) -> Strategy:
    """Check the statistics of the scores before they are used.

    `clear`: the question says what it is about. `whole`: it is about all of the image.
    """
    if selection.source is None:
        even = scores.coupling is None or scores.trust == 0
        return Strategy("blind", "no pixels, only the model's own attention", even=even)
    energy = cached_scores(selection, "edge energy", edge_energy)
    has_text = scores.text > TEXT_THRESHOLD
    strongest = float(energy.max()) if len(energy) else 0.0
    spread = float(energy.std() / energy.mean()) if len(energy) > 1 and float(energy.mean()) > 0 else 0.0
    if strongest < FAINT_EDGES or (spread < EVEN_EDGES and not bool(has_text.any())):
        return Strategy("void", "the image is even everywhere, so cells are evenly spaced", even=True)
    pale = bool(has_text.any()) and float(scores.salience[has_text].mean()) < PALE * float(scores.salience.mean())
    salience = 0.0 if pale else 1.0
    if scores.coupling is None:
        return Strategy("no question", "the question was not used: cells with the most information", salience=salience)
    if whole:
        why = "the question is about all of the image, so everything with information counts"
        return Strategy("whole", why, coupling=0.0, salience=salience, round_robin=True)
    if not clear or not bool(scores.coupling.max() > scores.coupling.min()):
        why = "the question names nothing, so everything with information counts"
        return Strategy("vague", why, coupling=0.0, salience=salience, round_robin=True)
    if scores.trust < 0.5:
        why = "nothing matches the question, so everything with information counts, too"
        return Strategy("unsure", why, coupling=scores.trust, salience=salience, round_robin=True)
    if pale:
        return Strategy("camouflage", "text lies where nothing stands out, so salience does not count", salience=0.0)
    return Strategy()


def components(selection: SelectionInput) -> torch.Tensor:
    """The connected component of each candidate, as numbers `[M]`; `BACKGROUND` for background."""
    energy = torch.zeros(selection.grid.n)
    energy[selection.candidates] = cached_scores(selection, "edge energy", edge_energy)
    found, start, first = [], 0, 0
    for view in selection.grid.views:
        for frame in energy[start : start + view.n].view(view.t, view.h, view.w):
            numbers = label_components(frame > 2 * frame.flatten().quantile(BACKGROUND_SHARE) + FAINT_EDGES)
            found.append(torch.where(numbers == BACKGROUND, BACKGROUND, numbers + first).flatten())
            first += view.h * view.w
        start += view.n
    return torch.cat(found)[selection.candidates]


def label_components(mask: torch.Tensor) -> torch.Tensor:
    """8-connected components of a mask `[h, w]`: one number each, `BACKGROUND` outside."""
    own = torch.arange(mask.numel(), dtype=torch.float64).view(mask.shape) + 1
    numbers = torch.where(mask, own, 0.0)
    while True:
        spread = torch.where(mask, F.max_pool2d(numbers[None, None], 3, 1, 1)[0, 0], 0.0)
        if torch.equal(spread, numbers):
            return numbers.long() - 1
        numbers = spread


def round_robin(relevance: torch.Tensor, count: int, components: torch.Tensor) -> torch.Tensor:
    """Indices `[count]`, sorted, taken from all components in turn, the most relevant first; background comes last.

    >>> round_robin(torch.tensor([0.9, 0.8, 0.7, 0.2, 0.1]), 3, torch.tensor([0, 0, 0, 1, -1])).tolist()
    [0, 1, 3]
    """
    order = relevance.argsort(descending=True, stable=True)
    grouped = order[components[order].argsort(stable=True)]  # by component, the most relevant first
    _, sizes = torch.unique_consecutive(components[grouped], return_counts=True)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    turn = torch.empty_like(grouped)
    turn[grouped] = torch.arange(len(grouped)) - starts
    turn[components == BACKGROUND] += len(components)
    return order[turn[order].argsort(stable=True)][:count].sort().values
