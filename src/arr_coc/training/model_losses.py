"""What the model itself teaches: where it looks while it answers, and what its answers lose by what is not read."""

from __future__ import annotations

import random

import torch

from arr_coc.layer.model import Judged
from arr_coc.training import losses as targets
from arr_coc.training.answer_loss import answer_attention, answer_loss
from arr_coc.training.examples import Asked, Lesson, answered
from arr_coc.training.gates import log_gates
from arr_coc.training.look_cache import Looks
from arr_coc.training.settings import LEAST, MOST, Settings
from arr_coc.training.steps import Batch


def model_losses(
    looks: Looks, batch: Batch, judged: Judged, settings: Settings, chance: random.Random
) -> dict[str, torch.Tensor]:
    """The losses that need the model: for a few questions of a batch only, since each is a run of the model."""
    wanted = {"attention", "answers"} & set(settings.learn)
    able = [row for row, one in enumerate(batch.asked) if answered(one.sample)]
    rows = chance.sample(able, min(settings.answers, len(able))) if wanted else []
    losses: dict[str, list[torch.Tensor]] = {name: [] for name in sorted(wanted)}
    for row in rows:
        lesson, one, logits = batch.lessons[row], batch.asked[row], judged.relevance[row]
        if "attention" in wanted:
            seen = attention(looks, lesson, one)
            if seen is not None:
                losses["attention"].append(targets.attention_loss(logits, seen.to(logits)))
        if "answers" in wanted:
            count = max(1, round(chance.uniform(LEAST, MOST) * len(logits)))
            generator = torch.Generator().manual_seed(chance.getrandbits(31))
            bias = log_gates(logits, count, settings.gate, settings.temperature, generator)
            lost = answer_loss(looks.vlm, looks.at(lesson.image), one.sample.question, one.sample.answers[0], bias)
            losses["answers"].append(settings.answer_weight * lost)
    return {name: torch.stack(found).mean() for name, found in losses.items() if found}


def attention(looks: Looks, lesson: Lesson, one: Asked) -> torch.Tensor | None:
    """What the model looks at, `[N]`, while it gives a right answer; None where it does not. Looked up once."""
    if one.seen is None:
        seen, right = answer_attention(looks.vlm, looks.at(lesson.image), one.sample.question, one.sample.answers[0])
        one.seen = (seen.detach().half().cpu() if right else None,)
    return one.seen[0]
