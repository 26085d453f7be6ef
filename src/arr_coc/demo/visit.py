"""One request: a visitor's desk, the view they ask for, and what the page has to answer with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from arr_coc.demo.desks import Desk, Desks, Subject
from arr_coc.demo.examples import Example, find
from arr_coc.demo.limits import Limits
from arr_coc.demo.shelf import Shelf
from arr_coc.demo.views import View
from arr_coc.errors import PromptError
from arr_coc.evaluation.data import Evidence

if TYPE_CHECKING:
    from arr_coc.vlm.model import VLM


@dataclass(frozen=True, eq=False)
class House:
    """What all visitors share: models, examples, limits. Nothing of anybody's is in here but the desks, each by itself."""

    shelf: Shelf
    examples: Mapping[str, Example]
    limits: Limits
    root: Path  # below which folders may be opened
    desks: Desks

    def visit(self, visitor: str | None, view: View) -> Visit:
        return Visit(self, self.desks.of(visitor), view)


@dataclass(frozen=True, eq=False)
class Visit:
    """A visitor with a view."""

    house: House
    desk: Desk
    view: View

    @cached_property
    def vlm(self) -> VLM:
        return self.house.shelf.get(self.view.model, self.view.layer)

    @cached_property
    def subject(self) -> Subject:
        """The picture that the view is of."""

        def load() -> tuple[Image.Image, str]:
            example = find(self.house.examples, self.view.image)
            return example.load(), example.code

        return self.desk.subject(self.view.image, load)

    @property
    def question(self) -> str:
        """The question, if it is one."""
        words, most = self.view.question.strip(), self.house.limits.letters
        if not words:
            raise PromptError("there is no question here: write one, such as 'What is the total amount?'")
        if len(words) > most:
            raise PromptError(f"expected a question of at most {most} letters, got {len(words)}: shorten it")
        return words

    @property
    def evidence(self) -> Evidence:
        """Where the answer stands: the box that was drawn, or what the example knows."""
        box = self.view.numbers("box", 4)
        if box:
            left, top, right, bottom = box
            width, height = self.subject.image.size
            clipped = (max(0.0, min(left, right)), max(0.0, min(top, bottom)),
                       min(float(width), max(left, right)), min(float(height), max(top, bottom)))  # fmt: skip
            if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
                raise PromptError(
                    f"the box {self.view.box!r} is empty or outside the picture of {width} x {height} pixels"
                )
            return ((clipped,),)
        example = self.house.examples.get(self.view.image)
        return () if example is None else example.evidence(self.view.question)
