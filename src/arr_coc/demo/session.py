"""Sessions: each user's images and what was computed for them. No session sees another, and unused ones are dropped."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PIL import Image

from arr_coc.demo.inputs import Upload
from arr_coc.demo.limits import Limits
from arr_coc.errors import ImageError
from arr_coc.texture import TextureArray

if TYPE_CHECKING:
    from arr_coc.types.answer import Answer
    from arr_coc.vlm.look import Look
    from arr_coc.vlm.model import VLM

MAX_IMAGES = 2  # per session
REUSABLE_STAGES = ("preprocess", "texture", "encode")  # computed once per image, reused by later questions
MAX_LOOKUP_MS = 4.0  # such a stage that took less was a cache hit
_upload_count = itertools.count(1)


@dataclass(eq=False)
class SessionImage:
    """An image of a session with its cached results: computed once, used for every question."""

    name: str
    image: Image.Image
    code: str  # Python expression for this image
    key: str = ""  # what the page knows the image by: an example's name, or a number that no other upload has
    _built: set[tuple[int, str, int]] = field(default_factory=set)  # (model, stage, cells) that some question computed
    _looks: dict[tuple[int, str, str], Look] = field(default_factory=dict)  # by model, detail and straighten
    _texture: TextureArray | None = None

    @property
    def megapixels(self) -> float:
        """Memory in use: the image, and its textures as far as they are computed (3 bytes are a pixel)."""
        sources = [source for look in self._looks.values() for source in look.sources("image")]
        textures = [texture for source in sources if (texture := source.built) is not None]
        textures += [] if self._texture is None else [self._texture]
        cached = sum(texture.nbytes for texture in textures) / 3e6
        return self.image.width * self.image.height / 1e6 + cached

    def look(self, vlm: VLM, detail: str = "off", straighten: str = "off") -> Look:
        """The model's `Look` at the image, which caches its encodings and the texture."""
        key = (id(vlm.model), detail, straighten)
        if key not in self._looks:
            self._looks[key] = vlm.look(self.image, detail=detail, straighten=straighten)
        return self._looks[key]

    def encode(self, vlm: VLM) -> Look:
        """The same with every cell encoded."""
        look = self.look(vlm)
        prepared = vlm.prepare(look=look, text="?", selector="all")
        self.find_reused(vlm, prepared.timings, prepared.allocations[0].n)
        return look

    def find_reused(self, vlm: VLM, timings: Mapping[str, float], cells: int) -> tuple[str, ...]:
        """The stages whose results an earlier question had computed, given the times and the encoded cells of this one."""
        keys = {stage: (id(vlm.model), stage, cells if stage == "encode" else 0) for stage in REUSABLE_STAGES}
        reused = [
            stage for stage, key in keys.items() if key in self._built and timings.get(stage, 0.0) < MAX_LOOKUP_MS
        ]
        self._built |= {key for stage, key in keys.items() if stage in timings}
        return tuple(reused)

    def texture(self) -> TextureArray:
        """The texture that the models use, or a separate one if no model has seen the image yet."""
        for look in self._looks.values():
            source = look.sources("image")[0]
            if source.view is None:
                return source.texture()
        if self._texture is None:
            self._texture = TextureArray.from_image(self.image)
        return self._texture


@dataclass(frozen=True, eq=False)
class Talk:
    """A conversation of the tab Ask: what it is about, its turns so far, and the answer that the next one continues."""

    about: tuple[str, int]  # the image's key, and the model
    turns: tuple[tuple[str, str, str], ...]  # question, answer, tokens
    answer: Answer


@dataclass(eq=False)
class Session:
    """One user's images: the uploaded one, and the examples used last."""

    upload: Upload | None = None
    images: OrderedDict[str, SessionImage] = field(default_factory=OrderedDict)
    last_used: float = 0.0
    interrupts: int = 0  # requests of the user that come before timings
    talk: Talk | None = None  # the last conversation; another one replaces it
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def set_upload(self, upload: Upload | None) -> None:
        """Replace the uploaded image; None removes it."""
        with self.lock:
            self.upload = upload
            self.images.pop("", None)

    def open_image(self, name: str, load: Callable[[], tuple[Image.Image, str]]) -> SessionImage:
        """An example by name, or with an empty name the uploaded image; loaded where the session does not hold it."""
        with self.lock:
            if name not in self.images:
                if not name and self.upload is None:
                    raise ImageError("there is no image yet: upload or paste one, or choose an example")
                image, code = (self.upload.image, repr(self.upload.name)) if not name and self.upload else load()
                key = name or f"upload {next(_upload_count)}"
                self.images[name] = SessionImage(name or "your image", image, code, key)
                while len(self.images) > MAX_IMAGES:
                    self.images.popitem(last=False)
            self.images.move_to_end(name)
            return self.images[name]

    @property
    def megapixels(self) -> float:
        own = 0.0 if self.upload is None else self.upload.image.width * self.upload.image.height / 1e6
        return own + sum(image.megapixels for name, image in self.images.items() if name)


class SessionStore:
    """All sessions, the least recently used first. Old sessions, and those over the limits, are dropped."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, session_id: str | None) -> Session:
        """The session of an id, new if need be. Without an id it is a new one that is not stored."""
        now = self._clock()
        with self._lock:
            if not session_id:
                return Session(last_used=now)
            session = self._sessions.setdefault(session_id, Session())
            session.last_used = now
            self._sessions.move_to_end(session_id)
            self._evict(now)
            return session

    def remove(self, session_id: str | None) -> None:
        with self._lock:
            self._sessions.pop(session_id or "", None)

    def interrupt(self) -> None:
        """End all timings at their next run."""
        with self._lock:
            for session in self._sessions.values():
                session.interrupts += 1

    def __len__(self) -> int:
        return len(self._sessions)

    def _evict(self, now: float) -> None:
        def over_limit() -> bool:
            oldest = next(iter(self._sessions.values()))
            return (
                len(self._sessions) > self.limits.visitors
                or now - oldest.last_used > 60 * self.limits.minutes
                or sum(session.megapixels for session in self._sessions.values()) > self.limits.kept_megapixels
            )

        while len(self._sessions) > 1 and over_limit():  # the current session stays
            self._sessions.popitem(last=False)
