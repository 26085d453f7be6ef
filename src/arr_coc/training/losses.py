"""Losses of a layer's scores: from evidence boxes, from the model's attention, and from the model's answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.layer.model import LayerOutput
from arr_coc.training.answer_loss import answer_attention, answer_loss
from arr_coc.training.batches import MAX_KEPT, MIN_KEPT, LayerBatch, LayerTrainingSettings
from arr_coc.training.examples import ExampleQuestion, LookCache, TrainingExample, has_answer
from arr_coc.training.gates import log_gates


@dataclass(frozen=True, eq=False)
class EvidenceMask:
    """Groups of cells for `Q` questions: any one group of a question suffices."""

    cells: torch.Tensor  # [G, N] 1 for the cells of a group
    question: torch.Tensor  # [G] the question of each group

    @classmethod
    def from_groups(cls, groups: Sequence[Sequence[torch.Tensor]], n: int, device: torch.device) -> EvidenceMask:
        flat = [(row, group) for row, several in enumerate(groups) for group in several]
        cells = torch.zeros(len(flat), n)
        for place, (_, group) in enumerate(flat):
            cells[place, group] = 1.0
        return cls(cells.to(device), torch.tensor([row for row, _ in flat], device=device))


def ranking_loss(logits: torch.Tensor, evidence: EvidenceMask) -> torch.Tensor:
    """Mean negative log-softmax of the evidence cells, logits `[Q, N]`; mean over questions with evidence.

    The group with the lowest loss counts. All of its cells must rise, whatever the budget will be.
    """
    chances = logits.log_softmax(-1)[evidence.question]
    each = -(chances * evidence.cells).sum(-1) / evidence.cells.sum(-1)  # [G]
    easiest = torch.full_like(logits[:, 0], torch.inf).scatter_reduce(0, evidence.question, each, "amin")
    return easiest[easiest.isfinite()].mean()


def calibration_loss(logits: torch.Tensor, evidence: EvidenceMask) -> torch.Tensor:
    """Binary cross-entropy of the logits `[Q, N]`. Cells of any group are positive; both classes weigh the same."""
    wanted = torch.zeros_like(logits).index_add_(0, evidence.question, evidence.cells).clamp(max=1)
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    known = wanted.any(-1)
    right = (each * wanted).sum(-1) / wanted.sum(-1).clamp(min=1)
    wrong = (each * (1 - wanted)).mean(-1)
    return 0.5 * (right + wrong)[known].mean()


def attention_loss(logits: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the softmax of the logits `[N]` with the normalised attention `[N]`."""
    wanted = attention / attention.sum().clamp(min=1e-9)
    return -(wanted * logits.log_softmax(-1)).sum()


def box_losses(batch: LayerBatch, prediction: LayerOutput) -> dict[str, torch.Tensor]:
    """The losses of all questions whose evidence is known."""
    groups = [question.groups for question in batch.questions]
    if not any(groups):
        return {}
    logits = prediction.relevance
    evidence = EvidenceMask.from_groups(groups, logits.shape[-1], logits.device)
    return {"ranking": ranking_loss(logits, evidence), "calibration": calibration_loss(logits, evidence)}


def model_losses(
    looks: LookCache, batch: LayerBatch, prediction: LayerOutput, settings: LayerTrainingSettings, rng: random.Random
) -> dict[str, torch.Tensor]:
    """The losses that run the model, for `settings.answers` questions of the batch only, since each run is slow."""
    wanted = {"attention", "answers"} & set(settings.learn)
    able = [row for row, question in enumerate(batch.questions) if has_answer(question.sample)]
    rows = rng.sample(able, min(settings.answers, len(able))) if wanted else []
    losses: dict[str, list[torch.Tensor]] = {name: [] for name in sorted(wanted)}
    for row in rows:
        example, question, logits = batch.examples[row], batch.questions[row], prediction.relevance[row]
        sample = question.sample
        if "attention" in wanted:
            attention = model_attention(looks, example, question)
            if attention is not None:
                losses["attention"].append(attention_loss(logits, attention.to(logits)))
        if "answers" in wanted:
            count = max(1, round(rng.uniform(MIN_KEPT, MAX_KEPT) * len(logits)))
            generator = torch.Generator().manual_seed(rng.getrandbits(31))
            bias = log_gates(logits, count, settings.gate, settings.temperature, generator)
            loss = answer_loss(looks.vlm, looks.at(example.image), sample.question, sample.answers[0], bias)
            losses["answers"].append(settings.answer_weight * loss)
    return {name: torch.stack(several).mean() for name, several in losses.items() if several}


def model_attention(looks: LookCache, example: TrainingExample, question: ExampleQuestion) -> torch.Tensor | None:
    """The model's attention `[N]` while it gives the right answer, or None if its answer is wrong. Computed once."""
    if question.attention is None:
        sample = question.sample
        attention, right = answer_attention(looks.vlm, looks.at(example.image), sample.question, sample.answers[0])
        question.attention = (attention.detach().half().cpu() if right else None,)
    return question.attention[0]
