"""Model inputs with the original images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import PromptError, SelectorError
from tests.adapters import families
from tests.adapters.tiny_vlm import GREEDY, answer_of, picture, stock_inputs, wrapped


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


TILED = [name for name in ("internvl", "idefics3", "smolvlm") if name in families.FAMILIES]


@pytest.mark.parametrize("family", TILED)
def test_pixels_without_their_tokens_are_refused(family: str) -> None:
    """They would be left out without a word."""
    vlm = wrapped(family)
    whole = stock_inputs(vlm, "What?", [picture()])
    tokens = (whole["input_ids"][0] == vlm.adapter.token_id("image")).nonzero()[:, 0]
    in_tile = vlm.adapter.side**2
    count = len(tokens) // in_tile
    for tiles in (0, 1, count - 1):
        end = int(tokens[0]) if tiles == 0 else int(tokens[tiles * in_tile - 1]) + 1
        cut = whole | {name: whole[name][:, :end] for name in ("input_ids", "attention_mask")}
        with pytest.raises(PromptError, match=f"tokens for the {count} tiles of pixel_values, got those of {tiles}:"):
            vlm.prepare(inputs=cut)
    assert vlm.prepare(inputs=whole).allocations[0].n == len(tokens)


@pytest.mark.parametrize("family", TILED[1:])
def test_tiles_are_counted_row_by_row(family: str) -> None:
    """A truncated row is found even if another row has the tiles that are missing."""
    vlm = wrapped(family)
    whole = families.prompt(family, "ragged")
    assert len(vlm.prepare(inputs=whole).allocations) == 4
    swapped = whole | {"pixel_values": whole["pixel_values"].flip(0)}
    with pytest.raises(PromptError, match=r"for the \d+ \+ \d+ \+ \d+ tiles"):
        vlm.prepare(inputs=swapped)


def ending_in_the_picture(vlm: Any) -> dict[str, Any]:
    """A prompt whose last token is the picture's last cell."""
    inputs = stock_inputs(vlm, "What?", [picture()])
    end = int((inputs["input_ids"][0] == vlm.adapter.token_id("image")).nonzero()[-1, 0]) + 1
    cut = ("input_ids", "attention_mask", "mm_token_type_ids")
    return {name: value[:, :end] if name in cut else value for name, value in inputs.items()}


@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "internvl"])
def test_a_prompt_that_ends_in_a_dropped_cell_is_refused(family: str) -> None:
    """The answer would start from another position than in the dense prompt."""
    vlm = wrapped(family)
    inputs = ending_in_the_picture(vlm)
    last = vlm.prepare(inputs=inputs).allocations[0].n - 1
    with pytest.raises(PromptError, match=f"ends in it, and its last cell {last}, from which the answer starts"):
        vlm.prepare(inputs=inputs, allocation=[0, 3])
    with pytest.raises(SelectorError, match="could drop the token that the answer starts from"):
        vlm.generate(inputs=inputs, budget=4, selector="fastv")
    kept = vlm.prepare(inputs=inputs, allocation=[0, 3, last])
    assert kept["position_ids"][..., -1].tolist() == vlm.adapter.positions(inputs)[..., -1].tolist()
    assert vlm.generate(inputs=inputs, **GREEDY)[0].ids.tolist() == answer_of(vlm.model, inputs)
