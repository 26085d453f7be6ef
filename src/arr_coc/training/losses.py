"""What a layer is told: which cells a question needs, by boxes around its answer or by what the model itself looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, eq=False)
class Evidence:
    """Groups of cells for `Q` questions: any one group of a question suffices."""

    cells: torch.Tensor  # [G, N] 1 for the cells of a group
    question: torch.Tensor  # [G] whose group it is

    @classmethod
    def of(cls, groups: Sequence[Sequence[torch.Tensor]], n: int, device: torch.device) -> Evidence:
        flat = [(row, group) for row, several in enumerate(groups) for group in several]
        cells = torch.zeros(len(flat), n)
        for place, (_, group) in enumerate(flat):
            cells[place, group] = 1.0
        return cls(cells.to(device), torch.tensor([row for row, _ in flat], device=device))


def ranking_loss(logits: torch.Tensor, evidence: Evidence) -> torch.Tensor:
    """How far the evidence is from the top: logits `[Q, N]`; the mean over questions that have any.

    The group that is found most easily counts. All of its cells must rise, whatever the budget will be.
    """
    chances = logits.log_softmax(-1)[evidence.question]
    each = -(chances * evidence.cells).sum(-1) / evidence.cells.sum(-1)  # [G]
    easiest = torch.full_like(logits[:, 0], torch.inf).scatter_reduce(0, evidence.question, each, "amin")
    return easiest[easiest.isfinite()].mean()


def calibration_loss(logits: torch.Tensor, evidence: Evidence) -> torch.Tensor:
    """How wrong the logits `[Q, N]` are as chances; cells of any group are right, and both sides weigh alike."""
    wanted = torch.zeros_like(logits).index_add_(0, evidence.question, evidence.cells).clamp(max=1)
    each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    known = wanted.any(-1)
    right = (each * wanted).sum(-1) / wanted.sum(-1).clamp(min=1)
    wrong = (each * (1 - wanted)).mean(-1)
    return 0.5 * (right + wrong)[known].mean()


def attention_loss(logits: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """How far the logits `[N]` are from what the model looked at, `[N]` from 0 on."""
    wanted = seen / seen.sum().clamp(min=1e-9)
    return -(wanted * logits.log_softmax(-1)).sum()
