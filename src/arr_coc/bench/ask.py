"""Dense against sparse answers, stage by stage, interleaved: what glance and gaze save on this machine.

The model has random weights: time does not depend on what it says.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc.timing import Stopwatch
from arr_coc.vlm.generation import timed
from arr_coc.vlm.model import VLM

QUESTION = 24  # text tokens after the picture


@dataclass(frozen=True)
class Setting:
    """One way of answering. `stock` is the model's own `generate`, untouched."""

    name: str
    budget: str = "all"
    glance: str = "all"
    stock: bool = False
    batched: bool = False
    sees: bool = False  # the pictures' originals and the question: else cells are evenly spaced


SETTINGS = (
    Setting("stock", stock=True),
    Setting("all"),
    Setting("gaze 25%", "25%"),
    Setting("gaze 12.5%", "12.5%"),
    Setting("glance 50%, gaze 12.5%", "12.5%", "50%"),
    Setting("glance 25%, gaze 12.5%", "12.5%", "25%"),
)


@dataclass(eq=False)
class Measured:
    """Milliseconds of each stage, run by run."""

    runs: list[dict[str, float]] = field(default_factory=list)
    peak: int = 0  # bytes of accelerator memory beyond the weights

    def median(self, stage: str) -> float:
        return statistics.median(run[stage] for run in self.runs)


def compare(
    vlm: VLM, inputs: Mapping[str, Any], settings: Sequence[Setting] = SETTINGS, *, rounds: int = 5, new_tokens: int = 16,
    originals: Sequence[Any] = (), text: str = "", tick: Callable[[], None] = lambda: None,
) -> dict[str, Measured]:  # fmt: skip
    """Every setting once to warm up, then `rounds` times in turn; `originals` and `text` for those that see."""
    found = {setting.name: Measured() for setting in settings}
    for number in range(rounds + 1):
        for setting in settings:
            if vlm.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            shown = {"originals": originals, "text": [text] * len(originals)} if setting.sees else {}
            run = _run(vlm, inputs, setting, new_tokens, shown)
            if vlm.device.type == "cuda":
                measured = found[setting.name]
                measured.peak = max(measured.peak, torch.cuda.max_memory_allocated() - before)
            if number:
                found[setting.name].runs.append(run)
            tick()
    return found


def _run(
    vlm: VLM, inputs: Mapping[str, Any], setting: Setting, new_tokens: int, shown: dict[str, Any]
) -> dict[str, float]:
    """One answer: milliseconds of the encoder, the prefill, everything else before the first token, and the rest."""
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}
    watch = Stopwatch(vlm.device)
    with torch.no_grad():
        if setting.stock:
            marks: list[Any] = []
            encoder = vlm.adapter.core.visual
            handles = [
                encoder.register_forward_pre_hook(lambda *_: marks.append(watch.mark())),
                encoder.register_forward_hook(lambda *_: marks.append(watch.mark())),
            ]
            try:
                timed(vlm, dict(inputs), watch, options)
            finally:
                for handle in handles:
                    handle.remove()
            watch.add("encode", *marks)
            encode, first = watch["encode"], watch["prefill"]  # the model encodes on its way to the first token
            return {
                "encode": encode, "prefill": first - encode, "overhead": 0.0, "first": first,
                "decode": watch["decode"], "assemble": 0.0,
            }  # fmt: skip
        before, vlm.adapter.batched = vlm.adapter.batched, setting.batched
        with watch.stage("preprocess"):
            prepared = vlm.prepare(inputs=inputs, budget=setting.budget, glance=setting.glance, **shown)
        timed(vlm, prepared.make(), watch, options)
        vlm.adapter.batched = before
    encode, ready = prepared.timings["encode"], watch["preprocess"]
    return {
        "encode": encode, "prefill": watch["prefill"], "overhead": ready - encode,
        "first": ready + watch["prefill"], "decode": watch["decode"],
        "assemble": prepared.timings["assemble"],
    }  # fmt: skip


def prompt(vlm: VLM, side: int, batch: int = 1) -> dict[str, torch.Tensor]:
    """Processor output for random square pictures of `side` x `side` cells and a question, on the model's device."""
    adapter: Any = vlm.adapter
    dice = torch.Generator().manual_seed(0)
    config = vlm.model.config.vision_config
    edge = side * config.spatial_merge_size
    values = 3 * config.temporal_patch_size * config.patch_size**2
    words = torch.randint(10, 100, (QUESTION,), generator=dice)
    vision = [getattr(vlm.model.config, f"vision_{end}_token_id") for end in ("start", "end")]
    row = torch.cat([
        torch.tensor(vision[:1]), torch.full((side * side,), adapter.token_id("image")), torch.tensor(vision[1:]), words,
    ])  # fmt: skip
    ids = row.expand(batch, -1).contiguous()
    return {
        "input_ids": ids.to(vlm.device),
        "attention_mask": torch.ones_like(ids).to(vlm.device),
        "mm_token_type_ids": (ids == adapter.token_id("image")).int().to(vlm.device),
        "image_grid_thw": torch.tensor([[1, edge, edge]] * batch).to(vlm.device),
        "pixel_values": torch.randn(batch * edge * edge, values, generator=dice).to(vlm.device),
    }


def medium() -> VLM:
    """A random model of the Qwen2-VL architecture, big enough that ratios mean something on a CPU."""
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
