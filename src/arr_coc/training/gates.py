"""Gates: from scores to how much of each cell is read, so that the answer's loss can say which scores were wrong.

A gate is added to the attention as its logarithm: 0 reads a cell as ever, `DROPPED` leaves it unread. A hard choice of the
best k passes no gradient to the scores; each of the `METHODS` does, in its own way:

    log-gate            every cell is read a little, by a sigmoid whose gates sum to k
    straight-through    read as the hard choice says, learned from as if the gates had been soft
    gumbel              the same, the choice drawn by chance: better cells more often
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError

METHODS = ("log-gate", "straight-through", "gumbel")
TEMPERATURE = 1.0
# e^-40 of a cell's attention is too little to change an answer, but a gradient can still be found in it and scaled back up:
# with nothing left at all, a dropped cell could never learn that it was missed.
DROPPED = -40.0
HALVINGS = 60  # of the interval in which the threshold lies


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
    if k <= 0 or k >= scores.shape[-1]:  # nothing to choose: no gradient, but still a part of the graph
        return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool), DROPPED if k <= 0 else 0.0)
    logits = (scores if scores.dtype == torch.float64 else scores.float()) / temperature
    threshold = _threshold(logits.detach(), k)
    # The sum has to stay k, so the threshold moves with the scores: as their mean, each counting by its gate's slope.
    off = logits.detach() - threshold
    slopes = (F.logsigmoid(off) + F.logsigmoid(-off)).softmax(-1)
    moved = (slopes * (logits - logits.detach())).sum(-1, keepdim=True)  # 0, and its gradient
    return F.logsigmoid(logits - (threshold + moved))


def _threshold(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Where sigmoid(logits - threshold) sums to k: `[..., N]` to `[..., 1]`.

    That is where what the best k lack is what the others have. Both are compared as logarithms: at a low temperature they
    are far smaller than what is lost in a sum.
    """
    best = hard_top(logits, k)
    share = torch.tensor(k / logits.shape[-1], dtype=logits.dtype, device=logits.device)
    low = logits.amin(-1, keepdim=True) - torch.logit(share)
    high = logits.amax(-1, keepdim=True) - torch.logit(share)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        lack = F.logsigmoid(middle - logits).masked_fill(~best, -torch.inf).logsumexp(-1, keepdim=True)
        have = F.logsigmoid(logits - middle).masked_fill(best, -torch.inf).logsumexp(-1, keepdim=True)
        low, high = torch.where(have > lack, middle, low), torch.where(have > lack, high, middle)
    return (low + high) / 2


def hard_top(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Which cells are among the best k of `[..., N]`; of equal ones the earlier.

    >>> hard_top(torch.tensor([1.0, 3.0, 3.0, 3.0]), 2).tolist()
    [False, True, True, False]
    """
    best = scores.argsort(dim=-1, descending=True, stable=True)[..., : max(k, 0)]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


def hard_gates(kept: torch.Tensor) -> torch.Tensor:
    """The bias `[N]` of a choice that is made: kept cells are read, the others are not. No gradient goes through it."""
    return torch.zeros(kept.shape, device=kept.device).masked_fill(~kept, DROPPED)


def log_gates(
    scores: torch.Tensor,
    k: int,
    method: str,
    temperature: float = TEMPERATURE,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """What to add to the attention that each cell `[N]` gets, so that about k of them are read.

    `generator`: where chance comes from, with "gumbel".
    """
    if method not in METHODS:
        raise ArrCocError(f"expected a method out of {', '.join(METHODS)}, got {method!r}")
    if method == "gumbel":
        scores = scores + temperature * _gumbel(scores, generator)
    if method == "log-gate":
        return log_soft_top(scores, k, temperature)
    return _Hardened.apply(soft_top(scores, k, temperature), hard_top(scores.detach(), k))


def _gumbel(scores: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Noise that makes the best k of scores a draw of k cells without putting any back."""
    device = scores.device if generator is None else generator.device
    chance = torch.rand(scores.shape, generator=generator, device=device).clamp_min(1e-20)
    return -(-chance.log()).clamp_min(1e-20).log().to(scores)


class _Hardened(torch.autograd.Function):
    """Forward the logarithm of a hard choice, backward as if each gate itself had been 1, or all but 0, times its cell."""

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        bias = hard_gates(kept).to(gates)
        ctx.save_for_backward(bias)
        return bias

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bias,) = ctx.saved_tensors
        return grads[0] * torch.exp(-bias), None
