"""A model adapts by its last layers or by LoRA, and is a stock model again afterwards."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError, ModelError
from arr_coc.reader import WEIGHTS
from arr_coc.training.answer_loss import answer_logits, answer_loss
from arr_coc.training.gates import hard_top
from arr_coc.training.trainable import last_layers, lora
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import picture

QUESTION, ANSWER = "Which?", "It is 4"
FAMILIES = ["qwen2_vl", "qwen3_vl", "llava", "internvl", "idefics3"]


def fresh(family: str) -> Any:
    if family in families.QWEN:
        return arr_coc.wrap(families.model(family), tiny_vlm.processor(family))
    return tiny_vlm.build(family)


def steps(vlm: Any, look: Any, parameters: Any, count: int = 6, rate: float = 3e-3) -> list[float]:
    """The losses of a few steps on one sample, read from 8 cells."""
    n = vlm.prepare(look=look, text=QUESTION, selector="all").allocations[0].n
    keep = hard_top(torch.randn(n, generator=torch.Generator().manual_seed(0)), 8)
    optimizer = torch.optim.Adam(parameters, lr=rate)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = answer_loss(vlm, look, QUESTION, ANSWER, keep=keep, frozen=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state(vlm: Any) -> dict[str, torch.Tensor]:
    return {name: weights.clone() for name, weights in vlm.model.state_dict().items()}


def untouched(vlm: Any) -> bool:
    return all(weights.requires_grad and weights.grad is None for weights in vlm.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layers_learn_and_nothing_else(family: str) -> None:
    vlm = fresh(family)
    look, before = vlm.look(picture(90, 40)), state(vlm)
    with last_layers(vlm, 2) as parameters:
        losses = steps(vlm, look, parameters)
    assert losses[-1] < losses[0]
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all("layers.2." in name or "layers.3." in name for name in changed)
    assert not any("vision" in name or "visual" in name for name in changed)
    assert untouched(vlm)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_learns_and_is_merged(family: str) -> None:
    vlm = fresh(family)
    look, names = vlm.look(picture(90, 40)), list(vlm.model.state_dict())
    kinds = [type(module) for module in vlm.model.modules()]
    attributes = set(vars(vlm.model))
    with lora(vlm, rank=4) as parameters:
        assert 0 < sum(map(torch.numel, parameters)) < sum(map(torch.numel, vlm.model.parameters())) / 3
        losses = steps(vlm, look, parameters, rate=1e-2)
        adapted = answer_logits(vlm, look, QUESTION, ANSWER)[0].detach()
    assert losses[-1] < losses[0]
    assert torch.allclose(answer_logits(vlm, look, QUESTION, ANSWER)[0], adapted, atol=1e-5)
    assert list(vlm.model.state_dict()) == names
    assert [type(module) for module in vlm.model.modules()] == kinds
    assert set(vars(vlm.model)) == attributes
    assert untouched(vlm)
    assert not vlm.model.training


def test_lora_of_some_layers_leaves_the_others() -> None:
    vlm = fresh("qwen2_vl")
    look, before = vlm.look(picture()), state(vlm)
    with lora(vlm, rank=2, layers=1) as parameters:
        steps(vlm, look, parameters, 2)
    changed = {name for name, weights in vlm.model.state_dict().items() if not torch.equal(weights, before[name])}
    assert changed
    assert all(".language_model.layers.3." in name for name in changed)


def test_an_error_leaves_the_model_as_it_was() -> None:
    vlm = fresh("qwen2_vl")
    look, before = vlm.look(picture()), state(vlm)

    def interrupted() -> None:
        with lora(vlm, rank=2) as parameters:
            steps(vlm, look, parameters, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    after = vlm.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert untouched(vlm)


def test_what_was_adapted_is_saved_as_a_stock_folder(tmp_path: Path) -> None:
    vlm = fresh("qwen2_vl")
    with lora(vlm, rank=2) as parameters:
        steps(vlm, vlm.look(picture()), parameters, 3)
    vlm.model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("adapter*"))
    for file in WEIGHTS.iterdir():  # the tiny model speaks the reader's alphabet
        if file.is_file() and file.name != "config.json" and file.suffix in (".json", ".jinja"):
            shutil.copy(file, tmp_path / file.name)
    loaded = arr_coc.load(tmp_path)
    for name, weights in vlm.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weights), name
    assert type(loaded.model) is type(vlm.model)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = fresh("qwen2_vl")
    for wrong in (0, 5, 1.5):
        with pytest.raises(ArrCocError, match=f"expected 1 to 4 layers, .* got {wrong}"), last_layers(vlm, wrong):
            pass
    with pytest.raises(ArrCocError, match="expected a rank of 1 or more, got 0"), lora(vlm, rank=0):
        pass
    there = builtins.__import__

    def without(name: str, *given: Any, **more: Any) -> Any:
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return there(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with (
        pytest.raises(ModelError, match=r"LoRA needs the extra 'training' .* pip install \"arr-coc\[training\]\""),
        lora(vlm),
    ):
        pass
