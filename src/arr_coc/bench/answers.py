"""Dense answers compared with sparse ones, and the cost of selecting tokens.

- `compare_budgets` times an answer stage by stage for several budgets. Its model has random weights, because time does not
  depend on what a model answers.
- `measure_selection` times the texture, `realize` on a ready one, a second question, and whole answers.

All figures are medians of interleaved rounds. Shares and ratios are medians of each round's ratio, so that a busy moment hits
both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from PIL import Image

from arr_coc.bench.timing import Goal, Timing, by_name, time_ms
from arr_coc.devices import Stopwatch
from arr_coc.layer.inference import predict
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.texture import TextureArray
from arr_coc.types.answer import Answer
from arr_coc.types.grid import Grid
from arr_coc.vlm.api import realize
from arr_coc.vlm.generation import timed_generate
from arr_coc.vlm.model import VLM

TEXT_TOKENS = 24  # after the picture
QUESTIONS = ("What is the total amount?", "What is the date on the receipt?")
SELECTION_STAGES = ("texture", "glance", "layer", "probe", "gaze", "embed")
ASK_OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {"budget": "all", "glance": "all"},
    "default": {"budget": "auto", "glance": "auto"},
    "glance 50%": {"budget": "auto", "glance": "50%"},
    "glance 25%": {"budget": "auto", "glance": "25%"},
    "glance all": {"budget": "auto", "glance": "all"},
}


@dataclass(frozen=True)
class BudgetConfig:
    """One way of answering, by the options of `prepare`. `stock` is the model's own `generate`, unchanged."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stock: bool = False
    batched: bool = False


CONFIGS = (
    BudgetConfig("stock", stock=True),
    BudgetConfig("all", {"budget": "all", "glance": "all"}),
    BudgetConfig("gaze 25%", {"budget": "25%", "glance": "all"}),
    BudgetConfig("gaze 12.5%", {"budget": "12.5%", "glance": "all"}),
    BudgetConfig("glance 50%, gaze 12.5%", {"budget": "12.5%", "glance": "50%"}),
    BudgetConfig("glance 25%, gaze 12.5%", {"budget": "12.5%", "glance": "25%"}),
)


def compare_budgets(
    vlm: VLM,
    inputs: Mapping[str, Any],
    configs: Sequence[BudgetConfig] = CONFIGS,
    *,
    rounds: int = 5,
    new_tokens: int = 16,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Timing]]:
    """Every configuration once to warm up, then `rounds` times in turn: its stages, and on CUDA its `peak` bytes."""
    found: dict[str, list[dict[str, float]]] = {config.name: [] for config in configs}
    generate = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    for _ in range(rounds + 1):
        for config in configs:
            if vlm.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            with torch.no_grad():
                times = (
                    _time_stock(vlm, inputs, generate) if config.stock else _time_sparse(vlm, inputs, generate, config)
                )
            if vlm.device.type == "cuda":
                times["peak"] = torch.cuda.max_memory_allocated() - before
            found[config.name].append(times)
            tick()
    return {name: by_name(times[1:]) for name, times in found.items()}


def _time_stock(vlm: VLM, inputs: Mapping[str, Any], options: dict[str, Any]) -> dict[str, float]:
    """The stages of the model's own answer. It encodes on its way to the first token, so hooks time the encoder."""
    watch = Stopwatch(vlm.device)
    marks: list[Any] = []
    encoder = vlm.adapter.core.visual
    handles = [
        encoder.register_forward_pre_hook(lambda *_: marks.append(watch.mark())),
        encoder.register_forward_hook(lambda *_: marks.append(watch.mark())),
    ]
    try:
        timed_generate(vlm.model, dict(inputs), watch, options)
    finally:
        for handle in handles:
            handle.remove()
    watch.add("encode", *marks)
    encode, first = watch["encode"], watch["prefill"]
    return {
        "encode": encode, "prefill": first - encode, "overhead": 0.0, "first": first, "decode": watch["decode"],
        "assemble": 0.0,
    }  # fmt: skip


def _time_sparse(
    vlm: VLM, inputs: Mapping[str, Any], options: dict[str, Any], config: BudgetConfig
) -> dict[str, float]:
    """The stages of an answer from the kept tokens."""
    watch = Stopwatch(vlm.device)
    sparse = VLM(vlm.model, vlm.processor, batch_windows=config.batched, layer=vlm.layer)
    with watch.stage("preprocess"):
        prepared = sparse.prepare(inputs=inputs, **config.options)
    timed_generate(vlm.model, prepared.make(), watch, options)
    encode, ready = prepared.timings["encode"], watch["preprocess"]
    return {
        "encode": encode, "prefill": watch["prefill"], "overhead": ready - encode, "first": ready + watch["prefill"],
        "decode": watch["decode"], "assemble": prepared.timings["assemble"],
    }  # fmt: skip


def random_prompt(vlm: VLM, side: int, batch: int = 1) -> dict[str, torch.Tensor]:
    """Processor output for random square pictures of `side` x `side` cells and a question, on the model's device."""
    adapter: Any = vlm.adapter
    generator = torch.Generator().manual_seed(0)
    config = vlm.model.config.vision_config
    edge = side * config.spatial_merge_size
    values = 3 * config.temporal_patch_size * config.patch_size**2
    words = torch.randint(10, 100, (TEXT_TOKENS,), generator=generator)
    start, end = ([getattr(vlm.model.config, f"vision_{name}_token_id")] for name in ("start", "end"))
    image = adapter.token_id("image")
    ids = torch.tensor([[*start, *[image] * side**2, *end, *words.tolist()]] * batch)
    return {
        "input_ids": ids.to(vlm.device),
        "attention_mask": torch.ones_like(ids).to(vlm.device),
        "mm_token_type_ids": (ids == image).int().to(vlm.device),
        "image_grid_thw": torch.tensor([[1, edge, edge]] * batch).to(vlm.device),
        "pixel_values": torch.randn(batch * edge * edge, values, generator=generator).to(vlm.device),
    }


def random_model() -> VLM:
    """A random model of the Qwen2-VL architecture, large enough that ratios mean something on a CPU."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    width, layers = 512, 8
    config = Qwen2VLConfig(
        vision_config={"depth": layers, "embed_dim": width, "num_heads": 8, "hidden_size": width},
        text_config={
            "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers, "vocab_size": 1024,
            "num_attention_heads": 8, "num_key_value_heads": 4, "eos_token_id": None, "bos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        },
        image_token_id=1000, video_token_id=1001, vision_start_token_id=1002, vision_end_token_id=1003,
    )  # fmt: skip
    torch.manual_seed(0)
    return VLM(Qwen2VLForConditionalGeneration._from_config(config, attn_implementation="sdpa").eval())


def selection_goals(found: Mapping[str, Timing]) -> list[Goal]:
    """What selection may cost, and what it should save."""
    goals = [Goal("realize on a ready texture, ms", found["realize"].median, at_most=10)]
    if "layer, second question" in found:
        goals.append(Goal("the layer on what it has seen, ms", found["layer, second question"].median, at_most=10))
    ratio = found["allocator, second question"].ratio(found["allocator, first question"])
    goals.append(Goal("allocator, second question / first", ratio, at_most=0.2))
    for name in list(ASK_OPTIONS)[1:]:
        share = found[f"deciding, {name}"].ratio(found["ask, dense"])
        goals.append(Goal(f"deciding / dense answer, {name}", share, at_most=0.1))
    for name in ("default", "glance 50%", "glance 25%"):  # "glance all" encodes everything and can save little time
        speedup = found["ask, dense"].ratio(found[f"ask, {name}"])
        goals.append(Goal(f"times faster than dense, {name}", speedup, at_least=1.5))
    return goals


def measure_selection(
    vlm: VLM, image: Image.Image, *, rounds: int = 5, side: int = 36, tokens: int = 32, tick: Callable[[], None] = lambda: None
) -> dict[str, Timing]:  # fmt: skip
    """One round to warm up, then `rounds`; stages without a model use a grid of `side` x `side` cells."""
    found = []
    for _ in range(rounds + 1):
        found.append(_selection_round(vlm, image, side, tokens))
        tick()
    return by_name(found[1:])


def _selection_round(vlm: VLM, image: Image.Image, side: int, tokens: int) -> dict[str, float]:
    texture = TextureArray.from_image(image)
    times = {"texture": time_ms(lambda: realize(texture, "?", (side, side)))}  # channels are built on first use
    times["realize"] = time_ms(lambda: realize(texture, "?", (side, side)))
    places = tuple(zip(("first", "second"), QUESTIONS, strict=True))
    if (layer := vlm.layer) is not None:
        embed: Any = vlm.model.get_input_embeddings()
        random = torch.randn(side * side, embed.weight.shape[-1], generator=torch.Generator().manual_seed(0))
        features = random.to(vlm.device)  # the same for both questions, so that the layer can reuse them
        for place, question in places:
            words = Question(question, vlm.prompter.ids(question), lambda ids: embed(ids.to(vlm.device)))
            source, cells = ImageSource(texture=texture), torch.arange(side * side)
            selection = SelectionInput(Grid(1, side, side), None, cells, words, tokens=features, source=source)
            times[f"layer, {place} question"] = time_ms(partial(predict, layer, selection))
    look = vlm.look(image)
    for place, question in places:
        stages = vlm.prepare(look=look, text=question, budget="auto").timings
        times[f"allocator, {place} question"] = sum(stages.get(stage, 0.0) for stage in SELECTION_STAGES)
    for name, options in ASK_OPTIONS.items():
        start = time.perf_counter()
        answer = vlm.ask(image, QUESTIONS[0], max_new_tokens=tokens, **options)
        times[f"ask, {name}"] = (time.perf_counter() - start) * 1e3
        assert isinstance(answer, Answer)
        times[f"deciding, {name}"] = sum(answer.timings.get(stage, 0.0) for stage in SELECTION_STAGES)
    return times
