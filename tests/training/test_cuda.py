"""Gates on an accelerator, where fused attention refuses the gradient of masks of some lengths."""

from __future__ import annotations

import pytest
import torch

from arr_coc.training.answer_loss import answer_loss
from tests.adapters.tiny_vlm import picture
from tests.precision import full_precision
from tests.training import squares

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("question", ["Which?", "Which one?", "Which one is it?", "Which one is it, then?"])
def test_the_gradient_of_gates_is_the_cpus(question: str) -> None:
    grads = []
    for device in ("cpu", "cuda"):
        vlm = squares.model()
        vlm.model.to(device)
        look = vlm.look(picture(64, 64))
        cells = vlm.prepare(look=look, text=question).allocations[0].n
        bias = torch.zeros(cells, device=device, requires_grad=True)
        with full_precision():
            answer_loss(vlm, look, question, "red", bias).backward()
        assert bias.grad is not None
        grads.append(bias.grad.cpu())
    assert torch.allclose(*grads, atol=1e-4)
