"""Models that accelerate's hooks spread over two devices, or load from the disk for each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import arr_coc
from arr_coc.adapters import attention_probe
from arr_coc.adapters.wrapped import check_placement
from arr_coc.errors import LayerError, ModelError
from arr_coc.layer.identity import model_identity
from tests.adapters import families
from tests.adapters.tiny_vlm import FLAT, GREEDY, answer_of, picture, processor, stock_inputs, wrapped
from tests.adapters.two_devices import DeviceMismatch, TwoDevices, spread

QUESTION = "How many grey cats sit on the table?"
SELECTIONS: list[dict[str, Any]] = [{}, {"glance": "60%"}, {"selector": "sparsevlm"}, {"selector": "visionzip"}]
EVERY = [*families.QWEN, *(name for name in FLAT if name != "llava_padded")]
OFFLOADED = [name for name in ("qwen3_vl", "llava_next", "internvl", "smolvlm") if name in EVERY]
FEW: dict[str, Any] = GREEDY | {"max_new_tokens": 3}


def parts(model: Any) -> list[str]:
    """The names in a device map: the parts of the core, and its own weights."""
    own = [name for name, _ in [*model.model.named_children(), *model.model.named_parameters(recurse=False)]]
    return [*(f"model.{name}" for name in own), "lm_head"]


def over_two(model: Any) -> dict[str, int]:
    """Word embeddings and the first layers on device 0, everything else on device 1, as a large encoder would force."""
    text = next(name for name in parts(model) if name.endswith(("language_model", "text_model")))
    placed = dict.fromkeys(parts(model), 1) | {f"{text}.embed_tokens": 0, f"{text}.rotary_emb": 0, f"{text}.norm": 1}
    del placed[text]
    layers = model.get_submodule(text).layers
    placed |= {f"{text}.layers.{number}": int(number >= len(layers) // 2) for number in range(len(layers))}
    return placed | ({"lm_head": 0} if model.lm_head.weight is model.get_input_embeddings().weight else {})


def compare(ours: Any, plain: Any) -> None:
    for options in SELECTIONS:
        if "glance" in options and not plain.adapter.glances:
            continue
        given = {"budget": "40%", **options, **FEW}
        found, expected = (vlm.ask(picture(), QUESTION, **given) for vlm in (ours, plain))
        assert found.allocation.keep.tolist() == expected.allocation.keep.tolist(), options
        assert found.ids.tolist() == expected.ids.tolist(), options


@pytest.mark.parametrize("family", EVERY)
def test_a_model_on_two_devices_answers_as_on_one(family: str) -> None:
    plain, model = wrapped(family), families.model(family)
    model = spread(model, over_two(model))
    with TwoDevices():
        vlm = arr_coc.wrap(model, processor(family))
        assert vlm.device == torch.device("cpu", 0)
        inputs = stock_inputs(vlm, QUESTION, [picture()])
        assert vlm.ask(picture(), QUESTION, **GREEDY).ids.tolist() == answer_of(model, inputs)
        compare(vlm, plain)


@pytest.mark.parametrize("family", families.QWEN)
def test_an_encoder_whose_blocks_are_on_two_devices(family: str) -> None:
    plain, model = wrapped(family), families.model(family)
    inside = {f"model.visual.{name}": 0 for name, _ in model.model.visual.named_children()}
    del inside["model.visual.blocks"]
    blocks = {f"model.visual.blocks.{number}": number % 2 for number in range(len(model.model.visual.blocks))}
    model = spread(model, {"model.language_model": 0, "lm_head": 0, **inside, **blocks})
    with TwoDevices():
        compare(arr_coc.wrap(model, processor(family)), plain)


def test_mistakes_with_two_devices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without its moves, the probe would mix devices."""
    with TwoDevices():
        first, second = torch.ones(2, device="cpu:0"), torch.ones(2).to("cpu:1")
        with pytest.raises(DeviceMismatch, match=r"add on tensors of \['0', '1'\]"):
            first + second
        assert (first.to(second.device) + second).device == torch.device("cpu", 1)
    real = attention_probe._project
    model = families.model("qwen2_vl")
    vlm = arr_coc.wrap(spread(model, over_two(model)), processor("qwen2_vl"))

    def left_behind(attention: Any, which: str, states: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        return real(attention, which, states, *(table.to("cpu:0") for table in tables))

    monkeypatch.setattr(attention_probe, "_project", left_behind)
    with TwoDevices(), pytest.warns(arr_coc.errors.FallbackWarning, match="DeviceMismatch"):
        vlm.ask(picture(), QUESTION, budget="40%", **GREEDY)


def offloaded(family: str, folder: Path, placed: dict[str, str] | None = None) -> Any:
    given = {"model": "disk", "lm_head": "disk"} if placed is None else placed
    model = families.model(family)
    return accelerate.dispatch_model(model, given, main_device="cpu", offload_dir=folder, force_hooks=True)


@pytest.mark.parametrize("family", OFFLOADED)
def test_a_model_on_the_disk_answers_as_in_memory(family: str, tmp_path: Path) -> None:
    model = offloaded(family, tmp_path)
    assert {weights.device.type for weights in model.parameters()} == {"meta"}
    vlm = arr_coc.wrap(model, processor(family))
    assert vlm.device == torch.device("cpu")
    compare(vlm, wrapped(family))
    look = vlm.look(picture())
    for _ in range(2):
        answer = vlm.ask(look, QUESTION, remember=True, **FEW)
    assert len(look.encoded) == 1
    in_memory = answer_of(families.shared_model(family), stock_inputs(vlm, QUESTION, [picture()]), **FEW)
    assert answer.ids.tolist() == in_memory
    theirs = wrapped(family).ask(picture(), QUESTION, remember=True, **FEW)
    ours, expected = (v.ask(None, "And?", after=a, **FEW) for v, a in ((vlm, answer), (wrapped(family), theirs)))
    assert ours.ids.tolist() == expected.ids.tolist()


def test_what_cannot_be_offloaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected a device for model.vision_model of Idefics3, got it offloaded"):
        arr_coc.wrap(offloaded("idefics3", tmp_path / "all"))
    placed = dict.fromkeys(parts(families.shared_model("idefics3")), "disk") | {"model.vision_model": "cpu"}
    vlm = arr_coc.wrap(offloaded("idefics3", tmp_path / "some", placed), processor("idefics3"))
    compare(vlm, wrapped("idefics3"))
    with pytest.raises(LayerError, match="got them offloaded"):
        model_identity(vlm.adapter)


def test_weights_that_are_nowhere_are_refused() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with pytest.raises(ModelError, match="some on the device 'meta', which holds none: load them with from_pretrained"):
        check_placement(model)


def test_devices_without_hooks_are_refused() -> None:
    model = families.model("qwen2_vl")
    spread(model, over_two(model))
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    with TwoDevices(), pytest.raises(ModelError, match=r"got it on cpu:0, cpu:1 without accelerate's hooks"):
        arr_coc.wrap(model)
