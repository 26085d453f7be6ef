"""Model inputs with the original images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import PromptError
from tests.adapters.tiny_vlm import picture, stock_inputs


@pytest.mark.parametrize("selector", ["ink", "arr-coc"])
def test_originals_give_the_same_choice_as_the_images(vlm: Any, selector: str) -> None:
    image, question = picture(90, 150), "Where is the dog?"
    seen = vlm.prepare([image], question, budget=7, selector=selector)
    inputs = stock_inputs(vlm, question, [image])
    again = vlm.prepare(inputs=inputs, originals=[image], text=question, budget=7, selector=selector)
    assert again.allocations[0].keep.tolist() == seen.allocations[0].keep.tolist()
    assert torch.equal(again["input_ids"], seen["input_ids"])
    said = vlm.generate(inputs=inputs, originals=[image], text=question, budget=7, selector=selector, max_new_tokens=2)
    assert said[0].allocation.keep.tolist() == seen.allocations[0].keep.tolist()


def test_an_original_may_be_a_tensor_or_a_texture(vlm: Any) -> None:
    image, question = picture(90, 150), "Where is the dog?"
    inputs, pixels = stock_inputs(vlm, question, [image]), arr_coc.TextureArray.from_image(image)
    tensor = torch.stack([pixels[name] for name in ("red", "green", "blue")])
    keeps = [
        vlm.prepare(inputs=inputs, originals=[one], budget=7, selector="ink").allocations[0].keep.tolist()
        for one in (image, pixels, tensor)
    ]
    assert keeps[0] == keeps[1] == keeps[2]


def test_arguments_that_do_not_fit_the_inputs_are_one_sentence(vlm: Any) -> None:
    image = picture(90, 150)
    inputs = stock_inputs(vlm, "What?", [image])
    with pytest.raises(PromptError, match="originals of 1 images, got 2"):
        vlm.prepare(inputs=inputs, originals=[image, image])
    with pytest.raises(PromptError, match="only with inputs"):
        vlm.prepare([image], "What?", originals=[image])
    with pytest.raises(PromptError, match="each of the 1 rows of the inputs, got 2"):
        vlm.prepare(inputs=inputs, text=["What?", "Where?"])
    with pytest.raises(PromptError, match="got them as separate"):
        vlm.prepare([image], "What?", inputs=inputs)
