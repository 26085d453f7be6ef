"""Patches made after the glance are bit for bit those of the processor, and only those that are encoded are made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import arr_coc
from arr_coc.adapters.processor import ResizedPictures, read_patches
from arr_coc.draw import samples

CPU = torch.device("cpu")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},  # Qwen3-VL
    {"merge_size": 1, "temporal_patch_size": 1, "do_normalize": False},
    {"size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64}},  # smaller than the pictures
]


@pytest.fixture(scope="module")
def vlm() -> Any:
    return arr_coc.load("reader")


def pictures() -> list[Image.Image]:
    receipt = samples.receipt()
    return [
        receipt.resize((200, 333)),
        Image.effect_noise((170, 64), 90).convert("RGB"),
        receipt.crop((0, 0, 100, 100)),
    ]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: ", ".join(one) or "stock")
def test_all_patches_are_the_processors_bit_for_bit(vlm: Any, settings: dict[str, Any]) -> None:
    prompter = copy.copy(vlm.prompter)
    prompter.processor = copy.copy(prompter.processor)
    prompter.processor.image_processor = Qwen2VLImageProcessorPil(**settings)
    shown = pictures()
    late = prompter.process([shown[:2], shown[2:]], [[], []], 1.0)
    prompter.late_patches = False
    stock = prompter.process([shown[:2], shown[2:]], [[], []], 1.0)
    pixels, made = stock.tensors["pixel_values"], late.tensors["pixel_values"]
    assert isinstance(made, ResizedPictures)
    assert torch.equal(made.read(None, CPU, torch.float32), pixels)
    assert torch.equal(made.read(None, CPU, torch.bfloat16), pixels.bfloat16())
    rows = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))[: len(pixels) // 4].sort().values
    assert torch.equal(read_patches(made, rows, CPU, torch.float32), pixels[rows])
    assert torch.equal(read_patches(pixels, rows, CPU, torch.float32), pixels[rows])
    assert late.texts == stock.texts
    for name in stock.tensors.keys() - {"pixel_values"}:
        assert torch.equal(torch.as_tensor(late.tensors[name]), torch.as_tensor(stock.tensors[name])), name


def test_a_processor_that_is_not_qwens_makes_its_patches_itself(vlm: Any) -> None:
    class Own(Qwen2VLImageProcessorPil):
        pass

    processor = copy.copy(vlm.processor)
    processor.image_processor = Own()
    other = arr_coc.wrap(vlm.model, processor, layer=None)
    look = other.look(pictures()[0])
    assert isinstance(look.vision.tensors["pixel_values"], torch.Tensor)


def test_an_answer_reads_only_the_patches_that_it_encodes(vlm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read = [], ResizedPictures.read

    def counted(self: ResizedPictures, rows: torch.Tensor | None, *where: Any) -> torch.Tensor:
        asked.append(None if rows is None else len(rows))
        return read(self, rows, *where)

    monkeypatch.setattr(ResizedPictures, "read", counted)
    picture = samples.receipt().resize((224, 448))  # 8 x 16 cells of 4 patches
    settings: dict[str, Any] = {"detail": "off", "max_new_tokens": 2}
    some = vlm.ask(picture, "What is the total?", glance=32, budget=16, selector="uniform", **settings)
    assert asked == [32 * 4]
    assert some.tokens["encoded"] == 32
    whole = vlm.ask(picture, "What is the total?", glance="all", budget="all", **settings)
    assert asked[1:] == [None]
    vlm.prompter.late_patches = False
    try:
        stock = vlm.ask(picture, "What is the total?", glance="all", budget="all", **settings)
    finally:
        vlm.prompter.late_patches = True
    assert torch.equal(whole.ids, stock.ids)
    assert len(asked) == 2
