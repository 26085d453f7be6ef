"""`UniversalLayer`: a layer that depends on no model. It ships with the package and is the default for every wrapped model.

It sees what exists before any encoder runs: the texture's channels, each cell's pixels, and the question as bytes. So it
needs no tokens and no word embeddings of a model, and works on any grid: a cell is always 16 x 16 pixels to it, whatever its
size in the image. A convolutional stem reads letters; `recipes/universal` trains it on drawn and scanned documents.

Besides relevance it says what kind of question it is (`Intent`), and how sure it is that the evidence is among the best cells.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.devices import keep_freed_memory
from arr_coc.errors import LayerError
from arr_coc.layer.model import ANY_MODEL, ArrCocLayer, LayerConfig, LayerOutput, convolve, map_statistics
from arr_coc.selectors.base import Question

CHANNELS = ("edges", "edges_inverted", "highpass", "lowpass", "text", "distance", "x", "y", "eccentricity")
PIXELS = 16  # per side of a cell
MAX_BYTES = 256  # of a question: the start and the end of a longer one
STEM = (16, 40, 80)  # widths of the stem's first convolutions
DILATIONS = (1, 2, 4, 8)
SUMMARY_SHARES = (0.0625, 0.125, 0.25)  # of the cells: how much probability the best ones hold
INTENTS = ("find", "absent", "whole")  # something in the image, something that is not there, all of it
DOUBTS = ("found", "absent", "whole")
CALIBRATION = "calibration.json"
UNKNOWN_SCRIPT = "the universal layer was not asked: it was not trained on questions in this script"
WEIGHTS = Path(__file__).parent / "weights"


def universal_config(**sizes: Any) -> LayerConfig:
    """The configuration of a universal layer."""
    given: dict[str, Any] = {"width": 128, "seeing": 2, "asking": 2, "pixels": PIXELS, "channels": CHANNELS}
    return LayerConfig(ANY_MODEL, token_width=1, word_width=1, **(given | sizes))


def doubt_features(logit: float, relevance: torch.Tensor, image_novelty: float) -> list[float]:
    """What a doubt is recalibrated from: the layer's own logit, and signs that a prediction is unlike those of training.

    These are the log-odds of the probability that the best eighth of the cells holds, by their relevance `[N]`, the best cell's
    logit, and how far the image is from the training images.
    """
    ranked = relevance.float().softmax(-1).sort(descending=True).values
    held = float(ranked[: max(1, round(len(ranked) / 8))].sum().clamp(1e-3, 1 - 1e-3))
    top = max(-8.0, min(8.0, float(relevance.max())))
    return [max(-8.0, min(8.0, logit)), math.log(held / (1 - held)), top, math.log(max(0.1, image_novelty))]


@dataclass(frozen=True)
class Calibration:
    """Logistic regressions from `doubt_features` to what was true, by doubt: weights and, last, the constant.

    `recipes/universal/calibrate.py` fits them. A doubt without one keeps the layer's own probability.
    """

    weights: Mapping[str, Sequence[float]]

    def __call__(self, name: str, features: Sequence[float]) -> float:
        *weights, constant = self.weights.get(name, (1.0, 0.0, 0.0, 0.0, 0.0))
        logit = constant + sum(weight * value for weight, value in zip(weights, features, strict=True))
        return 1 / (1 + math.exp(-logit))

    def save(self, folder: Path) -> None:
        (folder / CALIBRATION).write_text(
            json.dumps({name: list(row) for name, row in self.weights.items()}, indent=1) + "\n"
        )

    @classmethod
    def read(cls, folder: Path) -> Calibration:
        """A folder's calibration; without the file, the layer's own probabilities count."""
        path = folder / CALIBRATION
        if not path.is_file():
            return cls({})
        try:
            found = json.loads(path.read_text())
            wrong = not all(
                name in DOUBTS and len(row) == 5 and all(map(math.isfinite, row)) for name, row in found.items()
            )
        except (OSError, ValueError, AttributeError, TypeError):
            wrong = True
        if wrong:
            raise LayerError(f"expected five numbers for each of {', '.join(DOUBTS)} in {str(path)!r}: fit it again")
        return cls(found)


@dataclass(frozen=True)
class Doubt:
    """What the layer says about its own prediction. All are calibrated probabilities."""

    found: float | None = None  # the evidence is among the best eighth of the cells
    absent: float = 0.0  # the question is about something that is not in the image
    whole: float = 0.0  # the question is about all of the image
    trust: float | None = None  # found and not absent, or whole, by the layer's own logits: what decisions are based on
    logits: tuple[float, ...] = ()  # the layer's own of `DOUBTS`, before recalibration


class CellStem(nn.Module):
    """Letters and shapes from each cell's pixels and its surroundings: pixels `[B, h, w, 3 p^2]` to `[B, h, w, d]`."""

    def __init__(self, pixels: int, width: int) -> None:
        super().__init__()
        self.pixels = pixels
        widths = (3, *STEM, width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, b) for b in STEM)

    def forward(self, pixels: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        cells = pixels.view(*pixels.shape[:3], 3, self.pixels, self.pixels).permute(0, 3, 1, 4, 2, 5)
        image = cells.flatten(4, 5).flatten(2, 3).contiguous(memory_format=torch.channels_last)  # [B, 3, 16 h, 16 w]
        image = image if valid is None else image * _enlarged(valid, image.shape)
        for convolution, norm in zip(self.convolutions[:-1], self.norms, strict=True):
            image = convolution(image)
            if valid is None:
                image = F.gelu(norm(image))
            else:  # beyond an image's border there are zeros, at every scale, and they count in no mean
                inside = _enlarged(valid, image.shape)
                image = F.gelu(_normed(image, inside, norm)) * inside
        return self.convolutions[-1](image).permute(0, 2, 3, 1)


def _enlarged(valid: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`valid` `[B, h, w]` for an image `[B, C, s h, s w]`: `[B, 1, s h, s w]`."""
    scale = shape[-1] // valid.shape[-1]
    return valid[:, None, :, None, :, None].expand(-1, 1, -1, scale, -1, scale).flatten(2, 3).flatten(3, 4)


def _normed(image: torch.Tensor, inside: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    """Group norm with one group over the pixels `inside` `[B, 1, H, W]` of `[B, C, H, W]`."""
    assert isinstance(norm, nn.GroupNorm)
    count = inside.sum((1, 2, 3), keepdim=True) * image.shape[1]
    mean = (image * inside).sum((1, 2, 3), keepdim=True) / count
    away = image - mean
    variance = (away.square() * inside).sum((1, 2, 3), keepdim=True) / count
    scale, shift = (part[:, None, None] for part in (norm.weight, norm.bias))
    return away * (variance + norm.eps).rsqrt() * scale + shift


class ByteEncoder(nn.Module):
    """A question's bytes `[B, T, 1]`, each with its context: `[B, T, d]`; `mask` `[B, T]` is False for padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(256, width)
        self.around = nn.ModuleList(nn.Conv1d(width, width, 3, padding=step, dilation=step) for step in DILATIONS)
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width, bias=False)
        self.back = nn.Linear(width, width)
        self.out = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words[..., 0].long()) * mask[..., None]
        for convolution in self.around:
            hidden = hidden + F.gelu(convolve(hidden, convolution)) * mask[..., None]
        query, key, value = self.into(self.norm(hidden)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        return self.out(hidden + self.back(found.transpose(1, 2).flatten(2)))


class DoubtHead(nn.Module):
    """Logits of the intents and of `found`: `[B, 4]`, from the question's words and from summaries of the prediction."""

    def __init__(self, width: int, hidden: int = 64) -> None:
        super().__init__()
        self.attend = nn.Linear(width, 1, bias=False)
        self.into = nn.Linear(width + SUMMARY_SIZE, hidden)
        self.out = nn.Linear(hidden, len(INTENTS) + 1)

    def forward(
        self, words: torch.Tensor, mask: torch.Tensor, output: LayerOutput, valid: torch.Tensor | None = None
    ) -> torch.Tensor:
        attention = self.attend(words)[..., 0].masked_fill(~mask, -torch.inf).softmax(-1)
        question = (attention[:, None] @ words)[:, 0]
        return self.out(F.gelu(self.into(torch.cat([question, summarise(output, valid)], dim=-1))))


SUMMARY_SIZE = 4 * 4 + len(SUMMARY_SHARES) + 2


def summarise(output: LayerOutput, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Statistics of a prediction's maps, without its gradient: `[B, S]`. `valid` `[B, N]`: the cells that count."""
    logits = output.relevance.detach().float()
    maps = torch.cat([output.scores.detach().float(), logits[:, None]], dim=1)
    if valid is None:
        ranked = logits.softmax(-1).sort(-1, descending=True).values.cumsum(-1)
        held = [ranked[:, max(1, round(share * logits.shape[-1])) - 1] for share in SUMMARY_SHARES]
        top, mean = logits.amax(-1), logits.mean(-1)
    else:
        kept, count = logits.masked_fill(~valid, -torch.inf), valid.sum(-1)
        ranked = kept.softmax(-1).sort(-1, descending=True).values.cumsum(-1)
        last = [(share * count.double()).round().clamp(min=1).long() - 1 for share in SUMMARY_SHARES]
        held = [ranked.gather(1, place[:, None])[:, 0] for place in last]
        top, mean = kept.amax(-1), (logits * valid).sum(-1) / count
    return torch.cat([map_statistics(maps, valid), torch.stack([*held, top / 8, mean / 8], dim=-1)], -1)


class UniversalLayer(ArrCocLayer):
    """A layer for any model: texture, pixels and the question's bytes; no tokens."""

    is_universal = True

    def __init__(self, config: LayerConfig) -> None:
        super().__init__(config)
        del self.token_norm, self.from_tokens
        self.from_pixels = CellStem(config.pixels, config.width)  # type: ignore[assignment]
        self.words = ByteEncoder(config.width, config.heads)  # type: ignore[assignment]
        self.doubt = DoubtHead(config.width)
        self.calibration = Calibration({})

    @property
    def reads_tokens(self) -> bool:
        return False

    def question_input(self, question: Question) -> torch.Tensor:
        """The bytes of the question in lower case: `[T, 1]`."""
        return question_bytes(question.text)

    def _see_pixels(self, pixels: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        return self.from_pixels(pixels, valid)

    def doubt_logits(
        self, words: torch.Tensor, mask: torch.Tensor, output: LayerOutput, valid: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The logits of `DOUBTS` for each prediction `[B, 3]`, before recalibration: words `[B, T, d]`, output for `N` cells,
        `valid` `[B, N]`."""
        logits = self.doubt(words, mask, output, valid).float()
        intents = logits[:, :-1].log_softmax(-1)
        # One by one: a list of indices would be copied to a GPU, and the host would wait for that.
        own = torch.stack([intents[:, INTENTS.index(name)] for name in DOUBTS[1:]], dim=-1)
        return torch.cat([logits[:, -1:], own - torch.log1p(-own.exp().clamp(max=1 - 1e-6))], dim=-1)

    def doubts(self, logits: Sequence[float], relevance: torch.Tensor, image_novelty: float) -> Doubt:
        """The doubt of one prediction: its logits of `DOUBTS`, and the relevance `[N]` of all cells, on the CPU."""
        own = {name: 1 / (1 + math.exp(-logit)) for name, logit in zip(DOUBTS, logits, strict=True)}
        trust = max(own["found"] * (1 - own["absent"]), own["whole"])
        found = {
            name: self.calibration(name, doubt_features(logit, relevance, image_novelty))
            for name, logit in zip(DOUBTS, logits, strict=True)
        }
        return Doubt(**found, trust=trust, logits=tuple(logits))

    def read_extras(self, path: Path, fetched: Callable[[str], Path | None] | None = None) -> None:
        found = path if fetched is None else fetched(CALIBRATION)
        self.calibration = (
            Calibration({}) if found is None else Calibration.read(found if found.is_dir() else found.parent)
        )

    def _save_pretrained(self, path: Path) -> None:
        super()._save_pretrained(path)
        if self.calibration.weights:
            self.calibration.save(path)


def question_bytes(text: str) -> torch.Tensor:
    """A question's bytes in lower case, without blanks at its ends: `[T, 1]`; of a long one the first and last bytes."""
    found = text.strip().lower().encode("utf-8", "replace") or b" "
    if len(found) > MAX_BYTES:
        found = found[: MAX_BYTES // 2] + found[-MAX_BYTES // 2 :]
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).float()[:, None]


def knows_script(text: str) -> bool:
    """Whether most letters, digits and signs of a question are of the script that the layer was trained on (ASCII).

    >>> knows_script("What is the total?"), knows_script("\u5408\u8ba1\u662f\u591a\u5c11?"), knows_script("12?")
    (True, False, True)
    """
    signs = [sign for sign in text if not sign.isspace() and (sign.isalnum() or not sign.isascii())]
    return 2 * sum(sign.isascii() for sign in signs) >= len(signs)


@cache
def shipped_layer(device: torch.device) -> UniversalLayer:
    """The universal layer that ships with the package, on a device."""
    layer = UniversalLayer.from_pretrained(WEIGHTS)
    assert isinstance(layer, UniversalLayer)
    if device.type == "cpu":
        keep_freed_memory()
    return layer.to(device)
