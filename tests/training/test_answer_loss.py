"""With zero bias the answer loss is the stock model's, and with hard gates that of the pruned prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.errors import AllocationError, ModelError, PromptError
from arr_coc.training.answer_loss import answer_attention, answer_logits, answer_loss
from arr_coc.training.gates import METHODS, _StraightThrough, hard_gates, hard_top, log_gates
from arr_coc.types.answer import Answer
from tests.adapters import families, tiny_vlm
from tests.adapters.tiny_vlm import picture
from tests.precision import full_precision
from tests.training import squares

QUESTION, ANSWER = "Which?", "It is 4"


def logits_of(*asked: Any, **options: Any) -> torch.Tensor:
    return answer_logits(*asked, **options)[0]


@lru_cache
def wrapped(family: str) -> Any:
    if family == "qwen3_vl_moe":
        return arr_coc.wrap(families.model("qwen3_vl_moe"), tiny_vlm.processor("qwen3_vl"))
    return tiny_vlm.wrapped(family) if family in families.QWEN else tiny_vlm.build(family)


FAMILIES = [*families.QWEN, "qwen3_vl_moe", *tiny_vlm.FLAT]


def cells(vlm: Any, look: Any) -> int:
    return sum(allocation.n for allocation in vlm.prepare(look=look, text=QUESTION, selector="all").allocations)


def scored(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def written(vlm: Any, inputs: Any) -> torch.Tensor:
    """The model's own logits for the answer's tokens and its end, behind prepared inputs: `[A + 1, V]`."""
    tokens = vlm.prompter.ids(ANSWER)[None]
    steps = torch.arange(1, tokens.shape[1] + 1)
    given = dict(inputs)
    given["input_ids"] = torch.cat([given["input_ids"], tokens], 1)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["position_ids"] = torch.cat([given["position_ids"], given["position_ids"][..., -1:] + steps], -1)
    return vlm.model(**given).logits[0, -tokens.shape[1] - 1 :]


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_hard_gates_equal_the_pruned_prompt_and_zero_bias_the_stock_model(family: str) -> None:
    vlm = wrapped(family)
    look = vlm.look([picture(90, 40), picture(50, 77, 1)])
    n = cells(vlm, look)
    dense = written(vlm, vlm.prepare(look=look, text=QUESTION, selector="all"))
    for bias in (None, torch.zeros(n)):
        assert torch.allclose(logits_of(vlm, look, QUESTION, ANSWER, bias), dense, atol=1e-4)
    kept = hard_top(scored(n), n // 4)
    sizes = [allocation.n for allocation in vlm.prepare(look=look, text=QUESTION, selector="all").allocations]
    pruned = written(vlm, vlm.prepare(look=look, text=QUESTION, allocation=list(kept.split(sizes))))
    assert (pruned - dense).abs().max() > 1e-2
    assert torch.allclose(logits_of(vlm, look, QUESTION, ANSWER, hard_gates(kept)), pruned, atol=1e-4)
    keep = list(kept.split(sizes))
    assert torch.allclose(logits_of(vlm, look, QUESTION, ANSWER, keep=keep), pruned, atol=1e-4)
    some = torch.zeros(n // 4)
    assert torch.allclose(logits_of(vlm, look, QUESTION, ANSWER, some, keep=keep), pruned, atol=1e-4)


@torch.no_grad()
def test_hard_gates_of_a_video_equal_the_pruned_prompt() -> None:
    vlm = wrapped("qwen3_vl")
    look = vlm.look(videos=[[picture(48, 40, i) for i in range(4)]])
    kept = hard_top(scored(cells(vlm, look)), 9)
    pruned = written(vlm, vlm.prepare(look=look, text=QUESTION, allocation=kept))
    assert torch.allclose(logits_of(vlm, look, QUESTION, ANSWER, hard_gates(kept)), pruned, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "llava_next", "internvl", "idefics3"])
def test_cold_log_gates_and_straight_through_equal_the_pruned_prompt(family: str) -> None:
    vlm = wrapped(family)
    look = vlm.look(picture(90, 40))
    scores = scored(cells(vlm, look))
    hard = logits_of(vlm, look, QUESTION, ANSWER, hard_gates(hard_top(scores, 12)))
    off = [
        (logits_of(vlm, look, QUESTION, ANSWER, log_gates(scores, 12, "log-gate", t)) - hard).abs().max()
        for t in (1.0, 0.1, 1e-4)
    ]
    assert off[2] < 1e-4 < off[1] < off[0]
    through = logits_of(vlm, look, QUESTION, ANSWER, log_gates(scores, 12, "straight-through"))
    assert torch.equal(through, hard)


def test_the_loss_covers_the_answer_and_its_end_token() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    wanted = torch.tensor([*map(ord, ANSWER), families.vocabulary.END])
    expected = F.cross_entropy(written(vlm, vlm.prepare(look=look, text=QUESTION, selector="all")), wanted)
    assert torch.allclose(answer_loss(vlm, look, QUESTION, ANSWER, frozen=True), expected, atol=1e-5)


def test_the_end_token_is_that_of_the_chat_template(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    right = answer_loss(vlm, look, QUESTION, ANSWER)
    for ends in ([families.PAD, families.vocabulary.END], None):
        monkeypatch.setattr(vlm.model.generation_config, "eos_token_id", ends)
        assert torch.equal(answer_loss(vlm, look, QUESTION, ANSWER), right)
    monkeypatch.setattr(vlm.model.generation_config, "eos_token_id", [families.PAD, 65])
    assert not torch.equal(answer_loss(vlm, look, QUESTION, ANSWER), right)


def differences(loss: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, places: Any, step: float) -> Any:
    """Slopes of a loss by finite differences, at some places."""
    found = []
    for place in places:
        up, down = at.clone(), at.clone()
        up[place] += step
        down[place] -= step
        found.append((loss(up) - loss(down)).item() / (2 * step))
    return torch.tensor(found)


@lru_cache
def doubled(family: str, attention: str) -> Any:
    """A model in double precision (except its norms), for finite differences."""
    return arr_coc.wrap(families.model(family, attention).double(), tiny_vlm.processor(family))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", families.QWEN)
def test_score_gradients_equal_finite_differences(family: str, attention: str) -> None:
    vlm = doubled(family, attention)
    look = vlm.look(picture())
    scores = scored(cells(vlm, look)).double().requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return answer_loss(vlm, look, QUESTION, ANSWER, log_gates(values, 10, "log-gate"))

    (found,) = torch.autograd.grad(loss(scores), scores)
    with torch.no_grad():
        expected = differences(loss, scores.detach(), range(0, 63, 9), 1e-2)
    assert torch.allclose(found[::9].float(), expected, rtol=1e-2, atol=2e-5)
    assert found.abs().min() > 0


def test_straight_through_gradients_of_dropped_cells_are_finite_differences() -> None:
    """The gradient of a dropped cell's gate is the slope of the loss as the gate opens."""
    vlm = doubled("qwen2_vl", "sdpa")
    look = vlm.look(picture())
    kept = hard_top(scored(63), 10)

    gates = kept.double().requires_grad_()
    (found,) = torch.autograd.grad(answer_loss(vlm, look, QUESTION, ANSWER, _StraightThrough.apply(gates, kept)), gates)
    with torch.no_grad():
        shut = answer_loss(vlm, look, QUESTION, ANSWER, hard_gates(kept))
        for place in (~kept).nonzero()[::10, 0].tolist():
            ajar = kept.double().clamp_min(1e-18)
            ajar[place] = step = 1e-5 / found[place].abs().item()
            change = (answer_loss(vlm, look, QUESTION, ANSWER, ajar.log()) - shut) / step
            assert found[place].item() == pytest.approx(change.item(), rel=0.1)
    assert found.abs().min() > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_every_score_gets_a_gradient_and_the_model_none(family: str, method: str) -> None:
    vlm = wrapped(family)
    look = vlm.look(picture(90, 40))
    scores = scored(cells(vlm, look)).requires_grad_()
    before = {name: weights.clone() for name, weights in vlm.model.state_dict().items()}
    dice = torch.Generator().manual_seed(0)
    answer_loss(vlm, look, QUESTION, ANSWER, log_gates(scores, 8, method, generator=dice)).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad != 0).all()
    assert all(weights.grad is None and weights.requires_grad for weights in vlm.model.parameters())
    assert all(torch.equal(before[name], weights) for name, weights in vlm.model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())


def checkpointed(family: str, **kwargs: Any) -> Any:
    vlm = tiny_vlm.build(family)
    vlm.model.train()
    vlm.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    return vlm


def gradients(vlm: Any, look: Any, frozen: bool) -> list[torch.Tensor]:
    """Of the scores, and of all weights that have one."""
    scores = scored(cells(vlm, look)).requires_grad_()
    answer_loss(vlm, look, QUESTION, ANSWER, log_gates(scores, 8, "log-gate"), frozen=frozen).backward()
    found = [scores.grad, *(weights.grad for weights in vlm.model.parameters() if weights.grad is not None)]
    return [grad.clone() for grad in found if grad is not None]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_gradient_checkpointing_changes_no_gradient(family: str, frozen: bool) -> None:
    plain, ours = tiny_vlm.build(family), checkpointed(family, use_reentrant=False)
    if frozen:
        ours.model.requires_grad_(False)
    calls: list[int] = []
    ours.adapter.text_model.layers[0].input_layernorm.register_forward_pre_hook(lambda *_: calls.append(1))
    expected, found = (gradients(vlm, vlm.look(picture(90, 40)), frozen) for vlm in (plain, ours))
    assert len(calls) == 2  # the layer ran a second time for its gradient
    assert (len(found) == 1) == frozen
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl"])
def test_gradient_checkpointing_in_the_encoder_changes_no_gradient(family: str) -> None:
    grads, counts = [], []
    for vlm in (tiny_vlm.build(family), checkpointed(family, use_reentrant=False)):
        calls: list[int] = []
        norm = vlm.adapter.encoder.blocks[0].norm1 if family == "qwen2_5_vl" else vlm.adapter.blocks[0].layernorm_before
        norm.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        prepared = vlm.prepare(picture(64, 64), QUESTION, glance=12, budget=9, selector="uniform", gradients=True)
        vlm.model(**prepared, use_cache=False).logits.logsumexp(-1).sum().backward()
        grads.append([weights.grad for weights in vlm.model.parameters() if weights.grad is not None])
        counts.append(len(calls))
    assert counts[1] == 2 * counts[0]
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(*grads, strict=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradient_checkpointing_that_loses_gradients_is_refused() -> None:
    vlm = checkpointed("qwen2_vl", use_reentrant=False)
    with pytest.raises(ModelError, match=r"expected a frozen model .* call model.requires_grad_\(False\)"):
        gradients(vlm, vlm.look(picture()), frozen=True)
    reentrant = checkpointed("qwen2_vl", use_reentrant=True)
    with pytest.raises(ModelError, match=r"got it with use_reentrant=True"):
        gradients(reentrant, reentrant.look(picture()), frozen=False)
    vlm.model.eval()  # nothing is run a second time
    assert len(gradients(vlm, vlm.look(picture()), frozen=True)) == 1


def test_a_model_that_checkpoints_gradients_does_not_generate() -> None:
    """Its layers get no cache: every token after the first would see itself alone."""
    vlm = checkpointed("qwen2_vl", use_reentrant=False)
    with pytest.raises(ModelError, match=r"trains with gradient checkpointing, .*: call model.eval\(\) first"):
        vlm.ask(picture(), QUESTION, **tiny_vlm.GREEDY)
    vlm.model.eval()
    plain = tiny_vlm.wrapped("qwen2_vl").ask(picture(), QUESTION, **tiny_vlm.GREEDY)
    assert vlm.ask(picture(), QUESTION, **tiny_vlm.GREEDY).ids.tolist() == plain.ids.tolist()


@pytest.mark.parametrize("method", ["log-gate", "straight-through"])
def test_half_precision_gives_nearly_the_same_gradient(method: str) -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        vlm = tiny_vlm.build("llava")
        vlm.model.to(dtype)
        scores = scored(16).requires_grad_()
        answer_loss(vlm, vlm.look(picture()), QUESTION, ANSWER, log_gates(scores, 6, method)).backward()
        found.append(scores.grad)
    assert F.cosine_similarity(found[0], found[1], dim=0) > 0.97
    vlm.model.to(torch.float16)
    with pytest.raises(ModelError, match="bfloat16 or float32 to train gates, got float16"):
        answer_loss(vlm, vlm.look(picture()), QUESTION, ANSWER, log_gates(scores, 6, method))


def test_a_hard_selection_has_no_gradient() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    scores = scored(63).requires_grad_()
    assert not answer_loss(vlm, look, QUESTION, ANSWER, hard_gates(hard_top(scores, 9))).requires_grad
    assert not answer_loss(vlm, look, QUESTION, ANSWER, keep=hard_top(scores, 9)).requires_grad


def test_a_few_steps_on_the_scores_lower_the_loss() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    for method in ("log-gate", "straight-through"):
        scores = torch.zeros(63, requires_grad=True)
        optimizer = torch.optim.Adam([scores], lr=0.3)
        first = answer_loss(vlm, look, QUESTION, ANSWER, hard_gates(hard_top(scores, 8))).item()
        for _ in range(20):
            optimizer.zero_grad()
            answer_loss(vlm, look, QUESTION, ANSWER, log_gates(scores, 8, method)).backward()
            optimizer.step()
        assert answer_loss(vlm, look, QUESTION, ANSWER, keep=hard_top(scores, 8)).item() < first


def test_the_picture_is_encoded_once() -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    ran: list[int] = []
    handle = vlm.model.model.visual.register_forward_hook(lambda *given: ran.append(1))
    try:
        for _ in range(3):
            answer_loss(vlm, look, QUESTION, ANSWER, torch.zeros(63))
    finally:
        handle.remove()
    assert len(ran) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_answer_attention_equals_vlm_point(family: str) -> None:
    vlm = wrapped(family)
    look = vlm.look([picture(90, 40), picture(50, 77, 1)])
    answer = vlm.ask(look, QUESTION, selector="all", max_new_tokens=8, do_sample=False)
    found, _ = answer_attention(vlm, look, QUESTION, ANSWER)
    prepared = vlm.prepare(look=look, text=QUESTION, selector="all")
    expected = vlm.point(prepared, Answer(ANSWER, answer.allocations, {}, vlm.prompter.ids(ANSWER)))
    assert found.sum() < 1
    for mine, theirs in zip(found.split([len(one) for one in expected]), expected, strict=True):
        assert torch.allclose(mine / mine.max(), theirs, atol=1e-5)
    assert not any(module._forward_pre_hooks for module in vlm.model.modules())


def test_an_answer_is_right_only_if_greedy_decoding_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    greedy = vlm.ask(look, QUESTION, selector="all", max_new_tokens=3, do_sample=False, eos_token_id=None).ids
    said = "".join(map(chr, greedy.tolist()[:2]))
    assert said.isprintable()
    monkeypatch.setattr(vlm.model.generation_config, "eos_token_id", int(greedy[2]))
    assert answer_attention(vlm, look, QUESTION, said)[1]
    assert not answer_attention(vlm, look, QUESTION, said + "x")[1]
    assert not answer_attention(vlm, look, QUESTION, said[:1])[1]


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = wrapped("qwen2_vl")
    look = vlm.look(picture())
    with pytest.raises(AllocationError, match=r"each of the 63 cells in the prompt, got shape \[4\]"):
        answer_loss(vlm, look, QUESTION, ANSWER, torch.zeros(4))
    with pytest.raises(PromptError, match="an answer to learn from, got an empty one"):
        answer_loss(vlm, look, QUESTION, "", torch.zeros(63))
    with pytest.raises(PromptError, match="a look with a picture"):
        answer_loss(vlm, vlm.look(), QUESTION, ANSWER)
    monkeypatch.setattr(vlm.model.config.get_text_config(), "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ModelError, match="'sdpa' or 'eager' to train gates, got 'flash_attention_2'"):
        answer_loss(vlm, look, QUESTION, ANSWER, torch.zeros(63))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("question", ["Which?", "Which one?", "Which one is it?", "Which one is it, then?"])
def test_gate_gradients_on_cuda_equal_those_on_the_cpu(question: str) -> None:
    """Fused attention has no mask gradient for some lengths."""
    grads = []
    for device in ("cpu", "cuda"):
        vlm = squares.model()
        vlm.model.to(device)
        with full_precision():  # from the encoder on: the look keeps what it encodes
            look = vlm.look(picture(64, 64))
            cells = vlm.prepare(look=look, text=question).allocations[0].n
            bias = torch.zeros(cells, device=device, requires_grad=True)
            answer_loss(vlm, look, question, "red", bias).backward()
        assert bias.grad is not None
        grads.append(bias.grad.cpu())
    assert torch.allclose(*grads, atol=1e-4)
