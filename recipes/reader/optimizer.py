"""Optimisers: Muon for the weight matrices of the blocks, AdamW for everything else.

Muon replaces each matrix's momentum by the nearest orthogonal matrix, so that all directions learn at the same pace. Its
step is scaled to the size of an AdamW step, so that both share one learning rate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import nn


def orthogonalize(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The nearest orthogonal matrices to `matrices` [K, m, n], approximately, by Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.shape[-1] >= matrices.shape[-2]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        product = x @ x.mT
        x = a * x + (b * product + c * product @ product) @ x
    return (x if wide else x.mT).to(matrices.dtype)


# Not torch.optim.Muon (adjust_lr_fn="match_rms_adamw"): for a single matrix both give the same update (a test compares them),
# but torch orthogonalises a fused query-key-value matrix as one, not as three, runs matrix by matrix instead of one batched
# product for all matrices of a shape, and always works in bfloat16, also on a CPU.
class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum. Matrices of one shape are batched; a fused query-key-value matrix counts as three."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[torch.Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[tuple(parameter.shape)].append(parameter)
            for (rows, columns), parameters in shapes.items():
                parts = 3 if rows == 3 * columns else 1
                for parameter in parameters:
                    if "momentum" not in self.state[parameter]:
                        self.state[parameter]["momentum"] = torch.zeros_like(parameter)
                buffers = [self.state[parameter]["momentum"] for parameter in parameters]
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])  # Nesterov momentum
                updates = orthogonalize(torch.stack(ahead).view(-1, rows // parts, columns))
                scale = 0.2 * max(rows // parts, columns) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(
                    parameters, list(updates.view(-1, rows, columns).unbind()), alpha=-group["lr"] * scale
                )


def make_optimizers(
    model: nn.Module, head: nn.Module, lr: float, weight_decay: float = 0.05, fused: bool = False
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the encoder's and the language model's blocks, AdamW for the rest."""
    matrices, others, plain = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and any(part in name for part in (".blocks.", ".layers.", ".merger.")):
            matrices.append(parameter)
        elif parameter.ndim > 1:
            others.append(parameter)
        else:
            plain.append(parameter)
    others += [parameter for parameter in head.parameters() if parameter.ndim > 1]
    plain += [parameter for parameter in head.parameters() if parameter.ndim <= 1]
    groups = [{"params": others, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    # Muon tolerates a higher learning rate than AdamW.
    groups = [group | {"rate_share": 0.5} for group in groups]
    return [
        Muon(matrices, lr=lr, weight_decay=weight_decay),
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=fused),
    ]
