"""The losses against slow, direct versions of themselves."""

from __future__ import annotations

import pytest
import torch

from arr_coc.training.losses import Evidence, attention_loss, calibration_loss, ranking_loss

N = 7
GROUPS = [
    [torch.tensor([0, 1]), torch.tensor([5])],
    [],  # nobody knows
    [torch.tensor([2, 3, 6])],
    [torch.tensor([1, 4]), torch.tensor([1, 2]), torch.arange(N)],
]


def logits() -> torch.Tensor:
    return 2 * torch.randn(len(GROUPS), N, generator=torch.Generator().manual_seed(0))


def test_ranking_wants_all_cells_of_the_easiest_group_on_top() -> None:
    found, each = logits(), []
    for row, groups in zip(found, GROUPS, strict=True):
        chances = (row.exp() / row.exp().sum()).tolist()
        costs = [
            -sum(torch.tensor(chances[cell]).log().item() for cell in group.tolist()) / len(group) for group in groups
        ]
        each += [min(costs)] if costs else []
    evidence = Evidence.of(GROUPS, N, torch.device("cpu"))
    assert ranking_loss(found, evidence).item() == pytest.approx(sum(each) / 3, rel=1e-5)


def test_calibration_weighs_right_and_wrong_cells_alike() -> None:
    found, each = logits(), []
    for row, groups in zip(found, GROUPS, strict=True):
        if not groups:
            continue
        right = {cell for group in groups for cell in group.tolist()}
        chance = row.sigmoid().tolist()
        hits = [-torch.tensor(chance[cell]).log().item() for cell in sorted(right)]
        misses = [-torch.tensor(1 - chance[cell]).log().item() for cell in range(N) if cell not in right]
        each.append(0.5 * (sum(hits) / len(hits) + sum(misses) / N))
    evidence = Evidence.of(GROUPS, N, torch.device("cpu"))
    assert calibration_loss(found, evidence).item() == pytest.approx(sum(each) / 3, rel=1e-4)


def test_attention_is_a_distribution_to_be_met() -> None:
    row, seen = logits()[0], torch.rand(N, generator=torch.Generator().manual_seed(1))
    wanted = (seen / seen.sum()).tolist()
    direct = -sum(share * torch.log(row.exp() / row.exp().sum())[cell].item() for cell, share in enumerate(wanted))
    assert attention_loss(row, seen).item() == pytest.approx(direct, rel=1e-5)
    nothing = torch.zeros(N, requires_grad=True)
    attention_loss(nothing, torch.zeros(N)).backward()
    assert nothing.grad is not None
    assert torch.equal(nothing.grad, torch.zeros(N))


def test_questions_without_evidence_get_no_gradient() -> None:
    found = logits().requires_grad_()
    evidence = Evidence.of(GROUPS, N, torch.device("cpu"))
    (ranking_loss(found, evidence) + calibration_loss(found, evidence)).backward()
    assert found.grad is not None
    assert bool((found.grad[1] == 0).all())
    assert bool((found.grad[[0, 2, 3]] != 0).any(-1).all())
