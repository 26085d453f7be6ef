"""Adapting the model itself to few cells, beside a selector that has been trained: its last layers, or all of them by LoRA.

Both are blocks that hand out the parameters to train and leave a stock model behind, its weights changed and nothing else:

    with lora(vlm, rank=8) as parameters:
        optimizer = torch.optim.AdamW(parameters)
        answer_loss(vlm, look, question, answer, keep=cells, frozen=False).backward()
        optimizer.step()
    vlm.model.save_pretrained(folder)

Only the language model learns, so what a look has encoded stays right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.errors import ArrCocError, ModelError, whole_number

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

STRENGTH = 2.0  # what LoRA's product of two small matrices is multiplied by


@contextmanager
def last_layers(vlm: VLM, count: int) -> Iterator[list[torch.nn.Parameter]]:
    """Inside, the parameters of the last `count` language layers ask for gradients and no others do."""
    trained = [weights for layer in last(vlm, count) for weights in layer.parameters()]
    with _asking(vlm.model):
        vlm.model.requires_grad_(False)
        for weights in trained:
            weights.requires_grad_(True)
        try:
            yield trained
        finally:
            for weights in trained:
                weights.grad = None


@contextmanager
def lora(
    vlm: VLM, rank: int = 8, layers: int | None = None, strength: float = STRENGTH
) -> Iterator[list[torch.nn.Parameter]]:
    """Inside, every linear map of the last `layers` language layers (None: of all) has a trainable addition of that rank.

    At the end the additions are merged into the weights; after an error they are taken away, and the model is as before.
    """
    if whole_number(rank) is None:
        raise ArrCocError(f"expected a rank of 1 or more, got {rank!r}")
    peft = peft_package()
    inside = {
        id(module)
        for layer in last(vlm, layers)
        for module in layer.modules()
        if isinstance(module, torch.nn.Linear)
    }  # fmt: skip
    names = [name for name, module in vlm.model.named_modules() if id(module) in inside]
    config = peft.LoraConfig(r=rank, lora_alpha=strength * rank, target_modules=names)
    training = vlm.model.training
    with _asking(vlm.model):
        tuned = peft.get_peft_model(vlm.model, config)
        tuned.train(training)
        try:
            yield [weights for weights in tuned.parameters() if weights.requires_grad]
        except BaseException:
            tuned.unload()
            raise
        tuned.merge_and_unload()


def last(vlm: VLM, count: int | None) -> list[torch.nn.Module]:
    layers = list(vlm.adapter.text_model.layers)
    if count is None:
        return layers
    if whole_number(count) is None or count > len(layers):
        raise ArrCocError(f"expected 1 to {len(layers)} layers, as many as the language model has, got {count!r}")
    return layers[-count:]


@contextmanager
def _asking(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards, the parameters that asked for gradients before do so again, and only they."""
    before = [(weights, weights.requires_grad) for weights in model.parameters()]
    try:
        yield
    finally:
        for weights, asks in before:
            weights.requires_grad_(asks)


def peft_package() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(f"LoRA needs the extra 'training' ({error}): pip install \"arr-coc[training]\"") from None
    return peft
