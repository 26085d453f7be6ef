"""Recorded answers: encoder, prefill and decoding of fixed shapes as CUDA graphs, warmed up ahead of time by `vlm.record`.

A budget makes shapes constant: a picture of any size gives the same number of patches and tokens. Launched from Python, a short
prefill waits for Python; as a graph it takes what the GPU needs. Only shapes that were recorded run like this, and only answers
whose options are those of plain decoding; everything else runs as without recording. `Recordings.skipped` says how often, and why.

A recording is valid for weights at their places: after `model.to(...)`, with another adapter (LoRA) or other weights, it is made again
when it is needed next. Values that change in place, such as those of an optimiser, are read by the graph. On a CPU the same functions
of fixed shape run without a graph: that is how they are tested.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from arr_coc.adapters import static
from arr_coc.adapters.base import Adapter, Encoded, Inputs, Visual
from arr_coc.adapters.static import (
    DecodeStep,
    EncoderShape,
    Prefill,
    PromptShape,
    SparseEncoder,
    StaticCache,
)
from arr_coc.adapters.wrapped import is_spread
from arr_coc.devices import Stopwatch, fetch_later, to_device
from arr_coc.errors import ModelError, PromptError, first_line, whole_number
from arr_coc.texture.kernels.cuda_graph import RecordedWork
from arr_coc.types.budget import Budget, limit

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM

FILLED = 0.5  # share of a recorded shape that must be in use: below it, running as usual is faster
CELLS = 16  # counts that come from shares are rounded up to a multiple of this
PLAIN = {  # options of `generate` that recorded decoding understands
    "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "eos_token_id", "pad_token_id",
    "num_beams", "num_return_sequences", "use_cache",
}  # fmt: skip
HARMLESS = {"bos_token_id", "max_length", "transformers_version", "_from_model_config"}  # of a generation configuration

PLAIN_TENSORS = (torch.nn.Parameter, torch.Tensor, torch.nn.Buffer)  # quantised weights may have no address

Shape = EncoderShape | PromptShape


@dataclass(frozen=True)
class RecordingCost:
    """What `vlm.record` did: its shapes, and what they cost."""

    shapes: tuple[Shape, ...]
    seconds: float
    nbytes: int  # of buffers and graphs; the model's weights are not counted
    graphs: int  # how many of the shapes are CUDA graphs; 0 on a CPU

    def __str__(self) -> str:
        return (
            f"{len(self.shapes)} shapes, {self.graphs} of them as CUDA graphs, in {self.seconds:.1f} s and "
            f"{self.nbytes / 1e6:.0f} MB"
        )


@dataclass(eq=False)
class _Entry:
    """One recorded shape. `works`: the encoder; or the prefill and a step of decoding."""

    state: Hashable
    makers: tuple[Any, ...]
    works: tuple[RecordedWork, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        held = [one for work in self.works for one in (*work.inputs, *work.outputs)]
        for maker in self.makers:
            cache = getattr(maker, "cache", None)
            held += [] if cache is None else [*cache.keys, *cache.values]
        return sum({one.data_ptr(): one.nbytes for one in held}.values())


class Recordings:
    """The recorded shapes of one model, at most `most`; the one that was not used for longest goes first."""

    def __init__(self, adapter: Adapter, most: int) -> None:
        if why := static.unsupported_reason(adapter):
            raise ModelError(f"this model cannot be recorded: {why}")
        self.adapter: Any = adapter
        self.most = most
        self.used: Counter[Shape] = Counter()
        self.skipped: Counter[str] = Counter()  # why something ran as usual
        self._entries: OrderedDict[Shape, _Entry | None] = OrderedDict()  # None: it must be made (again)
        self._failed: dict[Shape, Hashable] = {}  # shapes that could not be recorded, in which state
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return sum(one is not None for one in self._entries.values())

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._entries.values() if one is not None)

    def clear(self) -> None:
        """Drop all recordings; nothing is recorded from here on."""
        with self._lock:
            self._entries.clear()

    def add(self, shapes: Sequence[Shape]) -> RecordingCost:
        """Record shapes now."""
        start, before = time.perf_counter(), self._memory()
        graphs = 0
        for shape in shapes:
            with self._lock:
                self._failed.pop(shape, None)
                self._entries[shape] = None
                self._entries.move_to_end(shape)
                while len(self._entries) > self.most:
                    self._entries.popitem(last=False)
                entry = self._entry(shape, self._state())
            graphs += entry is not None and all(work.is_graph for work in entry.works)
        kept = tuple(shape for shape in shapes if shape in self._entries)
        return RecordingCost(kept, time.perf_counter() - start, max(0, self._memory() - before), graphs)

    def encode(
        self, inputs: Inputs, visuals: Sequence[Visual], cells: Sequence[torch.Tensor] | None, depths: Sequence[float]
    ) -> list[Encoded] | None:
        """What `adapter.encode` returns, where a shape for it is recorded; else None."""
        if cells is None or all(len(some) == visual.n for some, visual in zip(cells, visuals, strict=True)):
            self._skip("all cells are encoded, by the stock encoder")
            return None
        if depths or any(visual.kind != "image" for visual in visuals) or torch.is_grad_enabled():
            self._skip("the encoder's attention, gradients or videos are wanted")
            return None
        order = sorted(range(len(visuals)), key=lambda i: visuals[i].number)
        some, shown = [cells[i] for i in order], [visuals[i] for i in order]
        counts = [len(one) for one in some]

        def fits(shape: Shape) -> bool:
            if not isinstance(shape, EncoderShape) or shape.pictures != len(counts):
                return False
            exact = all(count == shape.cells for count in counts)
            return exact if shape.exact else min(counts) > 0 and FILLED * shape.cells <= max(counts) <= shape.cells

        missing = f"no encoder is recorded for {len(counts)} x {max(counts)} cells"
        found = self._find(fits, lambda shape: (not shape.exact, shape.cells), missing)
        if found is None:
            return None
        shape, entry = found
        try:
            (maker,), (work,) = entry.makers, entry.works
            work.load(*maker.inputs(inputs, shown, some))
            tokens, *deep = (one.clone() for one in work.run())
            work.release()
        finally:
            entry.lock.release()
        self.used[shape] += 1
        made = {}
        for place, (number, one) in enumerate(zip(order, some, strict=True)):
            levels = tuple(level[place, : len(one)] for level in deep)
            made[number] = Encoded(one, tokens[place, : len(one)], levels)
        return [made[number] for number in range(len(visuals))]

    @torch.no_grad()
    def generate(
        self, inputs: Mapping[str, Any], watch: Stopwatch, options: Mapping[str, Any], recorder: Callable[..., None]
    ) -> Any:
        """What the model's `generate` returns (`sequences`), where a shape for it is recorded; else None."""
        if why := self._not_plain(options):
            self._skip(why)
            return None
        ids, outputs = inputs["input_ids"], inputs.get("mm_encoder_outputs") or {}
        if set(outputs) != {"image"} or len(outputs["image"].pooler_output) != len(ids):
            self._skip("a row has no picture, or a video")
            return None
        tokens = outputs["image"].pooler_output
        deep = tuple(getattr(outputs["image"], "deepstack_features", None) or ())
        visual, new = max(len(row) for row in tokens), self._option(options, "max_new_tokens")

        def fits(shape: Shape) -> bool:
            return (
                isinstance(shape, PromptShape)
                and shape.rows == len(ids)
                and visual <= shape.visual
                and FILLED * shape.length <= ids.shape[1] <= shape.length
                and new <= shape.new
            )

        missing = f"no prompt is recorded for {len(ids)} x {ids.shape[1]} tokens and {new} new ones"
        found = self._find(fits, lambda shape: (shape.length, shape.new), missing)
        if found is None:
            return None
        shape, entry = found
        try:
            sequences = self._decode(shape, entry, inputs, (tokens, deep), watch, options, recorder)
        finally:
            entry.lock.release()
        self.used[shape] += 1
        return SimpleNamespace(sequences=sequences, past_key_values=None, logits=None)

    def _decode(
        self, shape: PromptShape, entry: _Entry, inputs: Mapping[str, Any], features: tuple[Any, Any],
        watch: Stopwatch, options: Mapping[str, Any], recorder: Callable[..., None],
    ) -> torch.Tensor:  # fmt: skip
        """Prompt and answer `[B, L + T]`: greedy, until every row has ended or is long enough.

        On a GPU the host asks whether a token ended all rows once the next step is launched: the device never waits for the
        answer, and the last step may be in vain.
        """
        sequences, attention, positions = (inputs[name] for name in ("input_ids", "attention_mask", "position_ids"))
        ends = self._option(options, "eos_token_id")
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        stop = to_device(torch.tensor(ends, dtype=torch.long), sequences.device)
        pad = self._option(options, "pad_token_id")
        pad = (ends[0] if ends else 0) if pad is None else pad
        penalty = self._option(options, "repetition_penalty")
        penalise = None if penalty in (None, 1.0) else static.repetition_penalty(penalty)
        (fill, _), (prefill, step) = entry.makers, entry.works
        late = step.is_graph
        start = watch.mark()
        given = fill.inputs(sequences, attention, positions, *features)
        prefill.load(*given)
        (logits,) = prefill.run()
        step.load(None, None, None, given[1])
        places = torch.arange(shape.length, shape.length + shape.new, device=sequences.device)
        last, open_rows = positions[..., -1], torch.ones(len(sequences), dtype=torch.bool, device=sequences.device)
        first = None
        for number in range(new := self._option(options, "max_new_tokens")):
            scores = logits if penalise is None else penalise(sequences, logits)
            first = watch.mark() if first is None else first
            recorder(sequences, scores)
            token = scores.argmax(-1).masked_fill(~open_rows, pad)
            sequences = torch.cat([sequences, token[:, None]], 1)
            if ends:
                open_rows = open_rows & (token[:, None] != stop).all(1)
            if number == new - 1:
                break
            goes_on = fetch_later(open_rows.any()) if ends else None
            if goes_on is not None and not late and not goes_on():
                break
            step.load(token, last + number + 1, places[number : number + 1], None)
            (logits,) = step.run()
            if goes_on is not None and late and not goes_on():
                break
        step.release()
        watch.add("prefill", start, first)
        watch.add("decode", first, watch.mark())
        return sequences

    def _find(self, fits: Callable[[Any], bool], size: Callable[[Any], Any], missing: str) -> tuple[Any, _Entry] | None:
        """The smallest recorded shape that fits, locked for the caller; None if there is none (`missing`), or it is in use."""
        with self._lock:
            shapes = sorted(filter(fits, self._entries), key=size)
            if not shapes:
                self._skip(missing)
                return None
            state = self._state()
            entry = None if state is None else self._entry(shapes[0], state)
            if entry is None or not entry.lock.acquire(blocking=False):
                self._skip("the shape cannot be recorded now" if entry is None else "another thread uses the recording")
                return None
            self._entries.move_to_end(shapes[0])
            return shapes[0], entry

    def _entry(self, shape: Shape, state: Hashable) -> _Entry | None:
        """The recording of a shape for the weights as they are now; None where it cannot be made."""
        entry = self._entries.get(shape)
        if entry is not None and entry.state == state:
            return entry
        if state is None or self._failed.get(shape, self) == state:
            return None
        self._entries[shape] = entry = None  # frees the old one's memory first
        for attempt in (1, 2):
            try:
                self._entries[shape] = entry = self._make(shape, state)
                return entry
            except torch.cuda.OutOfMemoryError as error:
                why, again = first_line(error), attempt == 1
            except RuntimeError as error:
                why, again = first_line(error), False
            if not again:
                break
            for other in self._entries:  # they are made again when they are needed
                self._entries[other] = None
            torch.cuda.empty_cache()  # not above: as long as the error is there, it holds what was made until then
        self._failed[shape] = state
        warnings.warn(f"could not record {shape}, running without it ({why})", stacklevel=2)
        return None

    def _make(self, shape: Shape, state: Hashable) -> _Entry:
        makers: tuple[Any, ...]
        if isinstance(shape, EncoderShape):
            makers = (SparseEncoder(self.adapter, shape),)
        else:
            cache = StaticCache(self.adapter, shape)
            makers = (Prefill(self.adapter, shape, cache), DecodeStep(self.adapter, shape, cache))
        works = []
        for maker in makers:
            with torch.inference_mode(False), torch.no_grad():
                works.append(RecordedWork(maker, maker.buffers()))
                works[-1].run()  # on a GPU the graph's first replay; the cache must exist before decoding is recorded
        return _Entry(state, makers, tuple(works))

    def _state(self) -> Hashable | None:
        """What recordings depend on: where the weights are, and which adapters are active. None: nothing may be recorded."""
        model = self.adapter.model
        if model.training or torch.is_autocast_enabled(self.adapter.device.type) or is_spread(model, model):
            return None
        found: list[Any] = [model.config._attn_implementation, str(self.adapter.device)]
        modules: list[Any] = [model]
        for module in modules:
            if module._forward_hooks or module._forward_pre_hooks:
                return None  # Python that a graph would not run
            # Asking the module itself takes ten times as long where it has none.
            if hasattr(type(module), "_active_adapter") or "_active_adapter" in module.__dict__:
                found.append((str(module._active_adapter), bool(module._disable_adapters), str(module.merged_adapters)))
                found.append(str(getattr(module, "scaling", "")))
            if module._parameters or module._buffers:
                for one in (*module._parameters.values(), *module._buffers.values()):
                    if one is not None:
                        plain = type(one) in PLAIN_TENSORS
                        found.append((one.data_ptr() if plain else id(one), one.dtype))
            modules += [child for child in module._modules.values() if child is not None]
        return hash(tuple(found))

    def _not_plain(self, options: Mapping[str, Any]) -> str:
        """Why an answer cannot be decoded from a recording; empty if it can."""
        if unknown := sorted(set(options) - PLAIN):
            return f"the option {unknown[0]}"
        set_there = self.adapter.model.generation_config.to_diff_dict()
        own = {name for name, value in set_there.items() if value} - PLAIN - HARMLESS
        if own:
            return f"the model's generation option {min(own)}"
        if self._option(options, "max_new_tokens") is None:
            return "max_new_tokens is not given"
        if self._option(options, "do_sample") and self._option(options, "top_k") != 1:
            return "sampling"
        for name, plain in (("num_beams", 1), ("num_return_sequences", 1), ("use_cache", True)):
            if self._option(options, name) not in (None, plain):
                return f"the option {name}"
        return ""

    def _option(self, options: Mapping[str, Any], name: str) -> Any:
        return self.adapter.generation_option(options, name)

    def _skip(self, why: str) -> None:
        self.skipped[why] += 1

    def _memory(self) -> int:
        device = self.adapter.device
        if device.type != "cuda":
            return self.nbytes
        torch.cuda.empty_cache()  # what is left is in use, or belongs to graphs, whose intermediate results count as free
        return torch.cuda.memory_reserved(device)


def record(
    vlm: VLM, budget: Budget, glance: Budget, sizes: Sequence[tuple[int, int]], texts: Sequence[int],
    batches: Sequence[int], new_tokens: int, most: int,
) -> RecordingCost:  # fmt: skip
    """See `VLM.record`."""
    for name, numbers in (("texts", texts), ("batches", batches), ("new_tokens", [new_tokens]), ("most", [most])):
        if not numbers or not all(whole_number(one) for one in numbers):
            raise PromptError(f"expected {name} as whole numbers of at least 1, got {numbers!r}")
    if vlm.recordings is None:
        vlm.recordings = Recordings(vlm.adapter, most)
    vlm.recordings.most = most
    blank = [Image.new("RGB", size) for size in sizes]
    vision = vlm.prompter.process([[one] for one in blank], [[] for _ in blank], 1.0)
    cells = [grid.n for grid in vlm.adapter.grids(vision.tensors, "image", [one.size for one in blank])]
    shapes = shapes_for(cells, budget, glance, texts, batches, new_tokens)
    if len(shapes) > most:
        raise PromptError(
            f"expected at most {most} shapes, got {len(shapes)}: record fewer sizes, texts or batches, or raise most"
        )
    return vlm.recordings.add(shapes)


def shapes_for(
    cells: Sequence[int], budget: Budget, glance: Budget, texts: Sequence[int], batches: Sequence[int],
    new_tokens: int,
) -> list[Shape]:  # fmt: skip
    """The shapes that answers about pictures of `cells` cells take."""
    found: list[Shape] = []
    for batch in batches:
        for count in cells:
            encoded, exact = _count(glance, count, "glance")
            kept = min(encoded, _count(budget, count, "budget")[0])
            if encoded < count:
                found.append(EncoderShape(batch, encoded, exact))
                if exact and batch > 1:  # some of a batch may have fewer cells
                    found.append(EncoderShape(batch, encoded, False))
            for text in texts:
                # Attention with a mask is fast where its sides are multiples of 8.
                found.append(PromptShape(batch, kept, -(-(kept + text) // 8) * 8, -(-new_tokens // 8) * 8))
    return list(dict.fromkeys(found))


def _count(wanted: Budget, cells: int, what: str) -> tuple[int, bool]:
    """How many of a picture's cells a count or a share keeps, and whether every larger picture keeps as many."""
    bound = limit(wanted, cells, what)
    if bound.k is None:
        raise PromptError(f"expected {what} as a count or a share, whose shapes are known, got {wanted!r}")
    if bound.everything or not (isinstance(wanted, str) and wanted.strip().endswith("%")):
        return bound.k, not bound.everything
    return min(cells, -(-bound.k // CELLS) * CELLS), False
