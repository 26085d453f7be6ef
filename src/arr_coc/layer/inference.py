"""Inference with a layer: from a selector's input to a prediction, the same way in training and in use.

    texture -> CellFeatures -> EncodedView (cached in the texture) -> with the question: LayerPrediction

An image has one or several views (tiles, an overview), a video has several time steps. Each is scored separately.
On a GPU the layer runs as CUDA graphs: it consists of hundreds of small kernels, and launching them takes longer than
running them. Elsewhere, and with `ARR_COC_KERNELS=torch`, it runs eagerly; the results are the same.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.devices import fetch, to_device
from arr_coc.embedding.encoder import fingerprint
from arr_coc.layer.model import SCORE_NAMES, ArrCocLayer, EncodedView, LayerConfig, LayerOutput
from arr_coc.layer.novelty import (
    POSITION_CHANNELS,
    SLOW_CHANNELS,
    image_novelty,
    image_statistics,
    marginal_novelty,
    pool_words,
    question_novelty,
)
from arr_coc.layer.universal import Doubt, UniversalLayer, knows_script, shipped_layer
from arr_coc.selectors.base import LayerPrediction, Question, SelectionInput
from arr_coc.selectors.scoring import frames_by_step, pool_channels
from arr_coc.texture import TextureArray
from arr_coc.texture.kernels.cuda_graph import GraphCache, Tensors, can_capture
from arr_coc.types.grid import Grid

COLOURS = ("red", "green", "blue")
CACHED_VIEWS = 4  # per texture: before encoding, with all tokens, with some
CACHED_GRAPHS = 16  # per layer
WORD_MULTIPLE = 16  # on a GPU questions are padded to a multiple of this length: fewer shapes to capture

ScoreFunction = Callable[[EncodedView, torch.Tensor, torch.Tensor], LayerOutput]

_graphs: WeakKeyDictionary[ArrCocLayer, GraphCache] = WeakKeyDictionary()
_graphs_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class CellFeatures:
    """The layer's input for one view of an image: `t` time steps of `h` x `w` cells."""

    channels: torch.Tensor  # [t, C, h, w]
    pixels: torch.Tensor  # [t, P, h, w]
    tokens: torch.Tensor | None = None  # [t, h, w, D] the encoder's tokens; None: nothing is encoded
    encoded: torch.Tensor | None = None  # [t, h, w] which cells are encoded; None: all

    def to(self, device: torch.device) -> CellFeatures:
        """The same in float32, on a device."""
        return CellFeatures(
            self.channels.to(device).float(),
            self.pixels.to(device).float(),
            None if self.tokens is None else self.tokens.to(device).float(),
            None if self.encoded is None else to_device(self.encoded, device),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels.shape[0], self.channels.shape[2], self.channels.shape[3]


@torch.no_grad()
def predict(layer: ArrCocLayer, selection: SelectionInput) -> LayerPrediction:
    """The layer's prediction for the candidates of a selection."""
    config, texture, views = layer.config, selection.textures[0], selection.grid.views
    graphed = GraphedLayer(layer)
    words, mask = graphed.encode_words([read_question(layer, selection)])
    if not layer.reads_tokens:  # then the glance's view serves the gaze, too
        selection = replace(selection, tokens=None)
    features = view_features(selection, config)
    encoded = b"" if selection.tokens is None else selection.candidates.numpy().tobytes()

    def encode() -> list[EncodedView]:
        return [graphed.encode_view(one.to(layer.mean.device)) for one in add_tokens(selection, features)]

    cache: ViewCache = texture.once("layer views", ViewCache)
    known = cache.get((layer, selection.tokens, *features), (graphed.state, encoded), encode)
    output = score_views(layer, known, [view.t for view in views], None, words, mask, graphed.score)
    statistics = texture.once(
        f"layer statistics {config.channels} {views[0]!r}",
        lambda: image_statistics(features[0].channels, config.channels),
    )
    found = summary(layer, output, words, mask, None)
    return _prediction(
        layer, fetch([one[0] for one in found] + [*novelties(layer, words[0], mask[0], statistics)]), selection
    )


def read_question(layer: ArrCocLayer, selection: SelectionInput) -> torch.Tensor:
    """The question as the layer reads it, on its device."""
    return to_device(layer.question_input(selection.question).detach().float(), layer.mean.device)


def summary(
    layer: ArrCocLayer, output: LayerOutput, words: torch.Tensor, mask: torch.Tensor, valid: torch.Tensor | None
) -> list[torch.Tensor]:
    """Of each prediction `[B, ...]`: relevance, scores, weights and, where the layer has them, the logits of its doubts."""
    found = [output.relevance, output.scores.sigmoid(), output.weights]
    if isinstance(layer, UniversalLayer):
        inside = None if valid is None else valid.flatten(1)
        return [*found, layer.doubt_logits(words, mask, output, inside)]
    return [*found, output.weights.new_zeros(len(words), 0)]


def novelties(
    layer: ArrCocLayer, words: torch.Tensor, mask: torch.Tensor, statistics: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How novel an image is, `[]`, and a question `[1]` (`[0]` where the layer has stored none)."""
    image = image_novelty(statistics.to(layer.usual.device), layer.usual, layer.unusual)
    if not len(layer.asked):
        return image, layer.near.new_zeros(0)
    pooled = pool_words(words[None], mask[None])[0]
    return image, question_novelty(pooled, layer.asked, layer.middle, layer.near)[None]


def _prediction(layer: ArrCocLayer, found: Sequence[torch.Tensor], selection: SelectionInput) -> LayerPrediction:
    """A prediction for a selection's candidates, from what was fetched for all cells."""
    whole, all_scores, weights, doubt, image, question = found
    logits, said = whole[selection.candidates], Doubt()
    if isinstance(layer, UniversalLayer):
        said = layer.doubts(doubt.tolist(), whole, float(image))
    return LayerPrediction(
        relevance=logits.sigmoid(),
        scores={name: score[selection.candidates] for name, score in zip(SCORE_NAMES, all_scores, strict=True)},
        weights=dict(zip(SCORE_NAMES, weights.tolist(), strict=True)),
        image_novelty=float(image),
        confidence=float(logits.max()) if len(logits) else 0.0,
        question_novelty=float(question) if len(question) else None,
        found=said.found,
        absent=said.absent,
        whole=said.whole,
        trust=said.trust,
        logits=said.logits,
    )


class LayerPredictor:
    """A layer ready for a model on `device`: predicts when a selector calls it. None: the universal layer that ships.

    `known`: what `arr_coc.layer.batching.predict_together` found for this image and question, on the CPU, and the tokens that it read.
    """

    def __init__(
        self,
        layer: ArrCocLayer | None,
        device: torch.device,
        known: tuple[Sequence[torch.Tensor], torch.Tensor | None] | None = None,
    ) -> None:
        self.layer, self.device, self._known = layer, device, known

    def __call__(self, selection: SelectionInput) -> LayerPrediction:
        if self._known is not None:
            found, tokens = self._known
            if tokens is selection.tokens or not self.on_device().reads_tokens:
                return _prediction(self.on_device(), found, selection)
        with nullcontext() if selection.watch is None else selection.watch.stage("layer"):
            return predict(self.on_device(), selection)

    def knowing(self, found: Sequence[torch.Tensor], selection: SelectionInput) -> LayerPredictor:
        """The same layer, for which the prediction for a selection is there already."""
        return LayerPredictor(self.layer, self.device, (found, selection.tokens))

    def on_device(self) -> ArrCocLayer:
        """The layer, on the model's device. It may have been moved since the last call."""
        layer = shipped_layer(self.device) if self.layer is None else self.layer
        return layer.to(self.device) if layer.mean.device != self.device else layer

    @property
    def fingerprint(self) -> str:
        """A hash of the layer's weights."""
        return layer_fingerprint(self.on_device())

    @torch.no_grad()
    def question_novelty(self, question: Question) -> float | None:
        """Distance of a question from the training questions: up to 1 for one worded like them; None if none are stored."""
        layer = self.on_device()
        if not len(layer.asked):
            return None
        asked = to_device(layer.question_input(question).detach().float(), layer.mean.device)
        words, mask = GraphedLayer(layer).encode_words([asked])
        return float(question_novelty(pool_words(words, mask)[0], layer.asked, layer.middle, layer.near))

    @torch.no_grad()
    def is_unfamiliar(self, selection: SelectionInput, most: float) -> bool:
        """Whether the question is worded unlike the training questions, or the image's novelty is above `most`.

        A prediction says the same. This looks at the question first, then at the fast channels, and ends where it is clear.
        """
        layer, view = self.on_device(), selection.grid.views[0]
        every = layer.config.channels
        with nullcontext() if selection.watch is None else selection.watch.stage("layer"):
            if layer.is_universal and not knows_script(selection.question.text):
                return True
            novelty = self.question_novelty(selection.question)
            if novelty is not None and novelty > 1:
                return True
            texture, usual, unusual = selection.textures[0], layer.usual.cpu(), layer.unusual.cpu()
            fast = tuple(name for name in every if name not in (*SLOW_CHANNELS, *POSITION_CHANNELS))
            if fast:
                statistics = image_statistics(pool_channels(texture, view, fast)[None], fast).cpu()
                if marginal_novelty(statistics, fast, every, usual, unusual) > most:
                    return True
            statistics = image_statistics(pool_channels(texture, view, every)[None], every).cpu()
            return float(image_novelty(statistics, usual, unusual)) > most


def score_views(
    layer: ArrCocLayer,
    views: Sequence[EncodedView],
    steps: Sequence[int],
    owner: torch.Tensor | None,
    words: torch.Tensor,
    mask: torch.Tensor,
    score: ScoreFunction | None = None,
) -> LayerOutput:
    """Questions about encoded views of `steps` time steps each.

    `words` `[Q, T, d]`: from `layer.words`. `owner` None: one question about the only image.
    `score`: runs in place of `layer.score`.
    """
    score = layer.score if score is None else score
    relevance, scores, weights, questions = [], [], [], len(words)
    for view, count in zip(views, steps, strict=True):
        if owner is not None:
            view = view[(owner[:, None] * count + torch.arange(count, device=owner.device)).flatten()]  # [Q t]
        output = score(view, words.repeat_interleave(count, 0), mask.repeat_interleave(count, 0))
        relevance.append(output.relevance.view(questions, -1))
        scores.append(output.scores.view(questions, count, len(SCORE_NAMES), -1).transpose(1, 2).flatten(2))
        weights.append(output.weights.view(questions, count, -1).mean(1))
    return LayerOutput(torch.cat(relevance, 1), torch.cat(scores, 2), torch.stack(weights).mean(0))


def texture_features(frames: Sequence[TextureArray], view: Grid, config: LayerConfig) -> CellFeatures:
    """The features of one view without tokens. A time step of a video is the mean over its frames."""
    fine = replace(view, h=view.h * config.pixels, w=view.w * config.pixels)
    channels, pixels = [], []
    for step in frames_by_step(tuple(frames), view.t):
        channels.append(_mean([pool_channels(texture, view, config.channels) for texture in step]))
        colours = _mean([pool_channels(texture, fine, COLOURS) for texture in step])
        # A cell's pixels lie next to each other, as the layer reads them: no further copy puts them in order.
        parts = colours.view(len(COLOURS), view.h, config.pixels, view.w, config.pixels)
        pixels.append(parts.permute(1, 3, 0, 2, 4).flatten(2).permute(2, 0, 1))  # [3 pixels^2, h, w]
    return CellFeatures(_stack(channels), _stack(pixels))


def _mean(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their mean; a single one as it is: copies of an image's pixels take as long as a block of the layer."""
    return values[0] if len(values) == 1 else torch.stack(list(values)).mean(0)


def _stack(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return values[0][None] if len(values) == 1 else torch.stack(list(values))


def selection_features(selection: SelectionInput, config: LayerConfig) -> list[CellFeatures]:
    """The features of all views of a selection, with the tokens of its candidates if they are encoded."""
    return add_tokens(selection, view_features(selection, config))


def view_features(selection: SelectionInput, config: LayerConfig) -> list[CellFeatures]:
    """The features of all views of a selection without tokens, cached per texture and grid."""
    frames, key = selection.textures, f"layer {config.pixels} {config.channels}"
    return [
        frames[0].once(f"{key} {view!r}", lambda view=view: texture_features(frames, view, config))  # type: ignore[misc]
        for view in selection.grid.views
    ]


def add_tokens(selection: SelectionInput, features: Sequence[CellFeatures]) -> list[CellFeatures]:
    """The features with the candidates' tokens."""
    if selection.tokens is None:
        return list(features)
    tokens, count = selection.tokens.detach().float(), selection.grid.n
    encoded = None
    if len(selection.candidates) < count:
        whole = tokens.new_zeros(count, tokens.shape[-1])
        whole[to_device(selection.candidates, tokens.device)] = tokens
        tokens, encoded = whole, torch.zeros(count, dtype=torch.bool)
        encoded[selection.candidates] = True
    found, start = [], 0
    for one in features:
        t, h, w = one.shape
        here = slice(start, start + t * h * w)
        mask = None if encoded is None else encoded[here].view(t, h, w)
        found.append(replace(one, tokens=tokens[here].view(t, h, w, -1), encoded=mask))
        start = here.stop
    return found


class ViewCache:
    """The last few encoded views of one image. Most of a prediction does not depend on the question."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[object, ...], Hashable, list[EncodedView]]] = []

    def get(
        self, inputs: tuple[object, ...], state: Hashable, encode: Callable[[], list[EncodedView]]
    ) -> list[EncodedView]:
        """The views for these inputs (compared by identity) and this state, encoded on a miss."""
        for known, then, views in self._entries:
            if then == state and len(known) == len(inputs) and all(map(operator.is_, known, inputs)):
                return views
        views = encode()
        self._entries = [*self._entries[1 - CACHED_VIEWS :], (inputs, state, views)]
        return views

    def __getstate__(self) -> dict[str, Any]:
        """A copied texture starts with an empty cache: entries hold layers and tokens."""
        return {"_entries": []}


class GraphedLayer:
    """A layer that runs as CUDA graphs where possible. Make one per call: it reads the weights' state once."""

    def __init__(self, layer: ArrCocLayer) -> None:
        self.layer, self.state = layer, weights_state(layer)

    def encode_view(self, view: CellFeatures, valid: torch.Tensor | None = None) -> EncodedView:
        """`layer.encode_view` of images' features on the layer's device; `valid` `[B, h, w]`: which cells are no padding."""
        given = {"tokens": view.tokens, "encoded": view.encoded, "valid": valid}
        some = {name: one for name, one in given.items() if one is not None}

        def work(channels: torch.Tensor, pixels: torch.Tensor, *rest: torch.Tensor) -> Tensors:
            made = self.layer.encode_view(channels, pixels, **dict(zip(some, rest, strict=True)))
            return made.cells, made.scores, made.query

        name = " ".join(["encode_view", *some])
        cells, scores, query = self._run(name, work, (view.channels, view.pixels, *some.values()))
        return EncodedView(cells, scores, query, valid)

    def encode_words(self, questions: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """`layer.words` of questions `[T, W]` each: `[Q, T, d]` and the mask `[Q, T]`; on a GPU T is padded further."""
        longest = max(len(words) for words in questions)
        length = longest + (-longest % WORD_MULTIPLE if can_graph(questions[0]) else 0)
        padded = torch.stack([F.pad(words, (0, 0, 0, length - len(words))) for words in questions])
        lengths = to_device(torch.tensor([[len(words)] for words in questions]), padded.device)
        mask = torch.arange(length, device=padded.device)[None] < lengths
        (encoded,) = self._run("encode_words", lambda *given: (self.layer.words(*given),), (padded, mask))
        return encoded, mask

    def score(self, view: EncodedView, words: torch.Tensor, mask: torch.Tensor) -> LayerOutput:
        """`layer.score`."""

        def work(
            cells: torch.Tensor, scores: torch.Tensor, query: torch.Tensor, words: torch.Tensor, mask: torch.Tensor,
            *valid: torch.Tensor,
        ) -> Tensors:  # fmt: skip
            found = self.layer.score(EncodedView(cells, scores, query, *valid), words, mask)
            return found.relevance, found.scores, found.weights

        valid = () if view.valid is None else (view.valid,)
        return LayerOutput(*self._run("score", work, (view.cells, view.scores, view.query, words, mask, *valid)))

    def _run(self, name: str, work: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        return layer_graphs(self.layer).run(self.state, name, work, inputs) if can_graph(*inputs) else work(*inputs)


def layer_graphs(layer: ArrCocLayer) -> GraphCache:
    """A layer's captured CUDA graphs. They are freed with the layer."""
    with _graphs_lock:
        return _graphs.setdefault(layer, GraphCache(CACHED_GRAPHS, keep_work=False))  # the work holds the layer


def can_graph(*tensors: torch.Tensor) -> bool:
    # The layer's own weights may need gradients.
    return tensors[0].is_cuda and not torch.is_grad_enabled() and can_capture(*tensors)


def weights_state(layer: ArrCocLayer) -> Hashable:
    """A value that changes when a layer's weights are written to, or moved."""
    found = all_weights(layer)
    written = sum([0 if one.is_inference() else one._version for one in found])
    return str(layer.mean.device), layer.mean.dtype, written, hash(tuple([one.data_ptr() for one in found]))


def all_weights(layer: nn.Module) -> list[torch.Tensor]:
    """All parameters and buffers. `parameters()` also builds names and removes duplicates, which takes ten times as long."""
    found: list[torch.Tensor | None] = []
    modules: list[nn.Module | None] = [layer]
    for module in modules:
        if module is not None:
            found += module._parameters.values()
            found += module._buffers.values()
            modules += module._modules.values()
    return [one for one in found if one is not None]


def layer_fingerprint(layer: ArrCocLayer) -> str:
    """A hash of the layer's weights."""
    return fingerprint(layer.state_dict())
