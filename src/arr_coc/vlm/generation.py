"""Generating answers from prepared prompts, and streaming them."""

from __future__ import annotations

import copy
import difflib
import inspect
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from arr_coc.adapters import layer_pruning
from arr_coc.adapters.base import Adapter
from arr_coc.adapters.processor import PromptProcessor, assistant_message
from arr_coc.adapters.wrapped import weights_state
from arr_coc.devices import Stopwatch, merge_timings, to_device
from arr_coc.errors import ModelError, PromptError
from arr_coc.types.answer import Answer, Prepared, Turn
from arr_coc.vlm.confidence import Calibration, check_refuse, judge

if TYPE_CHECKING:
    from arr_coc.vlm.recording import Recordings

INCOMPLETE = "\ufffd"  # decoded text ends with it while a character's last token is missing


class GenerationOptions(TypedDict, total=False):
    """Options of the model's own `generate`. The usual ones are listed; any other that it takes works, too."""

    max_new_tokens: int
    min_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    num_beams: int
    num_return_sequences: int
    generation_config: Any
    eos_token_id: int | list[int]
    pad_token_id: int
    logits_processor: Any
    stopping_criteria: Any
    streamer: Any
    use_cache: bool
    cache_implementation: str
    assistant_model: Any
    prompt_lookup_num_tokens: int
    prefill_chunk_size: int
    output_scores: bool
    output_logits: bool
    return_dict_in_generate: bool


def check_options(model: Any, options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise on an option that neither `function` nor the model's own `generate` takes, and name the nearest one."""
    own = [name for name in inspect.signature(function).parameters if name not in ("self", "options")]
    known = {*own, *GenerationOptions.__annotations__, *vars(model.generation_config), "adapter_names"}  # peft's
    for method in (model.generate, model.forward):
        known |= set(inspect.signature(method).parameters)
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PromptError(f"expected an option of ask or of the model's generate, got {name!r}{hint}")


class TokenRecorder:
    """The probability of every generated token. One step's logits are kept at a time, not those of all steps.

    The probabilities are those after the processors of the generation's configuration (such as a repetition penalty), and
    before the temperature and the top-k of sampling.
    """

    def __init__(self, starts: Sequence[int] = ()) -> None:
        """`starts`: first tokens of answers whose probability before the first step is wanted, too (`started`)."""
        self._starts = torch.tensor(list(starts), dtype=torch.long)
        self._started: torch.Tensor | None = None  # [B] on the device
        self._last: torch.Tensor | None = None  # [B, V] log-probabilities of the token that comes next
        self._found: list[torch.Tensor] = []  # [B] each
        self._length: int | None = None  # of the sequences at the last step
        self._plain = True  # one more token at each step

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> None:
        """One step: the sequences `[B, T]` so far, and the scores `[B, V]` of their next tokens."""
        if self._last is not None and self._length is not None:
            self._plain = self._plain and ids.shape == (len(self._last), self._length + 1)
            if self._plain:
                self._found.append(self._last.gather(1, ids[:, -1:])[:, 0])
        first = self._last is None
        self._length = ids.shape[1]
        self._last = scores.float().log_softmax(-1)
        if first and len(self._starts):  # read later: here the host would wait for the prefill
            starts = to_device(self._starts, scores.device)
            self._started = self._last.index_select(1, starts).exp().sum(-1)

    @property
    def started(self) -> torch.Tensor | None:
        """The probability `[B]` that the answer starts with one of `starts`; None without any."""
        return None if self._started is None else self._started.cpu()

    def probabilities(self, sequences: torch.Tensor) -> torch.Tensor | None:
        """`[B, T]` of the finished sequences; None where tokens did not come one by one (beams, assisted generation)."""
        if self._last is None or self._length is None or not self._plain:
            return None
        if sequences.shape != (len(self._last), self._length + 1):
            return None
        last = self._last.gather(1, sequences[:, -1:].to(self._last.device))[:, 0]
        return torch.stack([*self._found, last], 1).exp().cpu()


def generate(
    adapter: Adapter,
    prompter: PromptProcessor | None,
    prepared: Prepared,
    pruning: layer_pruning.PruningRequest | None,
    remember: bool,
    options: Mapping[str, Any],
    calibration: Calibration | None = None,
    *,
    recordings: Recordings | None = None,
    refuse: str = "auto",
) -> list[Answer]:
    """Run the model on a prepared prompt: one answer per row and returned sequence.

    `recordings`: used where a shape fits. `refuse`: "auto", or "off".
    """
    if remember and (why := not_rememberable(adapter, prepared, options)):
        raise PromptError(why)
    _check_model(adapter, options)
    if refuse != "auto":
        check_refuse(refuse)
    watch = Stopwatch(adapter.device)
    inputs = prepared.make()
    active = nullcontext() if pruning is None else layer_pruning.prune_layers(adapter, prepared, pruning)
    refusal = None if calibration is None or prompter is None else calibration.refusal
    words = set() if refusal is None else {one.split()[0] for one in refusal.says}  # that its own refusals start with
    own = [] if prompter is None else [int(prompter.ids(one)[0]) for one in sorted(words)]
    recorder = TokenRecorder(own)
    with torch.no_grad(), active as pruned:
        result = None
        if recordings is not None and pruning is None and not remember:
            result = recordings.generate(inputs, watch, options, recorder)
        if result is None:
            result = timed_generate(adapter.model, inputs, watch, options, recorder)
    allocations = prepared.allocations if pruned is None else pruned.allocations(prepared)
    copies = len(result.sequences) // len(prepared.source)
    ends = adapter.generation_option(options, "eos_token_id")
    several = (adapter.generation_option(options, "num_beams") or 1) > 1  # beams change places between steps
    chances = None if several else recorder.probabilities(result.sequences)
    if chances is None and not several:  # some models generate by themselves and call no processor
        chances = _probabilities_from_output(
            result, prepared.length, sampled=adapter.generation_option(options, "do_sample")
        )
    answers: list[Answer] = []
    for number, sequence in enumerate(result.sequences):
        row = number // copies
        ids = _answer_ids(sequence[prepared.length :], ends)
        text = "" if prompter is None else prompter.decode(ids)
        turn = None
        if remember:
            assert prompter is not None
            turn = _turn(adapter, prompter, prepared, inputs, result.past_key_values, ids)
        mine = tuple(a for a in allocations if a.row == row)
        tokens = None if chances is None else chances[number, : len(ids) + 1]  # with the end token, where there is one
        started = None if recorder.started is None or chances is None else float(recorder.started[number])
        about = None if prepared.about is None else partial(prepared.about, row)
        with watch.stage("judge"):
            verdict = judge(text, tokens, mine, calibration, about, started, refuse)
        answers.append(
            Answer(
                text=refusal.text if verdict.refused and refusal is not None else text,
                allocations=mine,
                timings={},
                ids=ids,
                prompt_tokens=int((prepared.source[row] >= 0).sum()),
                turn=turn,
                token_probabilities=None if tokens is None else tokens[: len(ids)],
                end_probability=None if tokens is None or len(tokens) == len(ids) else float(tokens[-1]),
                confidence=verdict.confidence,
                confidence_source=verdict.source,
                refused=verdict.refused,
                raw_text=text,
                facts=verdict.facts,
            )
        )
    timings = merge_timings(prepared.timings, watch)
    return [replace(answer, timings=timings) for answer in answers]


def _probabilities_from_output(result: Any, length: int, sampled: bool | None) -> torch.Tensor | None:
    """The probability `[B, T]` of each new token; None without `output_logits=True` or `output_scores=True`.

    Scores are better where nothing is sampled: tokens that the generation suppresses have no probability in them.
    """
    scores = None if sampled else getattr(result, "scores", None)
    logits = scores or getattr(result, "logits", None)
    if not logits:
        return None
    new = result.sequences[:, length : length + len(logits), None]
    return torch.stack([step.float() for step in logits], 1).softmax(-1).gather(2, new)[..., 0].cpu()


def timed_generate(
    model: Any,
    inputs: Mapping[str, Any],
    watch: Stopwatch,
    options: Mapping[str, Any],
    recorder: TokenRecorder | None = None,
) -> Any:
    """`model.generate`, its time split at the first token into prefill and decode."""
    start = watch.mark()
    first: list[Any] = []

    def each_step(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not first:
            first.append(watch.mark())
        if recorder is not None:
            recorder(ids, scores)
        return scores

    own = dict(options)
    own["logits_processor"] = [each_step, *(options.get("logits_processor") or [])]
    if own.get("generation_config") is not None:
        own["generation_config"] = copy.deepcopy(own["generation_config"])
        own["generation_config"].return_dict_in_generate = True
        own.pop("return_dict_in_generate", None)
    else:
        own["return_dict_in_generate"] = True
    result = model.generate(**inputs, **own)
    end = watch.mark()
    watch.add("prefill", start, first[0] if first else end)
    watch.add("decode", first[0] if first else end, end)
    return result


def _check_model(adapter: Adapter, options: Mapping[str, Any]) -> None:
    """Raise where the model could not generate what it should."""
    if adapter.model.training and adapter.model.is_gradient_checkpointing:
        raise ModelError(
            "expected a model in evaluation mode to generate, got one that trains with gradient checkpointing, which "
            "keeps no KV cache: call model.eval() first"
        )
    if options.get("adapter_names") is not None:
        raise PromptError("expected one active adapter for the whole batch, got adapter_names: call set_adapter(...)")


def not_rememberable(adapter: Adapter, prepared: Prepared, options: Mapping[str, Any]) -> str:
    """Why no follow-up question could continue from this answer; empty if one can."""
    plain = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "cache_implementation": "dynamic"}
    for name, value in plain.items():
        wanted = adapter.generation_option(options, name)
        if wanted is not None and wanted != value:
            return f"an answer with {name}={wanted!r} cannot be remembered: expected one plain sequence"
    if prepared.rows > 1:
        return f"only one conversation at a time can be remembered: expected one question, got {prepared.rows}"
    if not prepared.messages:
        return "only answers to text or messages can be remembered: model inputs and raw prompts have no turns"
    return ""


def _answer_ids(ids: torch.Tensor, ends: int | list[int] | None) -> torch.Tensor:
    """The answer's tokens up to its end token, one of `ends`, without the padding of a batch."""
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    stops = torch.isin(ids, torch.tensor(ends, device=ids.device)).nonzero() if ends else ids.new_zeros(0, 1)
    return ids[: int(stops[0, 0])] if len(stops) else ids


def _turn(
    adapter: Adapter,
    prompter: PromptProcessor,
    prepared: Prepared,
    inputs: Mapping[str, Any],
    cache: Any,
    ids: torch.Tensor,
) -> Turn:
    """State up to the answer's last token. The end token is left out: the next turn's template adds its own."""
    assert prepared.shown is not None
    shown = prepared.shown()
    # A model may write a visual token, which stands for no cell.
    visual = torch.tensor(list(adapter.token_ids.values()))
    text = ids.cpu().masked_fill(torch.isin(ids.cpu(), visual), adapter.pad_token)
    steps = torch.arange(1, len(ids) + 1, device=ids.device)
    length = prepared.length + len(ids)
    if (more := int(cache.get_seq_length()) - length) > 0:
        cache.crop(-more)
    answer = prompter.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return Turn(
        ids=torch.cat([inputs["input_ids"], ids[None]], 1),
        mask=torch.cat([inputs["attention_mask"], torch.ones_like(ids)[None]], 1),
        positions=torch.cat([inputs["position_ids"], inputs["position_ids"][..., -1:] + steps], -1),
        cache=cache,
        weights=weights_state(adapter.model),
        messages=(*prepared.messages[0], assistant_message(answer)),
        prompt=prepared.texts[0] + answer,
        source=torch.cat([prepared.source, (prepared.source.max() + steps.cpu())[None]], 1),
        places=prepared.places,
        shown=replace(shown, ids=torch.cat([shown.ids, text[None]], 1)),
    )


class AnswerStream(Iterator[str]):
    """Pieces of one answer, in order, as the model writes them. `answer` is the whole of it after the last piece, or its refusal.

    The model runs in its own thread. `close()`, or leaving the `with` block, stops it at its next token.
    """

    def __init__(self, run: Callable[[Any, Any], Answer], decode: Callable[[torch.Tensor], str]) -> None:
        """`run(streamer, stop)` generates; `decode(ids)` is the text of all tokens `[T]` so far."""
        self._pieces: queue.Queue[str | BaseException | Answer] = queue.Queue()
        self._decode = decode
        self._run = run
        self._ids: list[torch.Tensor] = []
        self._text = ""
        self._skip_prompt = True  # transformers streams the prompt first
        self._closed = threading.Event()
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise PromptError("this answer is still being generated: iterate over all of its pieces first")
        return self._answer

    def __next__(self) -> str:
        if self._answer is not None or self._closed.is_set():
            raise StopIteration
        piece = self._pieces.get()
        if isinstance(piece, BaseException):
            self._closed.set()
            raise piece
        if isinstance(piece, Answer):
            self._answer = piece
            raise StopIteration
        return piece

    def close(self) -> None:
        """Stop the model at its next token."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # The interfaces of a transformers streamer and stopping criterion.

    def put(self, ids: torch.Tensor) -> None:
        if self._skip_prompt:
            self._skip_prompt = False
            return
        self._ids.append(ids.flatten().cpu())
        text = self._decode(torch.cat(self._ids))
        if text.startswith(self._text) and not text.endswith(INCOMPLETE):
            self._emit(text)

    def end(self) -> None:
        """The rest comes with the answer, which knows where it ends."""

    def __call__(self, ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.full((len(ids),), self._closed.is_set(), dtype=torch.bool, device=ids.device)

    def _emit(self, text: str) -> None:
        if len(text) > len(self._text):
            self._pieces.put(text[len(self._text) :])
            self._text = text

    def _work(self) -> None:
        try:
            answer = self._run(self, self)
            text = answer.raw_text or answer.text  # a refused answer was shown as the model wrote it
            if not text.startswith(self._text):
                raise PromptError(f"the pieces {self._text!r} are not the start of the answer {text!r}")
            self._emit(text)
            self._pieces.put(answer)
        except BaseException as error:  # raised again in the thread that iterates
            self._pieces.put(error)
