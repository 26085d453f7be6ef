"""What all requests share (`AppState` with its models), and one request (`PageRequest`: a session and the page's settings)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

import arr_coc
from arr_coc.demo.inputs import ExampleImage, bundled_examples, resolve_folder
from arr_coc.demo.limits import Limits
from arr_coc.demo.session import Session, SessionImage, SessionStore
from arr_coc.demo.state import PageState
from arr_coc.errors import ArrCocError, ModelError, PromptError
from arr_coc.evaluation.data import Evidence
from arr_coc.find.index import Index
from arr_coc.types.question import check_question
from arr_coc.vlm.model import VLM

MAX_LAYERS = 4  # models with another layer than their own that are kept

Output = dict[str, Any]  # what a tab shows: values by the name of their component
RunTab = Callable[["PageRequest"], Iterator[Output]]


class ModelPool:
    """The models, each loaded once. The first is the default; layers are opened below `root`."""

    def __init__(self, models: Sequence[str], root: Path, device: str = "cpu", embeddings: str | None = None) -> None:
        self.names = tuple(dict.fromkeys(models))
        self.embeddings = embeddings
        self.root = root
        self._models: dict[str, VLM] = {}
        for name in self.names:
            self._models[name] = arr_coc.load(name, embeddings=embeddings)
            self._models[name].model.to(device)
        self._with_layer: OrderedDict[tuple[str, str], VLM] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, model: str = "", layer: str = "auto") -> VLM:
        """A model with its own layer (`auto`), with none (`none`), or with the layer of a folder."""
        name = model or self.names[0]
        if name not in self._models:
            raise ModelError(f"expected a model among {', '.join(self.names)}, got {name[:80]!r}: add it with --model")
        layer = layer.strip() or "auto"
        if layer == "auto":
            return self._models[name]
        with self._lock:
            key = (name, layer)
            if key not in self._with_layer:
                self._with_layer[key] = self._wrap(self._models[name], layer)
                while len(self._with_layer) > MAX_LAYERS:
                    self._with_layer.popitem(last=False)
            self._with_layer.move_to_end(key)
            return self._with_layer[key]

    def _wrap(self, vlm: VLM, layer: str) -> VLM:
        """The same model object with another layer: only the layer is loaded."""
        folder = None if layer == "none" else resolve_folder(self.root, layer, "a layer's folder")
        return arr_coc.wrap(vlm.model, vlm.processor, embeddings=vlm.embeddings, layer=folder)


def _run_here(function: RunTab, request: PageRequest) -> Iterator[Output]:
    return function(request)


@dataclass(frozen=True, eq=False)
class AppState:
    """Everything that users share, and their sessions, which they do not share."""

    models: ModelPool
    examples: Mapping[str, ExampleImage]
    limits: Limits
    root: Path  # reports and layers are opened below it
    sessions: SessionStore
    index: Index | None = None  # of the images that the tab Find searches
    run: Callable[[RunTab, PageRequest], Iterator[Output]] = _run_here  # where tabs are computed

    def request(self, session_id: str | None, state: PageState) -> PageRequest:
        return PageRequest(self, self.sessions.get(session_id), state, session_id)


def load_app(
    models: Sequence[str],
    limits: Limits,
    root: Path,
    examples: Mapping[str, ExampleImage] | None = None,
    device: str = "cpu",
    embeddings: str | None = None,
    index: Index | None = None,
) -> AppState:
    """Load the models and warm them up, so that the first question is not slower than the others.

    `examples` are offered together with the bundled ones. `index` is what the tab Find searches; without one there is no such tab.
    """
    known = bundled_examples() | dict(examples or {})
    pool = ModelPool(models, root, device, embeddings)
    for name in pool.names:
        pool.get(name).ask(known["receipt"].load(), "?", budget="12.5%", max_new_tokens=1)
    return AppState(pool, known, limits, root, SessionStore(limits), index)


@dataclass(frozen=True, eq=False)
class PageRequest:
    """One request: a session and the settings of the page."""

    app: AppState
    session: Session
    state: PageState
    session_id: str | None = None

    @cached_property
    def vlm(self) -> VLM:
        return self.app.models.get(self.state.model, self.state.layer)

    @cached_property
    def image(self) -> SessionImage:
        def load() -> tuple[Image.Image, str]:
            examples, name = self.app.examples, self.state.image
            if name not in examples:
                raise ArrCocError(f"expected an image among {', '.join(list(examples)[:12])}, got {name[:80]!r}")
            return examples[name].load(), examples[name].code

        return self.session.open_image(self.state.image, load)

    @property
    def question(self) -> str:
        """The question, checked."""
        return check_question(self.state.question.strip(), self.app.limits.letters)

    @property
    def gaze(self) -> tuple[float, float] | None:
        """Where the user looks, in pixels; None: not set."""
        found = self.state.parse_numbers("gaze", 2)
        return (found[0], found[1]) if found else None

    @property
    def known_questions(self) -> list[str]:
        """The questions of the chosen example."""
        example = self.app.examples.get(self.state.image)
        return [] if example is None else list(dict.fromkeys(sample.question for sample in example.samples))

    @property
    def known_answers(self) -> tuple[str, ...]:
        """The right answers to the question, where the chosen example knows them."""
        example = self.app.examples.get(self.state.image)
        return () if example is None else example.answers(self.state.question.strip())

    @property
    def evidence(self) -> Evidence:
        """Boxes around the answer: the one that the user drew, or those of the example."""
        box = self.state.parse_numbers("box", 4)
        if not box:
            example = self.app.examples.get(self.state.image)
            return () if example is None else example.evidence(self.state.question)
        (x0, x1), (y0, y1) = sorted(box[::2]), sorted(box[1::2])
        width, height = self.image.image.size
        clipped = (max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1))
        if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
            raise PromptError(
                f"expected a box inside the image of {width} x {height} pixels, got {self.state.box!r}, which is empty or outside"
            )
        return ((clipped,),)
