"""Our Muon equals `torch.optim.Muon` for a plain matrix, and treats a fused query-key-value matrix as three."""

import pytest
import torch

from recipes.reader.optimizer import Muon


def steps(optimizer: torch.optim.Optimizer, weights: torch.nn.Parameter, count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        weights.grad = torch.randn(weights.shape, generator=generator)
        optimizer.step()
    return weights.detach()


def both(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mine = torch.nn.Parameter(torch.randn(rows, columns))
    theirs = torch.nn.Parameter(mine.detach().clone())
    options = {"lr": 0.1, "momentum": 0.95, "weight_decay": 0.05}
    torch_muon = torch.optim.Muon([theirs], **options, nesterov=True, adjust_lr_fn="match_rms_adamw")
    return steps(Muon([mine], **options), mine), steps(torch_muon, theirs)


@pytest.mark.parametrize("shape", [(24, 24), (24, 40), (40, 24)])
def test_a_plain_matrix_is_updated_as_in_torch(shape: tuple[int, int]) -> None:
    mine, theirs = both(*shape)
    assert (mine - theirs).abs().max() < 0.005  # torch orthogonalises in bfloat16


def test_a_fused_matrix_is_updated_as_three() -> None:
    mine, theirs = both(3 * 16, 16)
    assert (mine - theirs).abs().max() > 0.05
    torch.manual_seed(1)
    parts = [torch.nn.Parameter(part.clone()) for part in torch.randn(3 * 16, 16).split(16)]
    optimizer = Muon(parts, lr=0.1, momentum=0.95, weight_decay=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for part, gradient in zip(parts, torch.randn(3 * 16, 16, generator=generator).split(16), strict=True):
            part.grad = gradient
        optimizer.step()
    assert torch.allclose(mine, torch.cat([part.detach() for part in parts]), atol=1e-6)
