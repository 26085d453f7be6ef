"""What deciding costs: the texture, `realize` on a ready one, a second question, and whole answers against dense ones.

Every figure is the median of interleaved rounds; shares and ratios are medians of each round's own ratio, so that a busy
moment hits both sides of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from arr_coc.layer.inference import judged
from arr_coc.selectors.base import Sight, Words
from arr_coc.texture import TextureArray
from arr_coc.types.answer import Answer
from arr_coc.types.grid import Grid
from arr_coc.vlm.look import Look
from arr_coc.vlm.model import VLM
from arr_coc.vlm.realize import realize

QUESTIONS = ("What is the total amount?", "What is the date on the receipt?")
DECIDING = ("texture", "glance", "judge", "scout", "gaze", "embed")
ASKED: dict[str, dict[str, Any]] = {
    "dense": {"budget": "all"},
    "default": {"budget": "auto", "glance": "auto"},  # as `arr-coc ask` does
    "glance 50%": {"budget": "auto", "glance": "50%"},
    "glance 25%": {"budget": "auto", "glance": "25%"},
    "glance all": {"budget": "auto"},
}


@dataclass(eq=False)
class Found:
    """Milliseconds of everything, round by round."""

    runs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, milliseconds: float) -> None:
        self.runs.setdefault(name, []).append(milliseconds)

    def median(self, name: str) -> float:
        return statistics.median(self.runs[name])

    def best(self, name: str) -> float:
        return min(self.runs[name])

    def ratio(self, one: str, other: str) -> float:
        """The median of `one` over `other` in the same round."""
        return statistics.median(a / b for a, b in zip(self.runs[one], self.runs[other], strict=True))


@dataclass(frozen=True)
class Goal:
    """A figure beside what it should be."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def goal(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"

    @property
    def reached(self) -> bool:
        return self.value <= self.at_most if self.at_most is not None else self.value >= (self.at_least or 0.0)


def goals(found: Found) -> list[Goal]:
    """What deciding may cost, and what it should save."""
    known = [Goal("realize on a ready texture, ms", found.median("realize"), at_most=10)]
    if "layer, second question" in found.runs:
        known.append(
            Goal("the layer on what it has seen, ms", found.median("layer, second question"), at_most=10),
        )
    second, first = "allocator, second question", "allocator, first question"
    known.append(Goal("allocator, second question / first", found.ratio(second, first), at_most=0.2))
    for name in list(ASKED)[1:]:
        known.append(
            Goal(f"deciding / dense answer, {name}", found.ratio(f"deciding, {name}", "ask, dense"), at_most=0.1)
        )
    for name in ("default", "glance 50%", "glance 25%"):  # where everything is encoded, little time can be saved
        known.append(Goal(f"times faster than dense, {name}", found.ratio("ask, dense", f"ask, {name}"), at_least=1.5))
    return known


def measure(
    vlm: VLM, image: Image.Image, *, rounds: int = 5, side: int = 36, tokens: int = 32, tick: Callable[[], None] = lambda: None
) -> Found:  # fmt: skip
    """Everything once to warm up, then `rounds` times in turn, on a grid of `side` x `side` cells where there is no model."""
    found = Found()
    for number in range(rounds + 1):
        one = _round(vlm, image, side, tokens)
        if number:
            for name, milliseconds in one.items():
                found.add(name, milliseconds)
        tick()
    return found


def _round(vlm: VLM, image: Image.Image, side: int, tokens: int) -> dict[str, float]:
    texture = TextureArray.from_image(image)
    made = {"texture": _time(lambda: realize(texture, "", (side, side)))}  # channels are built when first asked for
    made["realize"] = _time(lambda: realize(texture, "", (side, side)))
    if vlm.adapter.layer is not None:
        first = _sight(vlm, texture, side, QUESTIONS[0])
        second = _sight(vlm, texture, side, QUESTIONS[1], first.tokens)
        layer = vlm.adapter.layer
        made["layer, first question"] = _time(lambda: judged(layer, first))
        made["layer, second question"] = _time(lambda: judged(layer, second))
    look = vlm.look(image)
    for place, question in zip(("first", "second"), QUESTIONS, strict=True):
        made[f"allocator, {place} question"] = sum(_decided(vlm, look, question).values())
    for name, wish in ASKED.items():
        start = time.perf_counter()
        answer = vlm.ask(image, QUESTIONS[0], max_new_tokens=tokens, **wish)
        made[f"ask, {name}"] = (time.perf_counter() - start) * 1e3
        assert isinstance(answer, Answer)
        made[f"deciding, {name}"] = sum(answer.timings.get(stage, 0.0) for stage in DECIDING)
    return made


def _decided(vlm: VLM, look: Look, question: str) -> Mapping[str, float]:
    """What choosing cost for one question about a look: the stages that decide."""
    timings = vlm.prepare(look=look, text=question, budget="auto").timings
    return {stage: timings[stage] for stage in DECIDING if stage in timings}


def _sight(vlm: VLM, texture: TextureArray, side: int, question: str, tokens: torch.Tensor | None = None) -> Sight:
    """A sight of a picture whose tokens nobody made: time does not depend on what they are."""
    grid = Grid(1, side, side)
    embed: Any = vlm.model.get_input_embeddings()
    ids = vlm.prompter.ids(question)
    if tokens is None:
        tokens = torch.randn(grid.n, embed.weight.shape[-1], generator=torch.Generator().manual_seed(0))
    return Sight(
        grid, None, torch.arange(grid.n), Words(question, ids, lambda asked: embed(asked.to(vlm.device))),
        tokens=tokens.to(vlm.device), picture=lambda: texture,
    )  # fmt: skip


def _time(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3
