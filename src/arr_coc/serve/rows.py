"""The rows of a batch while they are generated: each has its own length, stop strings, stream and client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from arr_coc.vlm.generation import INCOMPLETE


@dataclass(frozen=True)
class Piece:
    """The next part of an answer's text; the first one is empty."""

    text: str


@dataclass(frozen=True)
class Result:
    """A whole answer."""

    text: str
    finish: str  # "stop" or "length"
    prompt_tokens: int
    completion_tokens: int
    visual: dict[str, int]  # all, encoded, kept
    timings: dict[str, float]  # milliseconds by stage, of the whole batch
    strategy: str
    fallback: str
    notes: tuple[str, ...]
    batch: int  # requests that were answered together
    confidence: float | None = None
    confidence_source: str = ""
    refused: str = ""  # why nothing in the picture answers the question; empty if the answer stands
    raw_text: str = ""  # what the model wrote; `text` is the same, or the refusal
    tried: tuple[dict[str, Any], ...] = ()  # with `sure`: all readings


Event = Piece | Result | BaseException  # what a request receives; the last one is not a Piece


@dataclass(eq=False)
class Row:
    """One answer while it is generated. `emit` is called from the worker's thread."""

    max_tokens: int
    stop: tuple[str, ...]
    stream: bool
    emit: Callable[[Event], None]
    left: threading.Event = field(default_factory=threading.Event)  # its client is gone
    text: str = ""  # emitted so far
    ids: list[int] = field(default_factory=list)
    finish: str = ""
    first_token: float = 0.0  # time.monotonic()

    def push(self, token: int, ends: Collection[int], decode: Callable[[torch.Tensor], str]) -> None:
        """Take the next token, unless the row has ended."""
        if self.finish:
            return
        if not self.first_token:
            self.first_token = time.monotonic()
            if self.stream:
                self.emit(Piece(""))  # the stream begins, although the first token may show nothing
        if self.left.is_set():
            self.finish = "left"
        elif token in ends:
            self.finish = "stop"
        else:
            self.ids.append(token)
            if len(self.ids) >= self.max_tokens:
                self.finish = "length"
            if self.stop or self.stream:
                self._look_at(decode(torch.tensor(self.ids)))

    def restart(self) -> None:
        """Forget the tokens, for another reading of the same request."""
        self.ids.clear()
        self.finish = "left" if self.left.is_set() else ""

    def whole(self, decode: Callable[[torch.Tensor], str]) -> str:
        """The answer's text up to its first stop string; a stream gets what it has not got yet."""
        text = self._cut(decode(torch.tensor(self.ids, dtype=torch.long)))
        if self.stream and len(text) > len(self.text):
            self._emit(text)
        return text

    def _look_at(self, text: str) -> None:
        cut = self._cut(text)
        if len(cut) < len(text):
            self.finish = "stop"
        elif self.stream and text.startswith(self.text) and not text.endswith(INCOMPLETE):
            self._emit(text[: len(text) - self._held_back(text)])

    def _emit(self, text: str) -> None:
        if len(text) > len(self.text):
            self.emit(Piece(text[len(self.text) :]))
            self.text = text

    def _cut(self, text: str) -> str:
        places = [place for one in self.stop if (place := text.find(one)) >= 0]
        return text[: min(places)] if places else text

    def _held_back(self, text: str) -> int:
        """Letters at the end that may be the start of a stop string."""
        return max(
            (n for one in self.stop for n in range(1, min(len(one), len(text) + 1)) if text.endswith(one[:n])),
            default=0,
        )


class BatchProgress:
    """A stopping criterion of transformers that hands every new token to its row, and stops each row by itself."""

    def __init__(self, rows: Sequence[Row], ends: Collection[int], decode: Callable[[torch.Tensor], str]) -> None:
        self.rows, self.ends, self.decode = rows, ends, decode

    def __call__(self, ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        """`ids` `[B, L]`: the prompts and all tokens so far."""
        for row, token in zip(self.rows, ids[:, -1].tolist(), strict=True):
            row.push(token, self.ends, self.decode)
        return torch.tensor([bool(row.finish) for row in self.rows], device=ids.device)
