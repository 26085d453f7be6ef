"""The choice of cells for an engine: before the encoder, in the process that reads requests, without the model.

    pictures, question -> texture, embeddings, the model's own layer or the universal one -> selector -> cells of each picture

It is the glance of an answer (`arr_coc.vlm.stages`): the same selectors and the same fallback. A gaze is not possible here,
because it needs the encoder's tokens.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.embedding.cache import content_key
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.engines.checkpoint import Checkpoint
from arr_coc.engines.options import MAX_QUESTION, GlanceOptions, ServerOptions
from arr_coc.errors import AllocationError, SelectorError
from arr_coc.layer.inference import LayerPredictor
from arr_coc.layer.model import ArrCocLayer, find_layer
from arr_coc.selectors import selector as selector_of
from arr_coc.selectors.base import Downscale, ImageSource, Question, SelectionInput, Selector
from arr_coc.selectors.cues import EmbeddingScorer
from arr_coc.selectors.registry import call_glance
from arr_coc.types.allocation import check_cells
from arr_coc.types.budget import limit
from arr_coc.types.grid import Grid
from arr_coc.vlm.look import image_source

CACHED_PICTURES = 4  # whose textures are kept for the next question
# Qwen's turns, and the shipped reader's.
LAST_USER_TURN = re.compile(r".*(?:<\|im_start\|>user\n|<\|user\|>)(.*?)(?:<\|im_end\|>|<\|assistant\|>|$)", re.DOTALL)
SPECIAL_TOKEN = re.compile(r"<\|[^|<>]*\|>")


def last_question(prompt: str) -> str:
    """The text of the last user turn of a chat prompt, or of a prompt without turns: the end of it where it is long.

    >>> last_question("<|im_start|>user\\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\\n<|im_start|>assistant\\n")
    'What?'
    """
    turn = LAST_USER_TURN.match(prompt)
    return SPECIAL_TOKEN.sub("", turn.group(1) if turn else prompt).strip()[-MAX_QUESTION:]


class Glance:
    """Chooses the cells of a server's pictures."""

    def __init__(self, options: ServerOptions, model: str, tokenize: Callable[[str], Sequence[int]]) -> None:
        """`model`: its folder or hub id. `tokenize`: a text's token ids, without special tokens around it."""
        self.options = options
        self.tokenize = tokenize
        self.embeddings = None if options.embeddings is None else Embeddings(options.embeddings)
        self.layer: LayerPredictor | None = None  # the model's own
        self.universal: LayerPredictor | None = None
        self.embed: Callable[[torch.Tensor], torch.Tensor] | None = (
            None  # word embeddings, which the model's own layer reads
        )
        self.identity = "" if self.embeddings is None else self.embeddings.identity
        self._open_layer(model)
        self._sources: OrderedDict[str, ImageSource] = OrderedDict()
        self._lock = threading.Lock()

    def _open_layer(self, model: str) -> None:
        """The universal layer, and the one of the model's folder or that the server names, with the model's word embeddings."""
        if self.options.layer is None:
            return
        cpu = torch.device("cpu")
        self.universal = LayerPredictor(None, cpu)
        if self.options.layer != "universal":
            checkpoint = Checkpoint(model)
            folder = find_layer(checkpoint.folder) if self.options.layer == "auto" else self.options.layer
            layer = None if folder is None else ArrCocLayer.from_pretrained(folder)
            if layer is not None and layer.is_universal:
                self.universal = LayerPredictor(layer, cpu)
            elif layer is not None:
                self.layer, self.embed = LayerPredictor(checkpoint.fit(layer), cpu), checkpoint.embed
        used = (self.layer, self.universal)
        self.identity += "".join(f" {one.fingerprint}" for one in used if one is not None)

    def reads_question(self, options: GlanceOptions) -> bool:
        """Whether a choice can depend on the question. If not, one choice serves all questions about a picture."""
        return (self.universal is not None or self.embeddings is not None) and not options.fixed

    def choose(
        self, pictures: Sequence[Any], grids: Sequence[Grid], question: str, options: GlanceOptions
    ) -> list[torch.Tensor]:
        """The cells `[K]` of each picture, sorted, at least one."""
        if options.cells is not None:
            if len(options.cells) != len(pictures):
                raise AllocationError(
                    f"expected cells for each of the {len(pictures)} pictures, got {len(options.cells)} lists"
                )
            return [check_cells(one, grid) for one, grid in zip(options.cells, grids, strict=True)]
        return [
            self._choose_one(picture, grid, question, options) for picture, grid in zip(pictures, grids, strict=True)
        ]

    def _choose_one(self, picture: Any, grid: Grid, question: str, options: GlanceOptions) -> torch.Tensor:
        bound = limit(options.budget, grid.n)
        if bound.everything:
            return torch.arange(grid.n)
        selector = selector_of(options.selector)
        if type(selector).before_encoding is Selector.before_encoding:
            raise SelectorError(
                f"expected a selector that chooses before encoding, got {selector.name!r}, which needs the encoder's tokens"
            )
        selection = SelectionInput(
            grid=grid,
            k=bound.k,
            candidates=torch.arange(grid.n),
            question=self._question(question),
            source=self._source(picture),
            seed=options.seed,
            scorer=None if self.embeddings is None else EmbeddingScorer(self.embeddings),
            layer=self.layer,
            universal=self.universal,
            mass=bound.mass,
        )
        choice, _ = call_glance(selector, selection)
        if isinstance(choice, Downscale):
            raise SelectorError(
                f"expected a selector that chooses cells, got {selector.name!r}, which makes pictures smaller: "
                "set the engine's own max_pixels"
            )
        return choice.keep if len(choice.keep) else torch.zeros(1, dtype=torch.long)

    def _question(self, text: str) -> Question:
        ids = torch.tensor(list(self.tokenize(text)), dtype=torch.long)
        return Question(text, ids) if self.embed is None else Question(text, ids, self.embed)

    def _source(self, picture: Any) -> ImageSource:
        """The picture as the engine encodes it (no EXIF rotation); its texture is kept for the next question."""
        if isinstance(picture, Image.Image):
            picture = Image.fromarray(np.asarray(picture.convert("RGB")))
        made = image_source(picture, self.embeddings)
        pixels = torch.from_numpy(np.asarray(made.picture).copy())
        key = content_key(pixels / 255)
        with self._lock:
            source = self._sources.pop(key, made)
            self._sources[key] = source
            while len(self._sources) > CACHED_PICTURES:
                self._sources.popitem(last=False)
        return source
