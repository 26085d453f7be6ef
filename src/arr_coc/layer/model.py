"""`ArrCocLayer`: everything that is learned about one model, as a module that any training loop can take.

    channels, pixels, tokens -> seen -> (with the question) three scores -> policy -> relevance

Without tokens it judges a picture that is not encoded yet (a glance), with some of them one that is encoded in part.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from arr_coc.embedding import storage
from arr_coc.errors import LayerError
from arr_coc.layer import question_novelty as wording
from arr_coc.layer.blocks import Lines, Neighbours, Question, Words
from arr_coc.layer.config import LayerConfig
from arr_coc.layer.heads import WAYS, Coupling, Information, Policy, Salience
from arr_coc.layer.image_novelty import size

WEIGHTS, NOTE = "layer.safetensors", "layer.json"
FORMAT, VERSION = "a learned ARR-COC layer", 3
WAVES = (1.0, 2.0, 4.0, 8.0, 16.0)  # half turns over the picture's width and height


@dataclass(frozen=True, eq=False)
class View:
    """What is seen of `B` pictures with the same grid, whatever is asked: `[B, h, w, d]`, and the two scores of that alone."""

    cells: torch.Tensor
    alone: torch.Tensor  # [B, 2, N] logits of information and salience
    query: torch.Tensor  # [B, heads, d / heads, N] what the cells want to know of a question first

    def __getitem__(self, which: torch.Tensor) -> View:
        return View(self.cells[which], self.alone[which], self.query[which])


@dataclass(frozen=True, eq=False)
class Judged:
    """Logits of relevance `[B, N]`, of each way of knowing `[B, 3, N]`, and the ways' weights `[B, 3]`."""

    relevance: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor


class ArrCocLayer(nn.Module):
    """Learned knowing and balancing for one vision-language model.

    `save_pretrained(folder)` and `ArrCocLayer.from_pretrained(folder)` write and read `layer.safetensors` and `layer.json`.
    """

    mean: torch.Tensor  # [C, 1, 1] of the channels, over the pictures trained with
    spread: torch.Tensor
    usual: torch.Tensor  # [S] what those pictures are like: see familiarity.py
    unusual: torch.Tensor  # [S, S]
    asked: torch.Tensor  # [M, d] questions trained with: see wording.py
    middle: torch.Tensor  # [d] of them
    near: torch.Tensor  # [] how near to one of them a question is usually put

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.config = config
        width, channels = config.width, len(config.channels)
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("spread", torch.ones(channels, 1, 1))
        self.register_buffer("usual", torch.zeros(size(config.channels)))
        self.register_buffer("unusual", torch.zeros(size(config.channels), size(config.channels)))
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
            nn.Sequential(Lines(width, config.heads), Neighbours(width)) for _ in range(config.seeing)
        )
        self.words = Words(config.word_width, width)
        self.questions = nn.ModuleList(Question(width, config.heads) for _ in range(config.asking))
        self.asking = nn.ModuleList(
            nn.Sequential(Lines(width, config.heads), Neighbours(width)) for _ in range(config.asking)
        )
        self.norm = nn.LayerNorm(width)
        self.information = Information(channels)
        self.salience = Salience(channels)
        self.coupling = Coupling(width, config.pooling)
        self.policy = Policy(width, balance=config.balance)

    def see(
        self,
        channels: torch.Tensor,
        pixels: torch.Tensor,
        tokens: torch.Tensor | None = None,
        encoded: torch.Tensor | None = None,
    ) -> View:
        """Pictures alone: channels `[B, C, h, w]`, pixels `[B, P, h, w]`, tokens `[B, h, w, D]` or none of them, and which
        cells `[B, h, w]` they stand for (all)."""
        even = (channels - self.mean) / self.spread
        cells = self.from_channels(torch.cat([even, _waves(channels)], dim=1).permute(0, 2, 3, 1))
        cells = cells + self.from_pixels(2 * pixels.permute(0, 2, 3, 1) - 1)
        if tokens is None:
            cells = cells + self.not_encoded
        else:
            told = self.from_tokens(self.token_norm(tokens))
            cells = cells + (told if encoded is None else torch.where(encoded[..., None], told, self.not_encoded))
        for block in self.seeing:
            cells = block(cells)
        alone = [self.information(even, pixels).flatten(1), self.salience(even).flatten(1)]
        first = self.questions[0]
        assert isinstance(first, Question)
        return View(cells, torch.stack(alone, dim=1), first.wonder(cells))

    def judge(self, view: View, heard: torch.Tensor, asked: torch.Tensor) -> Judged:
        """Each picture's question: its words as `self.words` hears them `[B, T, d]`, and which of them are there `[B, T]`."""
        cells = view.cells
        for number, (question, block) in enumerate(zip(self.questions, self.asking, strict=True)):
            cells = block(question(cells, heard, asked, view.query if number == 0 else None))
        scores = torch.cat([view.alone, self.coupling(self.norm(cells), heard, asked).flatten(1)[:, None]], dim=1)
        weights = self.policy(heard, asked, scores)
        return Judged((weights[..., None] * scores).sum(1), scores, weights)

    def hear(self, words: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """What tells questions from each other, `[B, d]`: word embeddings `[B, T, W]`, and which of them are there `[B, T]`."""
        return wording.told(self.words(words, asked), asked)

    def remember(self, questions: torch.Tensor) -> None:
        """Keep in mind what it was asked in training: `[Q, d]` as it heard them."""
        kept, middle, near = wording.memory(questions)
        self.asked = kept.to(self.middle.device)
        self.middle.copy_(middle)
        self.near.copy_(near)

    def forward(
        self,
        channels: torch.Tensor,
        pixels: torch.Tensor,
        tokens: torch.Tensor | None,
        encoded: torch.Tensor | None,
        words: torch.Tensor,
        asked: torch.Tensor,
    ) -> Judged:
        return self.judge(self.see(channels, pixels, tokens, encoded), self.words(words, asked), asked)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `layer.safetensors` and `layer.json`."""
        path = Path(folder)
        note = {"format": FORMAT, "version": VERSION, **self.config.to_dict()}
        try:
            path.mkdir(parents=True, exist_ok=True)
            storage.write(path / WEIGHTS, self.state_dict(), note)
            (path / NOTE).write_text(json.dumps(note, indent=2) + "\n")
        except OSError as error:
            raise LayerError(f"cannot write {str(path)!r}: {error.strerror or error}") from None

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ArrCocLayer:
        """Read what `save_pretrained` wrote; float32, on the CPU, not training."""
        path = Path(folder)
        try:
            weights, note = storage.read(path / WEIGHTS)
        except OSError as error:
            raise LayerError(f"{str(path)!r} holds no learned layer: {error.strerror or error}") from None
        except storage.DamagedFileError as error:
            raise LayerError(f"{str(path / WEIGHTS)!r} is damaged: {error}") from None
        if (note.pop("format", None), note.pop("version", None)) != (FORMAT, VERSION):
            raise LayerError(f"{str(path / WEIGHTS)!r} is not {FORMAT} of version {VERSION}")
        layer = cls(LayerConfig.from_dict(note))
        if "asked" in weights:  # as many questions as there were
            layer.asked = layer.asked.new_zeros(len(weights["asked"]), layer.config.width)
        try:
            layer.load_state_dict(weights)
        except RuntimeError:
            raise LayerError(f"{str(path / WEIGHTS)!r} is damaged: its weights do not fit its own shape") from None
        return layer.eval()

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def _waves(channels: torch.Tensor) -> torch.Tensor:
    """Where a cell lies, as waves over the picture: `[B, 4 W, h, w]`."""
    batch, _, high, wide = channels.shape
    turns = torch.cat([channels.new_full((1, 1), math.pi * one) for one in WAVES])  # nothing is sent from the host
    across = turns * ((torch.arange(wide, device=channels.device) + 0.5) / wide)
    down = turns * ((torch.arange(high, device=channels.device) + 0.5) / high)
    x = torch.cat([across.sin(), across.cos()])[:, None].expand(-1, high, -1)
    y = torch.cat([down.sin(), down.cos()])[:, :, None].expand(-1, -1, wide)
    return torch.cat([x, y]).expand(batch, -1, -1, -1)


__all__ = ["WAYS", "ArrCocLayer", "Judged", "View"]
