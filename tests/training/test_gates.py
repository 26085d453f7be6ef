"""Gates sum to k, become hard at low temperature, and have exact gradients."""

from __future__ import annotations

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.training.gates import DROPPED, METHODS, hard_gates, hard_top, log_gates, log_soft_top, soft_top


def scores(n: int = 50, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 3


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("k", [1, 7, 49])
def test_soft_gates_sum_to_the_budget(k: int, temperature: float) -> None:
    gates = soft_top(torch.stack([scores(), scores(seed=1) * 40]), k, temperature)
    assert torch.allclose(gates.sum(-1), torch.tensor(float(k)), rtol=1e-4)
    assert gates.min() >= 0
    assert gates.max() <= 1
    assert (gates[0][scores().argsort()].diff() >= 0).all()  # in the order of the scores


def test_all_cells_and_none() -> None:
    values = scores(5).requires_grad_()
    assert soft_top(values, 5).tolist() == soft_top(values, 9).tolist() == [1.0] * 5
    assert soft_top(values, 0).tolist() == soft_top(values, -1).tolist() == [0.0] * 5
    for method in METHODS:
        assert log_gates(values, 5, method).tolist() == [0.0] * 5
        assert log_gates(values, 0, method).tolist() == [DROPPED] * 5
        log_gates(values, 5, method).sum().backward()  # a training loop may draw a budget of all cells
    assert values.grad is not None
    assert values.grad.tolist() == [0.0] * 5


@pytest.mark.parametrize("k", [1, 4, 11])
def test_the_gradient_is_exact(k: int) -> None:
    values = scores(12, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: soft_top(s, k, 0.7), values)
    assert torch.autograd.gradcheck(lambda s: log_soft_top(s, k, 0.7), values)


def test_half_precision_counts_in_single() -> None:
    assert soft_top(scores(4000).bfloat16(), 100).sum().item() == pytest.approx(100, rel=1e-4)


def test_a_cold_gate_is_the_hard_selection() -> None:
    values = scores().requires_grad_()
    assert torch.equal(soft_top(values, 9, 1e-4) > 0.5, hard_top(values, 9))
    bias = log_gates(values, 9, "log-gate", temperature=1e-4)
    assert torch.isfinite(bias).all()
    assert bias[~hard_top(values, 9)].max() < DROPPED
    assert torch.isfinite(torch.autograd.grad(bias.sum(), values)[0]).all()


def test_equal_scores_share_when_soft_and_go_to_the_first_when_hard() -> None:
    assert torch.allclose(soft_top(torch.ones(8), 2), torch.full((8,), 0.25))
    assert hard_top(torch.ones(2, 5), 2).tolist() == [[True, True, False, False, False]] * 2
    assert hard_top(torch.tensor([1.0, 2.0, 2.0]), 1).tolist() == [False, True, False]
    assert not hard_top(torch.ones(3), 0).any()
    assert hard_top(torch.ones(3), 7).all()


def test_straight_through_is_hard_forward_and_soft_backward() -> None:
    values = scores().requires_grad_()
    bias = log_gates(values, 9, "straight-through")
    assert torch.equal(bias, hard_gates(hard_top(values, 9)))
    weights = scores(seed=5)
    # Per cell, what reaches the bias is the gate (e^bias) times what reaches the gate.
    (found,) = torch.autograd.grad((bias.exp().detach() * weights * bias).sum(), values)
    (expected,) = torch.autograd.grad((weights * soft_top(values, 9)).sum(), values)
    assert torch.allclose(found, expected, atol=1e-6)


def test_hard_selection_alone_gives_no_gradient() -> None:
    values = scores().requires_grad_()
    assert not hard_top(values, 9).requires_grad
    assert not hard_gates(hard_top(values, 9)).requires_grad


def test_gumbel_draws_better_cells_more_often() -> None:
    values = torch.tensor([2.0, 1.0, 0.0, -1.0]).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    drawn = log_gates(values.expand(400, 4), 2, "gumbel", generator=generator)
    assert torch.isin(drawn, torch.tensor([0.0, DROPPED])).all()
    often = (drawn == 0).float().mean(0)
    assert (often.diff() < 0).all()
    assert often[3] > 0
    assert often.sum() == 2
    again = log_gates(values.expand(400, 4), 2, "gumbel", generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)
    # One cell of two: the probabilities are those of a softmax.
    drawn = log_gates(values[:2].expand(2000, 2), 1, "gumbel", generator=generator)
    assert (drawn[:, 0] == 0).float().mean().item() == pytest.approx(0.731, abs=0.04)


def test_bad_input() -> None:
    with pytest.raises(ArrCocError, match="log-gate, straight-through, gumbel, got 'soft'"):
        log_gates(scores(), 3, "soft")
    with pytest.raises(ArrCocError, match="temperature above 0, got 0"):
        soft_top(scores(), 3, 0)
    with pytest.raises(ArrCocError, match="as floats, got "):
        soft_top(torch.arange(4), 3)
