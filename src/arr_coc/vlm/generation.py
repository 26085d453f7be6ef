"""Generating answers from prepared prompts, and going on from them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from arr_coc.adapters import layer_pruning as inside
from arr_coc.adapters.loading import logits_callback
from arr_coc.adapters.processor import assistant_message
from arr_coc.errors import PromptError
from arr_coc.timing import Stopwatch, together
from arr_coc.types.answer import Answer, Prepared, Turn

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM


def generate(
    vlm: VLM, prepared: Prepared, late: inside.PruningRequest | None, remember: bool, options: dict[str, Any]
) -> list[Answer]:
    """Run the model on a prepared prompt."""
    if remember and (why := _forgetting(prepared, options)):
        raise PromptError(why)
    watch = Stopwatch(vlm.device)
    inputs = prepared.make()
    with torch.no_grad(), inside.prune_layers(vlm.adapter, prepared, late) as pruned:
        result = timed(vlm, inputs, watch, options)
    allocations = prepared.allocations if pruned is None else pruned.allocations(prepared)
    timings = together(prepared.timings, watch)
    copies = len(result.sequences) // prepared.rows
    answers = []
    for number, sequence in enumerate(result.sequences):
        row = number // copies
        ids = _answer_ids(vlm, sequence[prepared.length :], options)
        text = "" if vlm._prompter is None else vlm._prompter.decode(ids)
        turn = _turn(vlm, prepared, inputs, result.past_key_values, ids) if remember else None
        mine = tuple(a for a in allocations if a.row == row)
        answers.append(Answer(text, mine, timings, ids, int((prepared.source[row] >= 0).sum()), turn))
    return answers


def _forgetting(prepared: Prepared, options: Mapping[str, Any]) -> str:
    """Why an answer would leave nothing that a next question could go on from; empty where it does."""
    config = options.get("generation_config")
    plain = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "cache_implementation": "dynamic"}
    for name, value in plain.items():
        wanted = options.get(name, getattr(config, name, None))
        if wanted is not None and wanted != value:
            return f"an answer with {name}={wanted!r} cannot be remembered: expected one plain sequence"
    if prepared.rows > 1:
        return f"only one conversation at a time can be remembered: expected one question, got {prepared.rows}"
    if not prepared.messages:
        return "only answers to text or messages can be remembered: model inputs and raw prompts have no turns"
    return ""


def follow_up(vlm: VLM, answer: Answer, question: str, options: dict[str, Any]) -> Answer:
    """The next question of a conversation, on the cache that the last answer left: nothing is read again."""
    turn = answer.turn if isinstance(answer, Answer) else None
    if turn is None:
        raise PromptError("this answer cannot be gone on from: ask it with remember=True")
    from arr_coc.vlm.model import PREPARE_OPTIONS

    wrong = sorted(set(options) & PREPARE_OPTIONS)
    if wrong:
        raise PromptError(f"a follow-up keeps the cells that were kept: {', '.join(wrong)} cannot change now")
    prompter = vlm.prompter
    said = (*turn.messages, {"role": "user", "content": [{"type": "text", "text": question}]})
    prompt = prompter.render(said)
    if not prompt.startswith(turn.prompt):
        raise PromptError("this model's chat template rewrites earlier turns, so its cache cannot be gone on from")
    fresh = prompter.ids(prompt[len(turn.prompt) :])[None].to(vlm.device)
    steps = torch.arange(1, fresh.shape[1] + 1, device=fresh.device)
    new = turn.positions[..., -1:] + steps
    prepared = Prepared(
        make=lambda: {
            "input_ids": torch.cat([turn.ids, fresh], 1),
            "attention_mask": torch.cat([turn.mask, torch.ones_like(fresh)], 1),
            "position_ids": torch.cat([turn.positions, new], -1),
            "past_key_values": copy.deepcopy(turn.cache),  # `generate` writes into it; another follow-up may start here
        },
        names=("input_ids", "attention_mask", "position_ids", "past_key_values"),
        length=turn.ids.shape[1] + fresh.shape[1],
        allocations=answer.allocations,
        source=torch.cat([turn.source, (turn.source.max() + steps.cpu())[None]], 1),
        places=turn.places,
        messages=(said,),
        texts=(prompt,),
    )
    remember = options.pop("remember", not _forgetting(prepared, options))
    return generate(vlm, prepared, None, remember, options)[0]


def conversation(messages: Any) -> tuple[list[list[Mapping[str, Any]]], list[list[Any]], list[list[Any]]]:
    """Chat messages (one conversation, or a list of them), and the images and videos inside each."""
    if not isinstance(messages, list | tuple) or len(messages) == 0:
        raise PromptError("expected a list of messages, at least one")
    talks = [messages] if isinstance(messages[0], Mapping) else list(messages)
    clean, images, videos = [], [], []
    for talk in talks:
        if not isinstance(talk, list | tuple) or len(talk) == 0:
            raise PromptError("expected conversations as lists of messages, none of them empty")
        found: dict[str, list[Any]] = {"image": [], "video": []}
        clean.append([_message(message, found) for message in talk])
        images.append(found["image"])
        videos.append(found["video"])
    return clean, images, videos


def _message(message: Any, found: dict[str, list[Any]]) -> Mapping[str, Any]:
    """A message without its pictures, which go into `found`."""
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise PromptError("expected messages as dicts with role and content")
    content = message["content"]
    if isinstance(content, str):
        return message
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        raise PromptError("expected a message's content as text or a list of parts with a type each")
    parts = []
    for part in content:
        kind = part.get("type")
        if kind in found:
            if part.get(kind) is None:
                raise PromptError(f"expected the {kind} itself under {kind!r} in the message")
            if "fps" in part:
                raise PromptError("expected fps beside the messages, got it inside one")
            found[kind].append(part[kind])
        elif kind == "text" and not isinstance(part.get("text"), str):
            raise PromptError("expected the words under 'text' in the message's part")
        parts.append({"type": kind} if kind in found else part)
    return {**message, "content": parts}


def last_words(talk: Sequence[Mapping[str, Any]]) -> str:
    """The text of a conversation's last message."""
    content = talk[-1]["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


def timed(vlm: VLM, inputs: dict[str, Any], watch: Stopwatch, options: dict[str, Any]) -> Any:
    """`model.generate`, its time split at the first token."""
    start = watch.mark()
    first: list[Any] = []
    callbacks = logits_callback(lambda: first.append(watch.mark()), options.get("logits_processor"))
    own = dict(options) | {"logits_processor": callbacks}
    if own.get("generation_config") is not None:
        own["generation_config"] = copy.deepcopy(own["generation_config"])
        own["generation_config"].return_dict_in_generate = True
        own.pop("return_dict_in_generate", None)
    else:
        own["return_dict_in_generate"] = True
    result = vlm.model.generate(**inputs, **own)
    end = watch.mark()
    watch.add("prefill", start, first[0] if first else end)
    watch.add("decode", first[0] if first else end, end)
    return result


def _answer_ids(vlm: VLM, ids: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    """The answer's tokens without the padding that a batch's longer answers left behind it."""
    config = options.get("generation_config") or vlm.model.generation_config
    ends = options.get("eos_token_id", config.eos_token_id)
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    stops = torch.isin(ids, torch.tensor(ends, device=ids.device)).nonzero() if ends else ids.new_zeros(0, 1)
    return ids[: int(stops[0, 0])] if len(stops) else ids


def _turn(vlm: VLM, prepared: Prepared, inputs: Mapping[str, Any], cache: Any, ids: torch.Tensor) -> Turn:
    """Everything up to the answer's last token, the end token left out: the next turn's template brings its own."""
    steps = torch.arange(1, len(ids) + 1, device=ids.device)
    # The cache holds the answer but for its last token; what lies behind the kept text is cut off by the next prompt.
    length = prepared.length + len(ids)
    if cache.get_seq_length() > length:
        cache.crop(length)
    answer = vlm.prompter.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return Turn(
        ids=torch.cat([inputs["input_ids"], ids[None]], 1),
        mask=torch.cat([inputs["attention_mask"], torch.ones_like(ids)[None]], 1),
        positions=torch.cat([inputs["position_ids"], inputs["position_ids"][..., -1:] + steps], -1),
        cache=cache,
        messages=(*prepared.messages[0], assistant_message(answer)),
        prompt=prepared.texts[0] + answer,
        source=torch.cat([prepared.source, (prepared.source.max() + steps.cpu())[None]], 1),
        places=prepared.places,
    )
