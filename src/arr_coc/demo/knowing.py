"""The tab Knowing: three ways of knowing and what they come to, with the weights and tensions in the visitor's hands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import arr_coc
from arr_coc.demo import drawing, snippets
from arr_coc.demo.visit import Visit
from arr_coc.relevance import explanation as why
from arr_coc.relevance.balancing import WAYS
from arr_coc.types.allocation import Allocation

Output = dict[str, Any]
WEIGHT = "weight of "
MEANINGS = {
    "trust": "how sure the coupling is",
    "particularize": "near 0: the question couples with nothing in particular; near 1: with few cells",
    "exploit": "near 0: explore what carries information; near 1: trust what the question couples with",
    "focus": "near 0: spread over the picture; near 1: stay with what is most relevant",
}


def know(visit: Visit) -> Iterator[Output]:
    """Outputs by name."""
    view, subject = visit.view, visit.subject
    options: dict[str, Any] = {} if view.learned else {"learned": False}
    found = arr_coc.realize(
        subject.texture(), visit.question, budget=view.budget, using=visit.vlm, look=subject.encoded(visit.vlm),
        exploit=view.exploit, weights=view.weighed(), **options,
    )  # fmt: skip
    weights = weights_of(found)
    tensions = {name: value for name, value in found.tensions.items() if not name.startswith(WEIGHT)}
    by_hand = view.exploit is not None or bool(view.weights)
    yield {
        "knowing_pictures": pictures(found, visit),
        "knowing_bars": (
            f"<h4>Weights{' (by hand)' if by_hand else ''}</h4>{drawing.bars(weights, why.MEANING)}"
            f"<h4>Tensions</h4>{drawing.bars(tensions, MEANINGS)}{drawing.sentences(why.said(found)[:1])}"
        ),
        "knowing_exploit": round(found.tensions.get("exploit", 0.0), 2),
        **{f"knowing_{way}": round(weights.get(way, 0.0), 2) for way in WAYS},
        "knowing_python": snippets.knowing(visit),
        "knowing_json": json.dumps(_found(visit, found), indent=1),
        "knowing_link": view.query(),
    }


def weights_of(found: Allocation) -> dict[str, float]:
    return {name.removeprefix(WEIGHT): value for name, value in found.tensions.items() if name.startswith(WEIGHT)}


def pictures(found: Allocation, visit: Visit) -> str:
    """Each way of knowing, the balance of them, and the kept cells, side by side."""
    image = visit.subject.image
    shown = []
    for name, values in found.scores.items():
        shown.append(
            drawing.figure(drawing.picture(drawing.lit(found, image, values), name), name, why.MEANING.get(name, ""))
        )
    if found.relevance is not None:
        lit = drawing.lit(found, image, found.relevance)
        shown.append(
            drawing.figure(drawing.picture(lit, "balanced relevance"), "balanced relevance", "all ways together")
        )
    kept = found.overlay(drawing.shrunk(image))
    shown.append(drawing.figure(drawing.picture(kept, "kept cells"), "kept cells", f"{found.k} of {found.n}"))
    return drawing.row(shown)


def _found(visit: Visit, found: Allocation) -> Output:
    told: Output = {"image": visit.subject.name, "question": visit.question, **found.to_dict()}
    maps = {**found.scores, **({} if found.relevance is None else {"relevance": found.relevance})}
    return told | {"scores": {name: [round(float(v), 4) for v in values] for name, values in maps.items()}}
