"""How much of the evidence a layer keeps, on pictures that it does not learn from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import torch

from arr_coc.evaluation.metrics import recall
from arr_coc.layer.model import ArrCocLayer
from arr_coc.training.examples import Lesson
from arr_coc.training.steps import collate

GAZES = (0.25, 0.125, 0.0625)  # shares kept of what is encoded
GLANCES = (0.5, 0.25)  # shares encoded


@torch.inference_mode()
def measured(layer: ArrCocLayer, lessons: Sequence[Lesson], device: torch.device) -> dict[str, float]:
    """Mean evidence recall over all questions: `gaze 12.5%` with all tokens, `glance 50%` with none."""
    found: dict[str, list[float]] = defaultdict(list)
    for lesson in lessons:
        asked = [(0, one) for one in lesson.asked if one.groups]
        if not asked:
            continue
        for told, shares in (("gaze", GAZES), ("glance", GLANCES)):
            views = [view.to(device) for view in lesson.views]
            views = views if told == "gaze" else [replace(view, tokens=None) for view in views]
            judged = collate([views], [lesson], asked, device).judged(layer).relevance.cpu()
            for logits, (_, one) in zip(judged, asked, strict=True):
                order = logits.argsort(descending=True, stable=True)
                for share in shares:
                    kept = order[: math.ceil(share * len(order) - 1e-9)]
                    found[f"{told} {100 * share:g}%"].append(recall(kept, one.groups) or 0.0)
    return {name: sum(values) / len(values) for name, values in found.items()}
