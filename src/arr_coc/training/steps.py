"""One step of learning: some lessons with the same grid, some questions of each, and the losses of all."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from arr_coc.layer.inference import Seen, judge
from arr_coc.layer.model import ArrCocLayer, Judged
from arr_coc.layer.question_novelty import padded
from arr_coc.training import losses as targets
from arr_coc.training.examples import Asked, Lesson
from arr_coc.training.settings import Settings


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures of one shape with their questions, on the layer's device."""

    pictures: list[list[Seen]]
    owner: torch.Tensor  # [Q]
    words: torch.Tensor  # [Q, T, W]
    there: torch.Tensor  # [Q, T]
    asked: list[Asked]
    lessons: list[Lesson]  # of each question

    def judged(self, layer: ArrCocLayer) -> Judged:
        return judge(layer, self.pictures, self.owner, self.words, self.there)


class Draws:
    """Lessons in random order, shapes as often as they have pictures.

    What a step draws depends on the seed, the process and the step alone: whoever goes on at a step draws the same.
    """

    def __init__(self, lessons: Sequence[Lesson], settings: Settings, rank: int = 0) -> None:
        self.settings, self.rank = settings, rank
        self.shapes: dict[object, list[Lesson]] = defaultdict(list)
        for lesson in lessons:
            self.shapes[lesson.shape].append(lesson)
        self.keys = list(self.shapes)
        self.counts = [len(self.shapes[key]) for key in self.keys]

    def at(self, step: int, device: torch.device) -> Batch:
        chance = self.settings.chance("draw", step, self.rank)
        mine = self.shapes[chance.choices(self.keys, self.counts)[0]]
        lessons = chance.sample(mine, min(self.settings.pictures, len(mine)))
        pictures = [[self._told(view, device, chance) for view in lesson.views] for lesson in lessons]
        asked = [
            (number, one)
            for number, lesson in enumerate(lessons)
            for one in chance.sample(lesson.asked, min(self.settings.questions, len(lesson.asked)))
        ]
        return collate(pictures, lessons, asked, device)

    def _told(self, view: Seen, device: torch.device, draw: random.Random) -> Seen:
        """A view with all of its tokens, with some, or with none: what is known before and after a glance."""
        chance = draw.random()
        placed = view.to(device)
        if chance < self.settings.blind:
            return replace(placed, tokens=None)
        if chance < self.settings.blind + self.settings.partly:
            share, dice = draw.uniform(0.2, 0.7), torch.Generator().manual_seed(draw.getrandbits(31))
            return replace(placed, encoded=(torch.rand(view.shape, generator=dice) < share).to(device))
        return placed


def collate(
    pictures: list[list[Seen]], lessons: Sequence[Lesson], asked: Sequence[tuple[int, Asked]], device: torch.device
) -> Batch:
    """Questions of different lengths side by side."""
    words, there = padded([one.words for _, one in asked])
    owner = torch.tensor([number for number, _ in asked], device=device)
    return Batch(
        pictures, owner, words.to(device), there.to(device), [one for _, one in asked],
        [lessons[number] for number, _ in asked],
    )  # fmt: skip


def box_losses(batch: Batch, judged: Judged) -> dict[str, torch.Tensor]:
    """The losses of all questions whose evidence is known."""
    groups = [one.groups for one in batch.asked]
    if not any(groups):
        return {}
    evidence = targets.Evidence.of(groups, judged.relevance.shape[-1], judged.relevance.device)
    return {
        "ranking": targets.ranking_loss(judged.relevance, evidence),
        "calibration": targets.calibration_loss(judged.relevance, evidence),
    }
