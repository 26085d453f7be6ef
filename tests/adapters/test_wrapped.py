"""Models inside other objects: adapters of peft that are switched between calls, and compiled models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch

import arr_coc
from arr_coc.adapters.families import adapter
from arr_coc.adapters.wrapped import PEFT_TYPES, unwrap, weights_state, without_compilation
from arr_coc.errors import LayerError, ModelError, PromptError
from arr_coc.layer.identity import config_for, fit_to_model, model_identity
from arr_coc.layer.model import ArrCocLayer
from arr_coc.vlm.token_encoder import VlmTokens
from tests.adapters import families
from tests.adapters.oracle import at_source, choose, dense, masked, real, sparse
from tests.adapters.tiny_vlm import FLAT, GREEDY, answer_of, picture, processor, stock_inputs, wrapped

QUESTION = "How many grey cats sit on the table?"
TEXT = ["q_proj", "v_proj"]
ENCODER = {"qwen2_vl": ["qkv"], "llava": ["fc1"], "internvl": ["projection_layer"]}


def lora(targets: list[str], **changes: Any) -> peft.LoraConfig:
    return peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **changes)


def adapted(family: str, targets: list[str] | None = None) -> Any:
    """A model with two unmerged LoRA adapters, "first" (active) and "second"."""
    torch.manual_seed(5)
    targets = TEXT + ENCODER.get(family, []) if targets is None else targets
    tuned = peft.get_peft_model(families.model(family), lora(targets), adapter_name="first")
    tuned.add_adapter("second", lora(targets))
    return tuned.eval()


def ask(vlm: Any, image: Any = None, **options: Any) -> Any:
    given = {"budget": "40%"} | options
    return vlm.ask(picture() if image is None else image, QUESTION, **given, **GREEDY)


def same(one: Any, other: Any) -> bool:
    return bool(
        one.ids.tolist() == other.ids.tolist() and one.allocation.keep.tolist() == other.allocation.keep.tolist()
    )


@torch.no_grad()
@pytest.mark.parametrize("family", [*families.QWEN, *(f for f in FLAT if f != "llava_padded")])
def test_an_unmerged_lora_is_exact(family: str) -> None:
    """Keeping all cells is the `PeftModel`'s own answer, keeping some is masking the others."""
    tuned, inputs = adapted(family), families.prompt(family, "image")
    reader = adapter(tuned)
    for name in ("first", "second"):
        tuned.set_adapter(name)
        ours, _ = sparse(reader, inputs)
        expected = tuned(**dense(reader, inputs)).logits
        assert torch.equal(tuned(**ours).logits, expected)
        keeps = choose(reader.visuals(inputs))
        ours, source = sparse(reader, inputs, keeps)
        truth = tuned(**masked(reader, inputs, keeps)).logits
        assert (real(tuned(**ours).logits, source) - at_source(truth, source)).abs().max() < 1e-5
    vlm = arr_coc.wrap(tuned, processor(family))
    inputs = stock_inputs(vlm, QUESTION, [picture()])
    assert ask(vlm, budget="all").ids.tolist() == answer_of(tuned, inputs)


@torch.no_grad()
@pytest.mark.parametrize(
    "config",
    [
        lora(TEXT, use_dora=True),
        peft.AdaLoraConfig(target_modules=TEXT, init_r=4, total_step=10, init_lora_weights=False),
        peft.LoHaConfig(r=4, target_modules=TEXT, init_weights=False),
        peft.LoKrConfig(r=4, target_modules=TEXT, init_weights=False),
        peft.OFTConfig(oft_block_size=4, target_modules=TEXT, init_weights=False),
        peft.IA3Config(target_modules=TEXT, feedforward_modules=[], init_ia3_weights=False),
        peft.VeraConfig(r=4, target_modules=["q_proj"], init_weights=False),
    ],
    ids=lambda config: str(config.peft_type.value),
)
def test_every_accepted_kind_of_adapter_is_exact(config: Any) -> None:
    assert config.peft_type.value in PEFT_TYPES
    tuned, inputs = peft.get_peft_model(families.model("qwen2_vl"), config).eval(), families.prompt("qwen2_vl", "image")
    reader = adapter(tuned)
    ours, _ = sparse(reader, inputs)
    assert torch.equal(tuned(**ours).logits, tuned(**dense(reader, inputs)).logits)
    assert ask(arr_coc.wrap(tuned, processor("qwen2_vl"))).fallback == ""


@pytest.mark.parametrize(
    ("config", "came"),
    [
        (peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"), "PROMPT_TUNING"),
        (lora(TEXT, alora_invocation_tokens=[65], task_type="CAUSAL_LM"), "an activated LoRA"),
    ],
)
def test_adapters_outside_the_layers_are_refused(config: Any, came: str) -> None:
    tuned = adapted("qwen2_vl", TEXT)
    vlm = arr_coc.wrap(tuned, processor("qwen2_vl"))
    tuned.peft_config["third"] = config
    with pytest.raises(ModelError, match=f"got 'third', {came}: merge it"):
        arr_coc.wrap(tuned)
    with pytest.raises(ModelError, match=f"got 'third', {came}: merge it"):
        ask(vlm)  # added after wrapping


# Switching.


def switches(tuned: Any) -> dict[str, Callable[[], Any]]:
    def rescale() -> None:
        for module in tuned.modules():
            if hasattr(module, "scaling") and hasattr(module, "set_scale"):
                module.set_scale("first", 0.1)

    def replace() -> None:
        tuned.set_adapter("second")
        tuned.delete_adapter("first")
        tuned.add_adapter("first", lora(TEXT + ENCODER["qwen2_vl"]))
        tuned.set_adapter("first")

    def overwrite() -> None:
        for name, weights in tuned.named_parameters():
            if "lora_B.first" in name:
                weights.data.mul_(-1)

    return {
        "switched": lambda: tuned.set_adapter("second"),
        "disabled": tuned.base_model.disable_adapter_layers,
        "merged": lambda: tuned.merge_adapter(["second"]),
        "scaled": rescale,
        "replaced under its name": replace,
        "written through .data": overwrite,
        "merged for good": tuned.merge_and_unload,
    }


@pytest.mark.parametrize("how", list(switches(adapted("qwen2_vl"))))
def test_a_kept_look_never_mixes_adapters(how: str) -> None:
    tuned = adapted("qwen2_vl")
    vlm = arr_coc.wrap(tuned, processor("qwen2_vl"))
    look = vlm.look(picture())
    before = ask(vlm, look, budget="all")
    switches(tuned)[how]()
    plain = arr_coc.wrap(tuned if how != "merged for good" else unwrap(tuned), processor("qwen2_vl"))
    fresh = ask(plain, budget="all")
    assert fresh.ids.tolist() != before.ids.tolist() or how == "merged for good"
    assert ask(vlm, look, budget="all").ids.tolist() == fresh.ids.tolist()
    assert len(look.encoded) == 2


def test_merging_into_a_plain_model_is_seen() -> None:
    """peft merges through `.data`, which torch's versions do not count."""
    model = families.model("qwen2_vl")
    vlm = arr_coc.wrap(model, processor("qwen2_vl"))
    look = vlm.look(picture())
    before, state = ask(vlm, look, budget="all"), vlm.adapter.encoder_state()
    tuned = peft.get_peft_model(model, lora(TEXT + ENCODER["qwen2_vl"]))
    tuned.merge_and_unload()
    assert vlm.adapter.encoder_state() != state
    fresh = ask(vlm, budget="all")
    assert ask(vlm, look, budget="all").ids.tolist() == fresh.ids.tolist() != before.ids.tolist()


def test_switching_back_uses_the_cached_encoding() -> None:
    tuned = adapted("qwen2_vl")
    vlm = arr_coc.wrap(tuned, processor("qwen2_vl"))
    look, answers = vlm.look(picture()), []
    for name in ("first", "second", "first", "second"):
        tuned.set_adapter(name)
        answers.append(ask(vlm, look))
    assert len(look.encoded) == 2
    assert same(answers[0], answers[2])
    assert same(answers[1], answers[3])
    assert answers[0].ids.tolist() != answers[1].ids.tolist()


def test_adapters_of_the_language_model_share_an_encoding() -> None:
    tuned = adapted("qwen2_vl", TEXT)
    vlm = arr_coc.wrap(tuned, processor("qwen2_vl"))
    look = vlm.look(picture())
    first = ask(vlm, look)
    tuned.set_adapter("second")
    assert ask(vlm, look).ids.tolist() != first.ids.tolist()
    assert len(look.encoded) == 1


def test_a_remembered_answer_is_not_continued_with_another_adapter() -> None:
    tuned = adapted("qwen2_vl", TEXT)
    vlm = arr_coc.wrap(tuned, processor("qwen2_vl"))
    answer = ask(vlm, remember=True)
    expected = vlm.ask(None, "And?", after=answer, **GREEDY)
    tuned.set_adapter("second")
    with pytest.raises(
        PromptError, match="computed with the adapter 'first', and now the model has the adapter 'second'"
    ):
        vlm.ask(None, "And?", after=answer, **GREEDY)
    with tuned.disable_adapter(), pytest.raises(PromptError, match="now the model has no adapter: switch back"):
        vlm.ask(None, "And?", after=answer, **GREEDY)
    tuned.set_adapter("first")
    assert vlm.ask(None, "And?", after=answer, **GREEDY).ids.tolist() == expected.ids.tolist()
    with torch.no_grad():
        next(weights for name, weights in tuned.named_parameters() if "lora_B.first" in name).mul_(2)
    with pytest.raises(PromptError, match="the model's weights changed after it"):
        vlm.ask(None, "And?", after=answer, **GREEDY)


def test_one_adapter_for_a_batch() -> None:
    vlm = arr_coc.wrap(adapted("qwen2_vl", TEXT), processor("qwen2_vl"))
    with pytest.raises(PromptError, match=r"got adapter_names: call set_adapter"):
        ask(vlm, adapter_names=["first"])


def test_token_embeddings_have_an_identity_for_each_adapter() -> None:
    tuned = adapted("qwen2_vl")
    tokens = VlmTokens(arr_coc.wrap(tuned, processor("qwen2_vl")))
    first = tokens.identity
    assert tokens.identity == first
    tuned.set_adapter("second")
    assert tokens.identity != first
    tuned.set_adapter("first")
    assert tokens.identity == first


def test_a_trained_layer_fits_a_model_with_adapters_in_its_language_part() -> None:
    plain = wrapped("qwen2_vl").adapter
    layer = ArrCocLayer(config_for(plain, width=8, heads=2))
    assert model_identity(adapter(adapted("qwen2_vl", [*TEXT, "lm_head"]))) == model_identity(plain)
    fit_to_model(layer, adapter(adapted("qwen2_vl", TEXT)))
    with pytest.raises(LayerError, match="got one with adapters in its encoder"):
        fit_to_model(layer, adapter(adapted("qwen2_vl")))


def test_states_are_equal_while_nothing_changes() -> None:
    model = families.model("llava")
    state = weights_state(model)
    ask(arr_coc.wrap(model, processor("llava")))
    assert weights_state(model) == state
    assert weights_state(model.bfloat16()) != state


# Compiled models.


def compiled(model: Any, how: str) -> Any:
    """Compiled without code generation: what counts is that compiled code ignores hooks."""
    if how == "torch.compile(model)":
        return torch.compile(model, backend="eager")
    if how == "language_model.compile()":
        model.model.language_model.compile(backend="eager")
    elif how == "its parts":
        model.model.visual = torch.compile(model.model.visual, backend="eager")
        model.model.language_model = torch.compile(model.model.language_model, backend="eager")
    return model


@pytest.mark.filterwarnings("ignore::UserWarning")  # dynamo's hints on graph breaks
@pytest.mark.parametrize("how", ["torch.compile(model)", "language_model.compile()", "its parts"])
def test_a_compiled_model_selects_what_the_plain_one_does(how: str) -> None:
    vlm, plain = arr_coc.wrap(compiled(families.model("qwen2_vl"), how), processor("qwen2_vl")), wrapped("qwen2_vl")
    with torch.no_grad():
        vlm.adapter.model(
            **stock_inputs(vlm, QUESTION, [picture()]), use_cache=False
        )  # compiled before there are hooks
    for options in ({}, {"glance": "60%"}, {"selector": "visionzip"}):
        ours, theirs = (
            one.prepare(picture(), QUESTION, budget="40%", **options).allocations[0] for one in (vlm, plain)
        )
        assert ours.fallback == ""
        assert ours.keep.tolist() == theirs.keep.tolist()
    once = {"budget": "40%", "selector": "fastv", "max_new_tokens": 1}
    assert same(vlm.ask(picture(), QUESTION, **once), plain.ask(picture(), QUESTION, **once))


def test_a_compiled_model_answers_as_its_own_generate_does() -> None:
    model = torch.compile(families.model("qwen2_vl"), backend="eager")
    vlm = arr_coc.wrap(model, processor("qwen2_vl"))
    assert ask(vlm, budget="all").ids.tolist() == answer_of(model, stock_inputs(vlm, QUESTION, [picture()]))
    assert same(ask(vlm), ask(wrapped("qwen2_vl")))


def test_threads_share_the_compilers_stance() -> None:
    """One may leave before another that entered later: compiled code stays eager for both, and is compiled after them."""
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *given: calls.append(1) or graph(*given)

    double = torch.compile(lambda x: x * 2, backend=backend)
    one, other = without_compilation(), without_compilation()
    one.__enter__()
    other.__enter__()
    double(torch.ones(2))
    one.__exit__(None, None, None)
    double(torch.ones(2))
    assert calls == []
    other.__exit__(None, None, None)
    double(torch.ones(2))
    assert calls == [1]


def test_wrappers_inside_wrappers() -> None:
    model = families.model("qwen2_vl")
    tuned = peft.get_peft_model(model, lora(TEXT))
    assert unwrap(torch.compile(tuned, backend="eager")) is model
    assert unwrap(model) is model
