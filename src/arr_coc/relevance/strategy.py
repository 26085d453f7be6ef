"""Strategy: when not to trust the scores, and what to do instead.

| case | detected by | what is done |
|---|---|---|
| void: a wall, noise, marble, grass, sky, splatter | the statistics of the texture's channels (`void`) | evenly spaced cells |
| vague question | no word names a thing, and no layer was trained on it | information, not coupling; round-robin over components |
| nothing matches the question | the probe's attention has no peak | information and coupling; round-robin over components |
| a question that describes | its kind (`types/question.py`), or the universal layer says so | information, not coupling; round-robin over components |
| a question for what is odd | its kind | salience and information, not coupling; round-robin over components |
| a question that counts or compares | its kind | round-robin over the components that match; duplicates count |
| camouflage: pale text next to bright colours | text lies where salience is low | salience does not count |

A void has no place that differs from the rest. It is flat; or soft, like a sky; or even, like noise of any strength; or its
parts are alike, like those of a paint splatter, although its cells are not. A page has quiet cells between its lines, an
object on grass is an outlier of colour or detail, and the parts of a photograph differ.

By information alone, one loud object takes the whole budget and a pale line of text next to it gets nothing. Round-robin
selection takes the best cell of every connected component, then the second best of every component, and so on.

The thresholds were set on drawn cases (`arr_coc.evaluation.robustness`), on generated textures (`arr_coc.draw.textures`), and on
scanned and drawn pages; `benchmarks/void.py` measures them on others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F

from arr_coc.devices import fetch
from arr_coc.relevance.knowing import TEXT_THRESHOLD, CellScores
from arr_coc.selectors.base import SelectionInput
from arr_coc.texture import TextureArray, filters

FAINT_EDGES = 0.02  # Sobel magnitude of the strongest cell below which an image is a void
EVEN_EDGES = 0.35  # coefficient of variation of the cells' edges below which they are the same everywhere
VOID_CELL, VOID_CELLS = 28, (6, 48)  # px of a cell for the statistics of a void; fewest and most cells along a side
SOFT_EDGES, SOFT_TEXT = 0.035, 0.05  # strongest mean edges and text likelihood of a cell in a soft void
VOID_PARTS = 4  # along each side: parts whose cells are compared
PALE = 0.8  # salience of text cells relative to the mean below which text is camouflaged
ODD_SALIENCE = 10.0  # how much salience counts where the question is what is odd
INSTANCE_KINDS = ("count", "compare")
INSTANCE = 0.06  # relevance of a component's best cell, relative to the best of all, from which it is an instance
FOLLOW_QUESTION = ("relevance", "camouflage")  # rules that follow the question
SPREAD_OUT = ("void", "blind")  # rules that spread over the image
# Confidence in a choice: logistic weights by source, of `choice_features`, and the constant (`benchmarks/doubt.py fit`).
CHOICE_WEIGHTS: dict[str, tuple[tuple[float, float], float]] = {
    "layer": ((2.6, 4.0), 0.14),
    "probe": ((1.35, 0.0), -0.9),
    "universal layer": ((0.33, 4.94), -3.2),  # on the validation pages of recipes/universal
}
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
    instances: bool = False  # every component that matches gets its share, and near-duplicates are kept


def decide(selection: SelectionInput, scores: CellScores, clear: bool = True, kind: str = "read") -> Strategy:
    """Check the statistics of the scores before they are used.

    `clear`: the question says what it is about. `kind`: one of `arr_coc.types.question.KINDS`, or "read" where a layer was trained on
    the question and does better than a rule.
    """
    if selection.source is None:
        even = scores.coupling is None or scores.trust == 0
        return Strategy("blind", "no pixels, only the model's own attention", even=even)
    energy = scores.energy
    assert energy is not None
    has_text = scores.text > TEXT_THRESHOLD
    strongest = float(energy.max()) if len(energy) else 0.0
    spread = float(energy.std() / energy.mean()) if len(energy) > 1 and float(energy.mean()) > 0 else 0.0
    if strongest < FAINT_EDGES or (spread < EVEN_EDGES and not bool(has_text.any())):
        return Strategy("void", "the image is even everywhere, so cells are evenly spaced", even=True)
    textures = {one.once("void", partial(void, one)) for one in selection.textures}
    # An encoder of photographs tells a plate on a patterned cloth from the cloth, which statistics cannot.
    if "" not in textures and not (scores.coupled_by == "embeddings" and "alike" in textures):
        return Strategy("void", f"{VOIDS[min(textures)]}, so cells are evenly spaced", even=True)
    pale = bool(has_text.any()) and float(scores.salience[has_text].mean()) < PALE * float(scores.salience.mean())
    salience = 0.0 if pale else 1.0
    if scores.coupling is None:
        return Strategy("no question", "the question was not used: cells with the most information", salience=salience)
    if not clear or not bool(scores.coupling.max() > scores.coupling.min()):
        why = "the question names nothing, so everything with information counts"
        return Strategy("vague", why, coupling=0.0, salience=salience, round_robin=True)
    if kind in WHOLE_KINDS:
        return replace(WHOLE_KINDS[kind], salience=WHOLE_KINDS[kind].salience * salience)
    if scores.trust < 0.5:
        why = "nothing matches the question, so everything with information counts, too"
        return Strategy("unsure", why, coupling=scores.trust, salience=salience, round_robin=True)
    if pale:
        return Strategy("camouflage", "text lies where nothing stands out, so salience does not count", salience=0.0)
    if kind in INSTANCE_KINDS:
        return Strategy(why=f"every place that matches, because the question is to {kind}", instances=True)
    return Strategy()


WHOLE_KINDS = {
    "describe": Strategy(
        "describe", "a description needs all of it, so everything with information counts", False, True, 0.0
    ),
    "odd": Strategy(
        "odd", "what is odd stands out, so salience counts and not the question", False, True, 0.0, ODD_SALIENCE
    ),
}
VOIDS = {
    "alike": "a texture whose parts are all alike, without content",
    "even": "a texture without content, in which nothing stands out",
    "flat": "the image is even everywhere",
    "soft": "soft tones without an edge or text",
}


def void(texture: TextureArray) -> str:
    """Which of `VOIDS` an image is, by the statistics of its channels; empty if it shows something."""
    return void_by(fetch(void_statistics(texture)))


def void_statistics(texture: TextureArray) -> list[torch.Tensor]:
    """What `void` is decided by, on the texture's device; nothing for an image with too few cells for statistics."""
    height, width = texture.size
    rows, columns = (min(VOID_CELLS[1], round(side / VOID_CELL)) for side in (height, width))
    if min(rows, columns) < VOID_CELLS[0]:
        return []
    detail = texture["edges"].float() + texture["edges_inverted"].float()
    edges = filters.pool(detail, (rows, columns), "mean")
    # On a CPU, what only other pictures need is not computed for a document. On a GPU, looking would wait for the device.
    if not edges.is_cuda and _by_edges(edges.double()) is not None:
        return [edges]
    colours = [texture[name].float() for name in ("red", "green", "blue")]
    luma = filters.luma(colours)
    means = filters.pool_means((*colours, luma * luma), (rows, columns))
    return [edges, *means, *texture.grid(rows, columns, ["saliency", "text"])]


def _by_edges(edges: torch.Tensor) -> str | None:
    """`void` where the edges of the cells `[h, w]` settle it, as they do for most documents; else None."""
    if float(edges.max()) < FAINT_EDGES / 2:
        return "flat"
    return "" if _quiet(edges) < 0.1 else None  # paper between lines


def _quiet(edges: torch.Tensor) -> float:
    return float(edges.quantile(0.1)) / (float(edges.median()) + 0.02)


def void_by(statistics: Sequence[torch.Tensor]) -> str:
    """`void` by `void_statistics` on the CPU."""
    if not statistics:
        return ""
    edges, *others = (plane.double() for plane in statistics)
    known = _by_edges(edges)
    if known is not None:
        return known
    *means, square, saliency, text = others
    peaks, quiet = _kurtosis(saliency), _quiet(edges)
    if float(edges.max()) < SOFT_EDGES and float(text.max()) < SOFT_TEXT and peaks < 16:
        return "soft"
    if peaks > 9:  # something stands out
        return ""
    mean, chroma = filters.luma(means), (means[0] - means[2], means[0] - means[1])
    contrast = (square - mean * mean).clamp(min=0).sqrt()
    sharpest, roughest = _outlier(edges, 0.03), _outlier(contrast, 0.01)
    if roughest > 4:
        return ""
    spread = float(edges.std() / (edges.mean() + 0.02))
    odd_colour = max(_outlier(sign * plane, 0.02) for plane in chroma for sign in (1, -1))
    if quiet > 0.35 and spread < 0.3 and sharpest < 2 and odd_colour < 4:
        return "even"
    # Gray pages whose lines fill the picture would pass, so only colours count here.
    coloured = max(float(plane.std()) for plane in chroma) > 0.05
    alike = _between_parts((edges + 0.02).log()) < 4.5 and _between_parts(mean) < 10
    return "alike" if coloured and alike and spread < 0.6 and sharpest < 2.6 else ""


def _outlier(values: torch.Tensor, least: float) -> float:
    """How far the largest of values `[h, w]` is from their median, in robust standard deviations plus `least`."""
    median = values.median()
    return float((values.max() - median) / (1.48 * (values - median).abs().median() + least))


def _kurtosis(values: torch.Tensor) -> float:
    centred = values - values.mean()
    return float(centred.pow(4).mean() / (centred.square().mean().square() + 1e-9))


def _between_parts(values: torch.Tensor) -> float:
    """The F ratio of an analysis of variance: how far the parts of a map `[h, w]` differ, relative to the cells of a part."""
    rows, columns = (torch.arange(side) * VOID_PARTS // side for side in values.shape)
    part, flat = (rows[:, None] * VOID_PARTS + columns).flatten(), values.flatten()
    count = torch.bincount(part, minlength=VOID_PARTS**2).double()
    mean = torch.bincount(part, flat, VOID_PARTS**2) / count
    within = (flat - mean[part]).square().sum() / (len(flat) - VOID_PARTS**2)
    between = (count * (mean - flat.mean()).square()).sum() / (VOID_PARTS**2 - 1)
    return float(between / (within + 1e-6))


def choice_features(held: float, trust: float) -> tuple[float, float]:
    """Features of a choice: the log-odds of the share `held` of the source's mass, and the trust in the source."""
    held = min(0.999, max(0.001, held))
    return math.log(held / (1 - held)), trust


def confidence(plan: Strategy, source: str, held: float | None, trust: float, share: float) -> float | None:
    """The probability that the kept cells show what was asked for; None where the source of the coupling cannot say.

    `held`: the share of the source's own mass (the layer's probabilities, the probe's attention) on the kept cells. `share`:
    the share of all cells that is kept, which is the probability where the question did not choose.
    """
    if plan.name not in (*FOLLOW_QUESTION, "unsure"):
        return share
    source = source.split(",")[0]  # "layer, confirmed by probe"
    if held is None or source not in CHOICE_WEIGHTS:
        return None
    weights, bias = CHOICE_WEIGHTS[source]
    logit = bias + sum(w * value for w, value in zip(weights, choice_features(held, trust), strict=True))
    return 1 / (1 + math.exp(-logit))


def components(selection: SelectionInput, scores: CellScores) -> torch.Tensor:
    """The connected component of each candidate, as numbers `[M]`; `BACKGROUND` for background."""
    assert scores.energy is not None
    energy = scores.energy.new_zeros(selection.grid.n)
    energy[selection.candidates] = scores.energy
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


def instances(relevance: torch.Tensor, count: int, components: torch.Tensor) -> torch.Tensor:
    """Indices `[count]`, sorted: all components whose best cell is about as relevant as the best of all, in turn; then the rest.

    >>> instances(torch.tensor([0.9, 0.8, 0.7, 0.6, 0.01]), 2, torch.tensor([0, 0, 0, 1, 2])).tolist()
    [0, 3]
    """
    best = relevance.new_zeros(int(components.max()) + 2 if len(components) else 1)
    best = best.scatter_reduce(0, components + 1, relevance, "amax")
    matching = (best[components + 1] >= INSTANCE * best.max()) & (components != BACKGROUND)
    return round_robin(relevance, count, torch.where(matching, components, BACKGROUND))
