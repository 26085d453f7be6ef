"""Strategy: when not to trust the scores, and what to do instead.

| what is seen | how it is told | what is done |
|---|---|---|
| a void: a wall, a blank page, noise | hardly any edge, or the same amount everywhere, and no writing | evenly spaced cells |
| a vague question: it names nothing | no word in it names a thing, and no layer was taught it | information, not coupling; every thing gets its share |
| nothing answers to the question | the scout's attention has no peak | information beside coupling; every thing gets its share |
| camouflage: pale writing beside loud colours | writing lies where nothing stands out | salience does not count |

The thresholds were set on drawn cases (`arr_coc.evaluation.robustness`) and on scanned pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from arr_coc.relevance.knowing import WRITING, Known, kept, looked_at
from arr_coc.selectors.base import Sight
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

FAINT_EDGES = 0.02  # Sobel magnitude of the strongest cell
EVEN_EDGES = 0.35  # standard deviation of the cells' edges over their mean
FOLLOWS, SPREADS = ("relevance", "camouflage"), ("void", "blind")  # names: the question is followed; cells lie evenly
PALE = 0.8  # of what stands out on average: writing below this is camouflaged


@dataclass(frozen=True)
class Strategy:
    """What was decided, in a word and in a sentence; and which ways of knowing still count."""

    name: str = "relevance"
    why: str = "the most relevant cells"
    even: bool = False  # evenly spaced cells in place of the most relevant
    in_turn: bool = False  # every separate thing gets its share: see spreading.py
    coupling: float = 1.0  # how much each way of knowing is to be trusted
    salience: float = 1.0


def edge_energy(texture: TextureArray, view: Grid) -> torch.Tensor:
    """Mean edge strength inside each cell, as it is: `[h, w]`."""
    found = looked_at(texture, view)
    return found["edges"] + found["edges_inverted"]


def decide(sight: Sight, known: Known, clear: bool = True) -> Strategy:
    """Look at the scores' statistics before they are used; `clear`: the question says what it is about."""
    if sight.picture is None:
        even = known.coupling is None or known.trust == 0
        return Strategy("blind", "no pixels to look at, only what the model itself looks for", even=even)
    energy = kept(sight, "edge energy", edge_energy)
    written = known.text > WRITING
    strongest = float(energy.max()) if len(energy) else 0.0
    spread = float(energy.std() / energy.mean()) if len(energy) > 1 and float(energy.mean()) > 0 else 0.0
    if strongest < FAINT_EDGES or (spread < EVEN_EDGES and not bool(written.any())):
        return Strategy("void", "nothing to be seen anywhere, so cells are evenly spaced", even=True)
    pale = bool(written.any()) and float(known.salience[written].mean()) < PALE * float(known.salience.mean())
    trusted = 0.0 if pale else 1.0
    if known.coupling is None:
        return Strategy("no question", "the question was not used: cells with most information", salience=trusted)
    if not clear or not bool(known.coupling.max() > known.coupling.min()):
        return Strategy(
            "vague",
            "the question names nothing, so all that carries information counts",
            coupling=0.0,
            salience=trusted,
            in_turn=True,
        )
    if known.trust < 0.5:
        return Strategy(
            "unsure", "nothing answers to the question, so all that carries information counts, too",
            coupling=known.trust, salience=trusted, in_turn=True,
        )  # fmt: skip
    if pale:
        return Strategy("camouflage", "writing lies where nothing stands out, so salience does not count", salience=0.0)
    return Strategy()
