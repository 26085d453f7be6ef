"""Differentiable gates: from scores to an attention bias for each cell, so that an answer's loss reaches the scores.

The logarithm of a gate is added to the attention logits: 0 leaves a cell as it is, `DROPPED` masks it. A hard top-k passes no
gradient to the scores. Each of the `METHODS` does:

    log-gate            soft gates: a sigmoid with a threshold such that the gates sum to k
    straight-through    hard top-k forward, soft gates backward
    gumbel              the same with Gumbel noise on the scores: better cells are drawn more often
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError

METHODS = ("log-gate", "straight-through", "gumbel")
TEMPERATURE = 1.0
# e^-40 of a cell's attention is too little to change an answer, but its gradient is not zero and can be scaled back up.
# With -inf, a dropped cell could never learn that it was needed.
DROPPED = -40.0
BISECTIONS = 60  # of the interval that contains the threshold


def soft_top(scores: torch.Tensor, k: int, temperature: float = TEMPERATURE) -> torch.Tensor:
    """Gates `[..., N]` between 0 and 1 that sum to k: sigmoid((score - threshold) / temperature).

    >>> soft_top(torch.tensor([2.0, 2.0, -50.0, -50.0]), 1).round(decimals=3).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    gates = log_soft_top(scores, k, temperature).exp()
    return gates if k > 0 else gates * 0


def log_soft_top(scores: torch.Tensor, k: int, temperature: float = TEMPERATURE) -> torch.Tensor:
    """The logarithm of `soft_top`, finite however small a gate is."""
    if not temperature > 0:
        raise ArrCocError(f"expected a temperature above 0, got {temperature!r}")
    if not scores.is_floating_point() or scores.ndim == 0:
        raise ArrCocError(f"expected scores [..., N] as floats, got {scores.dtype} of shape {list(scores.shape)}")
    if k <= 0 or k >= scores.shape[-1]:  # nothing to choose: zero gradient, but part of the graph
        return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), DROPPED if k <= 0 else 0.0)
    logits = (scores if scores.dtype == torch.float64 else scores.float()) / temperature
    threshold = _threshold(logits.detach(), k)
    # The sum stays k, so the threshold moves with the scores: by their mean, weighted by the gates' slopes.
    off = logits.detach() - threshold
    slopes = (F.logsigmoid(off) + F.logsigmoid(-off)).softmax(-1)
    moved = (slopes * (logits - logits.detach())).sum(-1, keepdim=True)  # 0, and its gradient
    return F.logsigmoid(logits - (threshold + moved))


def _threshold(logits: torch.Tensor, k: int) -> torch.Tensor:
    """The threshold at which sigmoid(logits - threshold) sums to k: `[..., N]` to `[..., 1]`.

    There, what the top k gates lack to 1 equals the sum of the others. Both are compared as logarithms, because at a low
    temperature they are smaller than the rounding error of the sum.
    """
    best = hard_top(logits, k)
    share = torch.tensor(k / logits.shape[-1], dtype=logits.dtype, device=logits.device)
    low = logits.amin(-1, keepdim=True) - torch.logit(share)
    high = logits.amax(-1, keepdim=True) - torch.logit(share)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        lack = F.logsigmoid(middle - logits).masked_fill(~best, -torch.inf).logsumexp(-1, keepdim=True)
        have = F.logsigmoid(logits - middle).masked_fill(best, -torch.inf).logsumexp(-1, keepdim=True)
        low, high = torch.where(have > lack, middle, low), torch.where(have > lack, high, middle)
    return (low + high) / 2


def hard_top(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Mask of the top k of `[..., N]`; of equal scores the first ones.

    >>> hard_top(torch.tensor([1.0, 3.0, 3.0, 3.0]), 2).tolist()
    [False, True, True, False]
    """
    best = scores.argsort(dim=-1, descending=True, stable=True)[..., : max(k, 0)]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


def hard_gates(kept: torch.Tensor) -> torch.Tensor:
    """The bias `[N]` of a hard selection, without gradient."""
    return torch.zeros(kept.shape, device=kept.device).masked_fill(~kept, DROPPED)


def log_gates(
    scores: torch.Tensor,
    k: int,
    method: str,
    temperature: float = TEMPERATURE,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """The attention bias of each cell `[..., N]`, such that about k cells are read. `generator`: for the noise of "gumbel"."""
    if method not in METHODS:
        raise ArrCocError(f"expected a method out of {', '.join(METHODS)}, got {method!r}")
    if method == "gumbel":
        scores = scores + temperature * _gumbel(scores, generator)
    if method == "log-gate":
        return log_soft_top(scores, k, temperature)
    return _StraightThrough.apply(soft_top(scores, k, temperature), hard_top(scores.detach(), k))


def _gumbel(scores: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Gumbel noise: with it, the top k of the scores are k draws without replacement."""
    device = scores.device if generator is None else generator.device
    uniform = torch.rand(scores.shape, generator=generator, device=device).clamp_min(1e-20)
    return -(-uniform.log()).clamp_min(1e-20).log().to(scores)


class _StraightThrough(torch.autograd.Function):
    """Forward: the logarithm of the hard selection. Backward: the gradient of the gate, not of its logarithm."""

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        bias = hard_gates(kept).to(gates)
        ctx.save_for_backward(bias)
        return bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bias,) = ctx.saved_tensors
        return grads[0] * torch.exp(-bias), None
