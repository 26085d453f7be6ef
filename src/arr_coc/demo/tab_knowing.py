"""The tab Knowing: the three scores and the relevance computed from them; users can set the weights."""

from __future__ import annotations

import json
from collections.abc import Iterator

import arr_coc
from arr_coc.demo import cells, markup, snippets
from arr_coc.demo.app import Output, PageRequest
from arr_coc.demo.markup import macros
from arr_coc.relevance import explanation as why
from arr_coc.relevance.realizing import SCORES
from arr_coc.types.allocation import Allocation

WEIGHT = "weight of "


def run(request: PageRequest) -> Iterator[Output]:
    state, image, vlm = request.state, request.image, request.vlm
    allocation = arr_coc.realize(
        image.texture(),
        request.question,
        budget=state.budget,
        using=vlm,
        look=image.encode(vlm),
        learned=state.learned,
        exploit=state.exploit,
        weights=state.parse_weights(),
    )
    tensions = {name: value for name, value in allocation.tensions.items() if not name.startswith(WEIGHT)}
    weights = {
        name.removeprefix(WEIGHT): value for name, value in allocation.tensions.items() if name.startswith(WEIGHT)
    }
    by_hand = " (by hand)" if state.exploit is not None or state.weights else ""
    yield {
        "knowing_pictures": _pictures(allocation, request),
        "knowing_bars": (
            macros.bars(f"Weights{by_hand}", weights)
            + macros.bars("Tensions", tensions)
            + macros.bullets(why.describe(allocation)[:1])
        ),
        "knowing_exploit": round(allocation.tensions.get("exploit", 0.0), 2),
        **{f"knowing_{way}": round(weights.get(way, 0.0), 2) for way in SCORES},
        "knowing_python": snippets.knowing(request),
        "knowing_json": json.dumps(_to_dict(request, allocation), indent=1),
        "knowing_link": state.to_query(),
    }


def _pictures(allocation: Allocation, request: PageRequest) -> str:
    """Each score, the relevance, and the kept cells, in a row."""
    panels = [(name, name, why.MEANING.get(name, "")) for name in allocation.scores]
    if allocation.relevance is not None:
        panels.append(("relevance", "balanced relevance", "the weighted sum of all scores"))
    panels.append(("kept", "kept cells", f"{allocation.k} of {allocation.n}"))
    return markup.viewer(request.image.image, cells.viewer_data(request, allocation), panels)


def _to_dict(request: PageRequest, allocation: Allocation) -> Output:
    maps = {**allocation.scores, **({} if allocation.relevance is None else {"relevance": allocation.relevance})}
    return {
        "image": request.image.name,
        "question": request.question,
        **allocation.to_dict(),
        "scores": {name: [round(float(value), 4) for value in values] for name, values in maps.items()},
    }
