"""The loss of an answer under an attention bias for each cell.

The prompt is that of `vlm.ask`, followed by the answer. The bias is added to the attention logits of the cells, in every layer
and head. With the bias of a hard selection, the logits are those of the pruned prompt. No module is replaced: the bias is part
of the attention mask, which `sdpa` and `eager` attention add to the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from arr_coc.adapters import attention_probe
from arr_coc.adapters.processor import assistant_message
from arr_coc.errors import AllocationError, ModelError, PromptError
from arr_coc.types.answer import Prepared

if TYPE_CHECKING:
    from arr_coc.vlm.look import Look
    from arr_coc.vlm.model import VLM

ATTENTIONS = ("sdpa", "eager")  # implementations that accept a float mask


def answer_loss(
    vlm: VLM,
    look: Look,
    question: str,
    answer: str,
    bias: torch.Tensor | None = None,
    *,
    keep: Any = None,
    frozen: bool = True,
) -> torch.Tensor:
    """The mean cross-entropy of an answer's tokens and its end token, with teacher forcing.

    `bias` `[N]` has a value for every cell of all pictures; gradients flow back to it. `keep`: only these cells are in the
    prompt, as with `allocation=` elsewhere, which is faster; the bias `[K]` is then theirs. `frozen`: no gradients for the
    model's parameters, even if they require them.
    """
    logits, wanted = answer_logits(vlm, look, question, answer, bias, keep, frozen)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, wanted.to(logits.device))


def answer_logits(
    vlm: VLM, look: Look, question: str, answer: str, bias: torch.Tensor | None = None, keep: Any = None, frozen: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logits `[A + 1, V]` for the answer's tokens and its end token, and these tokens `[A + 1]`."""
    prepared, wanted = _prepare(vlm, look, question, answer, keep)
    return _logits(vlm, prepared, wanted, bias, frozen), wanted


@torch.no_grad()
def answers_exactly(vlm: VLM, look: Look, question: str, answer: str, keep: Any = None) -> bool:
    """Whether greedy decoding from the cells `keep` gives exactly this answer and its end."""
    logits, wanted = answer_logits(vlm, look, question, answer, keep=keep)
    return bool((logits.argmax(-1).cpu() == wanted.cpu()).all())


@torch.no_grad()
def answer_attention(vlm: VLM, look: Look, question: str, answer: str) -> tuple[torch.Tensor, bool]:
    """The attention `[N]` to each cell while the answer is written, and whether greedy decoding would write it.

    Attention is averaged over the answer's tokens, the heads, and the later half of the layers.
    """
    prepared, wanted = _prepare(vlm, look, question, answer, None)
    said = wanted[:-1]
    given, queries = attention_probe.append_answer(prepared, said)
    layers = attention_probe.late_layers(vlm.adapter)
    with attention_probe.record_attention(vlm.adapter, layers, queries) as maps:
        logits = _run(vlm, given, len(wanted))
    cells = attention_probe.split_by_visual(prepared, attention_probe.mean_attention(maps))
    return torch.cat(cells), bool((logits.argmax(-1).cpu() == wanted).all())


def _prepare(vlm: VLM, look: Look, question: str, answer: str, keep: Any) -> tuple[Prepared, torch.Tensor]:
    """The prompt as in `ask`, and the answer's tokens `[A + 1]` with its end token."""
    prepared = vlm.prepare(look=look, text=question, selector="all", allocation=keep)
    if not prepared.allocations:
        raise PromptError("expected a look with a picture in it, got one without")
    tokens = vlm.prompter.ids(answer)
    if len(tokens) == 0:
        raise PromptError("expected an answer to learn from, got an empty one")
    return prepared, torch.cat([tokens, torch.tensor([_end_token(vlm, prepared, answer)])])


def _end_token(vlm: VLM, prepared: Prepared, answer: str) -> int:
    """The token that ends an answer: of the model's end tokens, the one that its chat template writes."""
    ends = vlm.model.generation_config.eos_token_id
    ends = list(ends) if isinstance(ends, list | tuple) else [] if ends is None else [ends]
    if len(ends) > 1:
        said = vlm.prompter.render([*prepared.messages[0], assistant_message(answer)])
        before = prepared.texts[0] + answer
        for token in vlm.prompter.ids(said[len(before) :]).tolist() if said.startswith(before) else []:
            if token in ends:
                return int(token)
    if ends:
        return int(ends[0])
    end = vlm.prompter.tokenizer.eos_token_id
    if end is None:
        raise ModelError("expected a model whose generation_config or tokenizer names an end token, got none")
    return int(end)


def _logits(
    vlm: VLM, prepared: Prepared, wanted: torch.Tensor, bias: torch.Tensor | None, frozen: bool
) -> torch.Tensor:
    """The logits `[A + 1, V]` for the tokens `wanted`, with the cells' bias `[N]`."""
    given, _ = attention_probe.append_answer(prepared, wanted[:-1])
    if bias is not None:
        _check_checkpointing(vlm, bias, frozen)
        given["attention_mask"] = _mask(vlm, prepared, given["input_ids"].shape[1], bias)
    with _frozen(vlm.model) if frozen else nullcontext(), _math_attention(bias):
        return _run(vlm, given, len(wanted))


def _run(vlm: VLM, given: dict[str, Any], count: int) -> torch.Tensor:
    """The logits `[count, V]` at the last tokens."""
    return vlm.model(**given, use_cache=False, logits_to_keep=count).logits[0, -count:]


def _mask(vlm: VLM, prepared: Prepared, length: int, bias: torch.Tensor) -> torch.Tensor:
    """The attention mask `[1, 1, L, L]`: causal, with the bias `[N]` in the columns of the cells."""
    chosen = vlm.adapter.config.get_text_config()._attn_implementation
    if chosen not in ATTENTIONS:
        raise ModelError(
            f"expected a model with attn_implementation='sdpa' or 'eager' to train gates, got {chosen!r}, which accepts "
            "no float mask: load it with attn_implementation='sdpa'"
        )
    places = torch.cat([torch.searchsorted(prepared.source[0], places) for places in prepared.places])
    if bias.shape != places.shape:
        raise AllocationError(
            f"expected a bias for each of the {len(places)} cells in the prompt, got shape {list(bias.shape)}"
        )
    dtype, device = vlm.model.get_input_embeddings().weight.dtype, vlm.device
    if dtype == torch.float16 and bias.requires_grad:
        raise ModelError(
            "expected a model in bfloat16 or float32 to train gates, got float16, in which the gradient of a dropped "
            "cell underflows: load it with dtype='bfloat16'"
        )
    bias = bias.to(device, dtype)
    columns = torch.zeros(length, dtype=dtype, device=device).index_put((places.to(device),), bias)
    ahead = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    return columns.expand(length, length).masked_fill(ahead, torch.finfo(dtype).min)[None, None]


def _check_checkpointing(vlm: VLM, bias: torch.Tensor, frozen: bool) -> None:
    """Raise where gradient checkpointing would lose the bias's gradient, or run a layer differently the second time."""
    layer = vlm.adapter.text_model.layers[0]
    if not (bias.requires_grad and torch.is_grad_enabled() and layer.training):
        return
    if not getattr(layer, "gradient_checkpointing", False):
        return
    if getattr(layer._gradient_checkpointing_func, "keywords", {}).get("use_reentrant", True):
        raise ModelError(
            "expected gradient checkpointing without reentrance to train gates, got it with use_reentrant=True, which loses "
            "their gradient: pass gradient_checkpointing_kwargs={'use_reentrant': False}"
        )
    if frozen and any(weights.requires_grad for weights in vlm.model.parameters()):
        raise ModelError(
            "expected a frozen model to train gates with gradient checkpointing, which runs its layers a second time, got "
            "weights that require gradients: call model.requires_grad_(False), or pass frozen=False"
        )


def _math_attention(bias: torch.Tensor | None) -> AbstractContextManager[None]:
    """Fused attention on a GPU has no mask gradient for some lengths; the math kernel has."""
    fused = bias is not None and bias.requires_grad and bias.is_cuda
    return sdpa_kernel(SDPBackend.MATH) if fused else nullcontext()


@contextmanager
def _frozen(model: torch.nn.Module) -> Iterator[None]:
    """Inside, no parameter requires a gradient; afterwards those do that did before."""
    trainable = [weights for weights in model.parameters() if weights.requires_grad]
    for weights in trainable:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in trainable:
            weights.requires_grad_(True)
