"""Desks: what each visitor has in front of them. Nobody sees another's, and what is not used is cleared away."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image

from arr_coc.demo.limits import Limits
from arr_coc.demo.uploads import Upload
from arr_coc.errors import ImageError
from arr_coc.texture import TextureArray

if TYPE_CHECKING:
    from arr_coc.types.answer import Answer
    from arr_coc.vlm.look import Look
    from arr_coc.vlm.model import VLM

PICTURES = 2  # that one visitor's desk holds
BUILT = ("preprocess", "texture", "encode")  # what a second question may find ready


@dataclass(eq=False)
class Subject:
    """One picture on a desk, with everything that was built for it: built once, used for every question."""

    name: str
    image: Image.Image
    code: str  # a Python expression that is this picture
    spent: dict[tuple[int, str, int], float] = field(
        default_factory=dict
    )  # (model, stage, cells) -> ms when it was built
    dense: dict[tuple[int, str], Answer] = field(default_factory=dict)  # (model, question) -> answer from all tokens
    _looks: dict[int, Look] = field(default_factory=dict)
    _texture: TextureArray | None = None

    @property
    def megapixels(self) -> float:
        """What it holds, as pictures: the picture itself, and its textures as far as they are worked out."""
        made = [look.sources("image")[0] for look in self._looks.values()]
        textures = [one for source in made if (one := source.built) is not None]
        textures += [] if self._texture is None else [self._texture]
        held = sum(one.nbytes for one in textures) / 3e6
        return self.image.width * self.image.height / 1e6 + held

    def look(self, vlm: VLM) -> Look:
        """The model's look at the picture, which keeps its encodings and the texture."""
        key = id(vlm.model)
        if key not in self._looks:
            self._looks[key] = vlm.look(self.image)
        return self._looks[key]

    def encoded(self, vlm: VLM) -> Look:
        """The same with every cell encoded; what that takes is remembered, whoever needs it first."""
        look = self.look(vlm)
        made = vlm.prepare(look=look, text="?", selector="all")
        self.note(vlm, dict(made.timings), made.allocations[0].n)
        return look

    def note(self, vlm: VLM, timings: Mapping[str, float], cells: int) -> None:
        """Remember what building took: the first time is the one that counts, later ones find it ready."""
        for stage in BUILT:
            if stage in timings:
                self.spent.setdefault(self.built(vlm, stage, cells), timings[stage])

    @staticmethod
    def built(vlm: VLM, stage: str, cells: int) -> tuple[int, str, int]:
        return id(vlm.model), stage, cells if stage == "encode" else 0

    def texture(self) -> TextureArray:
        """The texture that the models see, too; or one of its own where none has looked yet."""
        for look in self._looks.values():
            return look.sources("image")[0].texture()
        if self._texture is None:
            self._texture = TextureArray.from_image(self.image)
        return self._texture


@dataclass(eq=False)
class Desk:
    """One visitor's pictures: their own, and the examples they looked at last."""

    upload: Upload | None = None
    subjects: OrderedDict[str, Subject] = field(default_factory=OrderedDict)
    used: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def put(self, upload: Upload | None) -> None:
        """A new picture of their own takes the place of the last one; None takes it away."""
        with self.lock:
            self.upload = upload
            self.subjects.pop("", None)

    def subject(self, name: str, load: Callable[[], tuple[Image.Image, str]]) -> Subject:
        """An example (or with an empty name their own picture), as it lies there or newly put."""
        with self.lock:
            if name not in self.subjects:
                if not name and self.upload is None:
                    raise ImageError("there is no picture here: send one, paste one, or choose an example")
                image, code = (self.upload.image, repr(self.upload.name)) if not name and self.upload else load()
                self.subjects[name] = Subject(name or "your picture", image, code)
                while len(self.subjects) > PICTURES:
                    self.subjects.popitem(last=False)
            self.subjects.move_to_end(name)
            return self.subjects[name]

    @property
    def megapixels(self) -> float:
        mine = 0.0 if self.upload is None else self.upload.image.width * self.upload.image.height / 1e6
        return mine + sum(one.megapixels for name, one in self.subjects.items() if name)


class Desks:
    """All visitors' desks, the one used last at the end; old ones, and too many, are cleared."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._desks: OrderedDict[str, Desk] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, visitor: str | None) -> Desk:
        """A visitor's desk; somebody without a name gets one that nobody finds again."""
        now = self._clock()
        with self._lock:
            if not visitor:
                return Desk(used=now)
            desk = self._desks.setdefault(visitor, Desk())
            desk.used = now
            self._desks.move_to_end(visitor)
            self._clear(now)
            return desk

    def leave(self, visitor: str | None) -> None:
        with self._lock:
            self._desks.pop(visitor or "", None)

    def __len__(self) -> int:
        return len(self._desks)

    def _clear(self, now: float) -> None:
        def too_much() -> bool:
            oldest: Any = next(iter(self._desks.values()))
            return (
                len(self._desks) > self.limits.visitors
                or now - oldest.used > 60 * self.limits.minutes
                or sum(desk.megapixels for desk in self._desks.values()) > self.limits.kept_megapixels
            )

        while len(self._desks) > 1 and too_much():  # the visitor who is here stays
            self._desks.popitem(last=False)
