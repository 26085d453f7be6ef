"""`ArrCocLayer`: the trained part of ARR-COC for one model, as a module for any training loop.

    channels, pixels, tokens -> encode_view -> score (with the question): three scores -> policy -> relevance

Without tokens it scores an image that is not encoded yet (a glance); with some tokens, one that is encoded in part.
Images of different grids run in one batch, padded on the right and at the bottom: `valid` `[B, h, w]` is False for padding,
which changes nothing but rounding for the other cells.
Documents consist of rows and columns. Cells attend along both, which costs N (h + w) instead of N squared, and a label finds
its value in one step. Attribute names appear in saved weights: do not rename them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Unpack

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.embedding import storage
from arr_coc.errors import LayerError
from arr_coc.files import replacing
from arr_coc.hub import HubModule, HubOptions, fetch, is_repo_id, reach
from arr_coc.layer.novelty import fit_questions, pool_words, statistics_size
from arr_coc.selectors.base import Question

# The texture's channels for each cell. Colours are used in finer detail, as the cell's own pixels.
CHANNELS = (
    "edges", "edges_inverted", "highpass", "lowpass", "saliency", "text", "distance", "x", "y", "eccentricity",
)  # fmt: skip
POOLINGS = ("learned", "max", "mean", "sum")
BALANCES = ("sigmoid", "softmax")
SCORE_NAMES = ("information", "salience", "coupling")
WEIGHTS, CONFIG = "layer.safetensors", "layer.json"
ANY_MODEL = "any"  # the model's name in the configuration of a layer that depends on none
SUBFOLDER = "layer"  # of a model's folder: engines load every *.safetensors file that lies next to the model's own
FORMAT, VERSION = "a learned ARR-COC layer", 3
WAVES = (1.0, 2.0, 4.0, 8.0, 16.0)  # half periods over the image's width and height
TONES = 8  # bins of the histogram for a cell's entropy
STATISTICS = 4  # of a score map: mean, standard deviation, maximum, evenness


@dataclass(frozen=True)
class LayerConfig:
    """Sizes of a layer. `model` names the model whose tokens and word embeddings it reads."""

    model: str
    token_width: int  # of the encoder's tokens
    word_width: int  # of the word embeddings
    width: int = 96
    heads: int = 4
    seeing: int = 1  # blocks before the question, computed once per image
    asking: int = 2  # blocks with the question
    pixels: int = 8  # pixels per side of a cell
    channels: tuple[str, ...] = CHANNELS
    pooling: str = "learned"  # how a cell's similarities to the question's words become one number
    balance: str = "sigmoid"  # weights of the scores: independent (sigmoid), or shares of 1 (softmax)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise LayerError(f"expected {one.name} as a whole number from 1 on, got {value!r}")
        if self.width % (4 * self.heads) or self.heads % 2:
            raise LayerError(
                f"expected an even number of heads, and a width that is a multiple of 4 times it, "
                f"got {self.heads} and {self.width}"
            )
        if not self.channels or not all(isinstance(name, str) for name in self.channels):
            raise LayerError(f"expected the names of one channel or more, got {self.channels!r}")
        if self.pooling not in POOLINGS:
            raise LayerError(f"expected pooling as one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.balance not in BALANCES:
            raise LayerError(f"expected balance as one of {', '.join(BALANCES)}, got {self.balance!r}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerConfig:
        try:
            return cls(**{**values, "channels": tuple(values["channels"])})
        except (TypeError, KeyError) as error:
            raise LayerError(f"expected the shape of a layer, got {sorted(values)} ({error})") from None


class CellLinear(nn.Linear):
    """A linear map of cells `[B, h, w, d]`.

    On a CPU it runs as a 1 x 1 convolution: torch gives that to oneDNN and `linear` to the BLAS it was built with. Where that is
    MKL and the processor is not Intel's, `linear` takes twice as long. The numbers are the same up to rounding.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        # With one thread torch leaves convolutions of few images to a slow loop, so each row of cells is an image.
        if input.ndim != 4 or input.device.type != "cpu" or torch.is_grad_enabled() or len(input) * input.shape[1] < 16:
            return super().forward(input)
        rows = input.flatten(0, 1)[:, None].permute(0, 3, 1, 2)  # [B h, d, 1, w]
        mapped = F.conv2d(rows, self.weight[:, :, None, None], self.bias)
        return mapped.permute(0, 2, 3, 1).view(*input.shape[:3], -1)


class RowColumnAttention(nn.Module):
    """Attention of each cell to its row (half of the heads) and to its column (the others): `[B, h, w, d]`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.into = CellLinear(width, 3 * width, bias=False)  # a key's bias would change nothing
        self.out = CellLinear(width, width)

    def forward(self, cells: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        batch, high, wide, width = cells.shape
        split = self.into(self.norm(cells)).view(batch, high, wide, 3, self.heads, width // self.heads)
        half = self.heads // 2
        # The rows of all images are one batch: the fast attention kernels take four dimensions, not five.
        rows = split[..., :half, :].permute(3, 0, 1, 4, 2, 5).flatten(1, 2)  # [3, B h, heads, w, d]
        columns = split[..., half:, :].permute(3, 0, 2, 4, 1, 5).flatten(1, 2)  # [3, B w, heads, h, d]
        # Padded rows attend like the others, so that no softmax is over nothing.
        in_row, in_column = (None, None) if valid is None else (_keys(valid[:, 0], high), _keys(valid[:, :, 0], wide))
        along, down = _attend(rows, in_row), _attend(columns, in_column)
        along = along.reshape(batch, high, half, wide, -1).permute(0, 1, 3, 2, 4)
        down = down.reshape(batch, wide, half, high, -1).permute(0, 3, 1, 2, 4)
        return cells + self.out(torch.cat([along, down], dim=-2).flatten(-2))


def _attend(lines: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
    """Attention within each line: queries, keys and values `[3, L, heads, n, e]` to `[L, heads, n, e]`; `keys`: a mask."""
    query, key, value = lines
    if keys is not None or lines.device.type != "cpu" or torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, keys)
    # Lines are short: on a CPU two products and a softmax take two thirds of the fused kernel's time.
    return ((query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)).softmax(-1) @ value


def _keys(valid: torch.Tensor, lines: int) -> torch.Tensor:
    """The attention mask `[B lines, 1, 1, n]` of lines whose valid keys are those of their image `[B, n]`."""
    return valid.repeat_interleave(lines, 0)[:, None, None]


class QuestionAttention(nn.Module):
    """Attention of each cell to the question's words `[B, T, d]`; `mask` `[B, T]` is False for padding.

    There are few words and many cells: with the cells as the innermost dimension, a CPU is several times faster.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = CellLinear(width, width)
        self.keys = nn.Linear(width, 2 * width, bias=False)
        self.out = CellLinear(width, width)

    def queries(self, cells: torch.Tensor) -> torch.Tensor:
        """The cells' queries, which do not depend on the question: `[B, heads, d / heads, N]`."""
        return self.query(self.norm(cells)).flatten(1, 2).transpose(1, 2).unflatten(1, (self.heads, -1))

    def forward(
        self, cells: torch.Tensor, words: torch.Tensor, mask: torch.Tensor, query: torch.Tensor | None = None
    ) -> torch.Tensor:
        query = self.queries(cells) if query is None else query
        key, value = self.keys(words).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, heads, T, each]
        bias = torch.zeros_like(mask, dtype=cells.dtype).masked_fill(~mask, -math.inf)
        logits = (key / math.sqrt(key.shape[-1])) @ query + bias[:, None, :, None]  # [B, heads, T, N]
        found = value.transpose(2, 3) @ logits.softmax(2)  # [B, heads, each, N]
        return cells + self.out(found.flatten(1, 2).transpose(1, 2).reshape(cells.shape))


class Neighbours(nn.Module):
    """An MLP with a depthwise 3 x 3 convolution between its two linear maps: `[B, h, w, d]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = CellLinear(width, 2 * width)
        self.beside = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.out = CellLinear(2 * width, width)

    def forward(self, cells: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        inner = self.into(self.norm(cells)).permute(0, 3, 1, 2)
        inner = inner if valid is None else inner * valid[:, None]  # beyond an image's border there are zeros
        inner = F.gelu(inner + self.beside(inner))
        return cells + self.out(inner.permute(0, 2, 3, 1))


class QuestionEncoder(nn.Module):
    """Word embeddings `[B, T, W]`, of characters or word pieces, each with its context: `[B, T, d]`."""

    def __init__(self, word_width: int, width: int, dilations: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(word_width)
        self.into = nn.Linear(word_width, width)
        self.around = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2 * step, dilation=step) for step in dilations)
        self.out = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.into(self.norm(words)) * mask[..., None]
        for convolution in self.around:
            hidden = (hidden + F.gelu(convolve(hidden, convolution))) * mask[..., None]
        return self.out(hidden)


def convolve(words: torch.Tensor, convolution: nn.Module) -> torch.Tensor:
    """A dilated convolution along the words `[B, T, d]` as one product: three times as fast as torch's on few words."""
    assert isinstance(convolution, nn.Conv1d)
    (step,), (size,) = convolution.dilation, convolution.kernel_size
    reach = step * (size - 1)
    windows = F.pad(words, (0, 0, reach // 2, reach // 2)).unfold(1, reach + 1, 1)[..., ::step]  # [B, T, d, size]
    return F.linear(windows.flatten(2), convolution.weight.flatten(1), convolution.bias)


def entropy(pixels: torch.Tensor) -> torch.Tensor:
    """Entropy of the tones of a cell's pixels `[B, P, h, w]`, 0 (one tone) to 1 (all equally frequent): `[B, 1, h, w]`."""
    if pixels.device.type == "cpu":
        share = _count_tones(pixels.detach().permute(0, 2, 3, 1)).permute(0, 3, 1, 2) / pixels.shape[1]
    else:
        tone = (pixels.clamp(0, 1) * (TONES - 1)).round().to(torch.uint8)  # it is read once per tone
        share = torch.stack([(tone == level).float().mean(1) for level in range(TONES)], dim=1)
    return -(share * share.clamp(min=1e-9).log()).sum(1, keepdim=True) / math.log(TONES)


def _count_tones(pixels: torch.Tensor) -> torch.Tensor:
    """How many of a cell's pixels `[B, h, w, P]` have each tone: float32 `[B, h, w, TONES]`. OpenCV counts bytes fastest."""
    cells = pixels.reshape(-1, pixels.shape[-1]).float().clamp(0, 1)
    tone = cv2.convertScaleAbs(cells.numpy(), alpha=TONES - 1)  # rounded as torch rounds
    counts = [cv2.reduce((tone == level).view(np.uint8), 1, cv2.REDUCE_SUM, dtype=cv2.CV_32F) for level in range(TONES)]
    return torch.from_numpy(np.concatenate(counts, axis=1)).view(*pixels.shape[:-1], TONES).to(pixels.device)


class InformationHead(nn.Module):
    """How much there is to see: logits `[B, h, w]` from the channels `[B, C, h, w]` and each cell's entropy."""

    def __init__(self, channels: int, hidden: int = 32) -> None:
        super().__init__()
        self.weigh = nn.Conv2d(channels + 1, hidden, 1)
        self.out = nn.Conv2d(hidden, 1, 1)

    def forward(self, channels: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return self.out(F.gelu(self.weigh(torch.cat([channels, entropy(pixels)], dim=1))))[:, 0]


class SalienceHead(nn.Module):
    """What stands out from its surroundings: logits `[B, h, w]` from the channels `[B, C, h, w]`."""

    def __init__(self, channels: int, hidden: int = 24) -> None:
        super().__init__()
        self.near = nn.Conv2d(channels, hidden, 3, padding=1)
        self.far = nn.Conv2d(hidden, hidden, 3, padding=2, dilation=2)
        self.out = nn.Conv2d(hidden, 1, 1)

    def forward(self, channels: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
        channels = channels if valid is None else channels * valid[:, None]
        near = F.gelu(self.near(channels))
        near = near if valid is None else near * valid[:, None]
        return self.out(near + F.gelu(self.far(near)))[:, 0]


class CouplingHead(nn.Module):
    """How a cell relates to the question: logits `[B, h, w]` from cells `[B, h, w, d]` and words `[B, T, d]`."""

    def __init__(self, width: int, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.cells, self.words = nn.Linear(width, width), nn.Linear(width, width)
        self.worth = nn.Linear(width, 1) if pooling in ("learned", "sum") else None  # weight of each word in the sum
        self.mix = nn.Parameter(torch.zeros(3)) if pooling == "learned" else None
        self.own = nn.Linear(width, 1)  # from the cell alone, after attention to the question

    def forward(self, cells: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        word = self.words(words) / math.sqrt(cells.shape[-1])
        # The cells' linear map is applied to the words, which are few. Cells are innermost: they are many.
        similar = (word @ self.cells.weight) @ cells.flatten(1, 2).transpose(1, 2) + (word @ self.cells.bias)[..., None]
        return self._pool(similar, words, mask).view(cells.shape[:3]) + self.own(cells)[..., 0]

    def _pool(self, similar: torch.Tensor, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Similarity to every word `[B, T, N]` as one number `[B, N]`."""
        count = mask.sum(-1, keepdim=True)
        largest = similar.masked_fill(~mask[..., None], -math.inf).amax(1)
        shares = [mask / count]  # weights of the words, for the mean and for the sum
        if self.worth is not None:
            shares.append(torch.sigmoid(self.worth(words))[..., 0] * mask / count.sqrt())
        mean, *total = (torch.stack(shares, dim=1) @ similar).unbind(1)
        if not total:
            return largest if self.pooling == "max" else mean
        if self.mix is None:
            return total[0]
        share = self.mix.softmax(0)
        return share[0] * largest + share[1] * mean + share[2] * total[0]


class Policy(nn.Module):
    """Weights of the three scores `[B, 3]`, from the question and from statistics of the score maps.

    With sigmoid they do not sum to 1: two scores may both be right.
    """

    def __init__(self, width: int, hidden: int = 64, balance: str = "sigmoid") -> None:
        super().__init__()
        self.balance = balance
        self.attend = nn.Linear(width, 1, bias=False)
        self.into = nn.Linear(width + STATISTICS * len(SCORE_NAMES), hidden)
        self.out = nn.Linear(hidden, len(SCORE_NAMES))

    def forward(
        self, words: torch.Tensor, mask: torch.Tensor, scores: torch.Tensor, valid: torch.Tensor | None = None
    ) -> torch.Tensor:
        attention = self.attend(words)[..., 0].masked_fill(~mask, -math.inf).softmax(-1)
        question = (attention[:, None] @ words)[:, 0]
        weights = self.out(F.gelu(self.into(torch.cat([question, map_statistics(scores, valid)], dim=-1))))
        return weights.sigmoid() if self.balance == "sigmoid" else weights.softmax(-1)


def map_statistics(scores: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Mean, standard deviation, maximum and evenness of each map of `[B, S, N]` logits, all within [-1, 1]: `[B, 4 S]`.

    `valid` `[B, N]`: the cells that count; None: all.
    """
    if valid is None:
        chances = scores.softmax(-1)
        even = -(chances * chances.clamp(min=1e-9).log()).sum(-1) / math.log(max(2, scores.shape[-1]))
        mean, top = scores.mean(-1), scores.amax(-1)
        spread = scores.std(-1) if scores.shape[-1] > 1 else torch.zeros_like(even)
    else:
        inside = valid[:, None]
        count = inside.sum(-1)
        kept = scores.masked_fill(~inside, -math.inf)
        chances = kept.softmax(-1)
        even = -(chances * chances.clamp(min=1e-9).log()).sum(-1) / count.clamp(min=2).log()
        mean, top = (scores * inside).sum(-1) / count, kept.amax(-1)
        away = (scores - mean[..., None]).square() * inside
        spread = (away.sum(-1) / (count - 1).clamp(min=1)).sqrt()
    found = torch.stack([mean, spread, top], dim=-1).tanh()
    return torch.cat([found, even[..., None]], dim=-1).flatten(1)


@dataclass(frozen=True, eq=False)
class EncodedView:
    """`B` images with the same grid, encoded without the question."""

    cells: torch.Tensor  # [B, h, w, d]
    scores: torch.Tensor  # [B, 2, N] logits of information and salience
    query: torch.Tensor  # [B, heads, d / heads, N] the cells' queries for the first question attention
    valid: torch.Tensor | None = None  # [B, h, w] False for padding; None: the grids are equal

    def __getitem__(self, which: torch.Tensor) -> EncodedView:
        valid = None if self.valid is None else self.valid[which]
        return EncodedView(self.cells[which], self.scores[which], self.query[which], valid)


@dataclass(frozen=True, eq=False)
class LayerOutput:
    """Logits of the relevance `[B, N]`, of each score `[B, 3, N]`, and the scores' weights `[B, 3]`."""

    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor


class ArrCocLayer(nn.Module, HubModule):
    """Trained knowing and balancing for one vision-language model.

    `save_pretrained(folder)` and `ArrCocLayer.from_pretrained(folder)` write and read `layer.safetensors` and `layer.json`. In
    the folder of a model, a layer has the subfolder `layer`. `push_to_hub("user/repository")` and
    `from_pretrained("user/repository")` do the same on the hub.
    """

    hub_error = LayerError
    is_universal = False  # True: it depends on no model
    mean: torch.Tensor  # [C, 1, 1] of the channels, over the training images
    spread: torch.Tensor
    usual: torch.Tensor  # [S] mean statistics of the training images (novelty.py)
    unusual: torch.Tensor  # [S, S] inverse covariance of these
    asked: torch.Tensor  # [M, d] training questions (novelty.py)
    middle: torch.Tensor  # [d] their mean
    near: torch.Tensor  # [] distance up to which a question is familiar

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        width, channels, size = config.width, len(config.channels), statistics_size(config.channels)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("spread", torch.ones(channels, 1, 1))
        self.register_buffer("usual", torch.zeros(size))
        self.register_buffer("unusual", torch.zeros(size, size))
        self.register_buffer("asked", torch.zeros(0, width, dtype=torch.float16))
        self.register_buffer("middle", torch.zeros(width))
        self.register_buffer("near", torch.ones(()))
        self.from_channels = nn.Linear(channels + 4 * len(WAVES), width)
        self.from_pixels = nn.Sequential(
            nn.Linear(3 * config.pixels**2, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.token_norm = nn.LayerNorm(config.token_width)
        self.from_tokens = nn.Linear(config.token_width, width)
        self.not_encoded = nn.Parameter(torch.zeros(width))
        self.seeing = nn.ModuleList(
            nn.Sequential(RowColumnAttention(width, config.heads), Neighbours(width)) for _ in range(config.seeing)
        )
        self.words = QuestionEncoder(config.word_width, width)
        self.questions = nn.ModuleList(QuestionAttention(width, config.heads) for _ in range(config.asking))
        self.asking = nn.ModuleList(
            nn.Sequential(RowColumnAttention(width, config.heads), Neighbours(width)) for _ in range(config.asking)
        )
        self.norm = nn.LayerNorm(width)
        self.information = InformationHead(channels)
        self.salience = SalienceHead(channels)
        self.coupling = CouplingHead(width, config.pooling)
        self.policy = Policy(width, balance=config.balance)

    @property
    def reads_tokens(self) -> bool:
        """Whether the encoder's tokens are an input, where they exist."""
        return True

    def question_input(self, question: Question) -> torch.Tensor:
        """A question as `self.words` reads it: the model's word embeddings `[T, W]`."""
        return question.embeddings

    def encode_view(
        self,
        channels: torch.Tensor,
        pixels: torch.Tensor,
        tokens: torch.Tensor | None = None,
        encoded: torch.Tensor | None = None,
        valid: torch.Tensor | None = None,
    ) -> EncodedView:
        """Images without the question: channels `[B, C, h, w]`, pixels `[B, P, h, w]`, tokens `[B, h, w, D]` or None, and
        which cells `[B, h, w]` have tokens (None: all). `valid`: which cells are no padding (None: all)."""
        normed = (channels - self.mean) / self.spread
        cells = self.from_channels(torch.cat([normed, _position_waves(channels, valid)], dim=1).permute(0, 2, 3, 1))
        cells = cells + self._see_pixels(2 * pixels.permute(0, 2, 3, 1) - 1, valid)
        if tokens is None:
            cells = cells + self.not_encoded
        else:
            hidden = self.from_tokens(self.token_norm(tokens))
            cells = cells + (hidden if encoded is None else torch.where(encoded[..., None], hidden, self.not_encoded))
        for block in self.seeing:
            cells = _through(block, cells, valid)
        scores = [self.information(normed, pixels).flatten(1), self.salience(normed, valid).flatten(1)]
        first = self.questions[0]
        assert isinstance(first, QuestionAttention)
        return EncodedView(cells, torch.stack(scores, dim=1), first.queries(cells), valid)

    def _see_pixels(self, pixels: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """Each cell's pixels `[B, h, w, P]` in [-1, 1] to `[B, h, w, d]`."""
        return self.from_pixels(pixels)

    def score(self, view: EncodedView, words: torch.Tensor, mask: torch.Tensor) -> LayerOutput:
        """One question per image: its words `[B, T, d]` from `self.words`, and the mask `[B, T]`."""
        cells = view.cells
        for number, (question, block) in enumerate(zip(self.questions, self.asking, strict=True)):
            cells = _through(block, question(cells, words, mask, view.query if number == 0 else None), view.valid)
        scores = torch.cat([view.scores, self.coupling(self.norm(cells), words, mask).flatten(1)[:, None]], dim=1)
        weights = self.policy(words, mask, scores, None if view.valid is None else view.valid.flatten(1))
        return LayerOutput((weights[..., None] * scores).sum(1), scores, weights)

    def question_vectors(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One vector per question, for novelty: `[B, d]` from word embeddings `[B, T, W]` and the mask `[B, T]`."""
        return pool_words(self.words(words, mask), mask)

    def store_questions(self, questions: torch.Tensor) -> None:
        """Store the training questions, as `question_vectors` `[Q, d]`."""
        stored, mean, near = fit_questions(questions)
        self.asked = stored.to(self.middle.device)
        self.middle.copy_(mean)
        self.near.copy_(near)

    def forward(
        self,
        channels: torch.Tensor,
        pixels: torch.Tensor,
        tokens: torch.Tensor | None,
        encoded: torch.Tensor | None,
        words: torch.Tensor,
        mask: torch.Tensor,
    ) -> LayerOutput:
        return self.score(self.encode_view(channels, pixels, tokens, encoded), self.words(words, mask), mask)

    def _save_pretrained(self, path: Path) -> None:
        """Write `layer.safetensors` and `layer.json`."""
        note = {"format": FORMAT, "version": VERSION, **self.config.to_dict()}
        try:
            path.mkdir(parents=True, exist_ok=True)
            storage.write(path / WEIGHTS, self.state_dict(), note)
            with replacing(path / CONFIG) as temporary:
                temporary.write_text(json.dumps(note, indent=2) + "\n")
        except OSError as error:
            raise LayerError(f"cannot write {str(path)!r}: {error.strerror or error}") from None

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Unpack[HubOptions]) -> ArrCocLayer:  # type: ignore[override]
        """Read what `save_pretrained` or `push_to_hub` wrote: float32, on the CPU, in eval mode.

        `folder`: the layer's own or its model's, or a hub id "user/repository" of either; `options`: how to read that.
        """
        path = find_layer(folder, **options) or Path(folder)
        if is_repo_id(folder) and path == Path(folder):
            raise LayerError(
                f"{str(folder)!r} is no folder, and its repository on the hub holds no learned layer ({WEIGHTS})"
            )
        try:
            weights, note = storage.read(path / WEIGHTS)
        except OSError as error:
            raise LayerError(f"{str(path)!r} holds no learned layer: {error.strerror or error}") from None
        except storage.DamagedFileError as error:
            raise LayerError(f"{str(path / WEIGHTS)!r} is damaged: {error}") from None
        if (note.pop("format", None), note.pop("version", None)) != (FORMAT, VERSION):
            raise LayerError(f"{str(path / WEIGHTS)!r} is not {FORMAT} of version {VERSION}")
        config = LayerConfig.from_dict(note)
        if config.model == ANY_MODEL and not cls.is_universal:
            from arr_coc.layer.universal import UniversalLayer

            cls = UniversalLayer
        layer = cls(config)
        if "asked" in weights:  # the number of stored questions varies
            layer.asked = layer.asked.new_zeros(len(weights["asked"]), layer.config.width)
        try:
            layer.load_state_dict(weights)
        except RuntimeError:
            raise LayerError(f"{str(path / WEIGHTS)!r} is damaged: its weights do not fit its own shape") from None
        if layer.is_universal and isinstance(folder, str) and is_repo_id(folder):
            place = f"{SUBFOLDER}/" if path.name == SUBFOLDER else ""
            reached = reach(folder, f"{place}{WEIGHTS}", LayerError, options)
            layer.read_extras(path, lambda name: fetch(folder, f"{place}{name}", LayerError, reached))
        else:
            layer.read_extras(path)
        return layer.eval()

    def read_extras(self, path: Path, fetched: Callable[[str], Path | None] | None = None) -> None:
        """Read what a layer has besides its weights, from its folder, or by a function that fetches a file from the hub."""

    def card_text(self) -> str:
        config = self.config
        return (
            "# A layer of ARR-COC\n\n"
            f"It scores the cells of a picture for a question, for the model `{config.model}` and no other: the vision encoder "
            "encodes, and the language model reads, only the cells that matter.\n\n"
            f"{self.parameter_count:,} parameters; width {config.width}, {config.seeing} blocks before the question and "
            f"{config.asking} with it; {len(config.channels)} texture channels and {config.pixels} x {config.pixels} pixels "
            "of each cell."
        )

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def find_layer(folder: str | Path, **options: Unpack[HubOptions]) -> Path | None:
    """Where a layer's files are: in the folder itself, as older versions wrote them into a model's folder, or in its subfolder.

    A name "user/repository" that is no folder is looked up on the hub, and the layer's file is downloaded.
    """
    if isinstance(folder, str) and is_repo_id(folder):
        reached = reach(folder, WEIGHTS, LayerError, options)
        files = (fetch(folder, name, LayerError, reached) for name in (WEIGHTS, f"{SUBFOLDER}/{WEIGHTS}"))
        return next((file.parent for file in files if file is not None), None)
    places = (Path(folder), Path(folder) / SUBFOLDER)
    return next((place for place in places if (place / WEIGHTS).is_file()), None)


def _through(block: nn.Module, cells: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """A block of attention and neighbours on cells `[B, h, w, d]`."""
    if valid is None:
        return block(cells)
    for part in block.children():
        cells = part(cells, valid)
    return cells


def _position_waves(channels: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Position encoding: sines and cosines over the image, `[B, 4 W, h, w]`; `valid` `[B, h, w]`: the image's own cells."""
    batch, _, high, wide = channels.shape
    turns = torch.cat([channels.new_full((1, 1), math.pi * one) for one in WAVES])  # avoids a copy from the host
    right, below = (torch.arange(side, device=channels.device) + 0.5 for side in (wide, high))
    if valid is None:
        across, down = turns * (right / wide), turns * (below / high)  # [W, w], [W, h]
    else:
        columns, rows = valid[:, 0].sum(1), valid[:, :, 0].sum(1)  # [B]
        across, down = turns * (right / columns[:, None])[:, None], turns * (below / rows[:, None])[:, None]
    x = torch.cat([across.sin(), across.cos()], dim=-2)[..., None, :].expand(*across.shape[:-2], -1, high, -1)
    y = torch.cat([down.sin(), down.cos()], dim=-2)[..., None].expand(*down.shape[:-2], -1, -1, wide)
    return torch.cat([x, y], dim=-3).expand(batch, -1, -1, -1)
