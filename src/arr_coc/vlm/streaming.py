"""An answer while it is written: pieces of text that together are exactly the answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from arr_coc.errors import PromptError
from arr_coc.types.answer import Answer

INCOMPLETE = "\ufffd"  # what a letter of several tokens looks like before its last one


class Stream(Iterator[str]):
    """Pieces of one answer, in order; `answer` is the whole of it once they have all come.

    The model runs in a thread of its own. Whoever stops listening calls `close()` (or leaves the `with` block): the model then
    stops at its next token.
    """

    def __init__(self, run: Callable[[Any, Any], Answer], read: Callable[[torch.Tensor], str]) -> None:
        """`run(streamer, stop)` generates; `read(ids)` is the text of all tokens `[T]` so far."""
        self._pieces: queue.Queue[str | BaseException | Answer] = queue.Queue()
        self._read = read
        self._run = run
        self._ids: list[torch.Tensor] = []
        self._said = ""
        self._prompt = True  # the first thing a model hands on is its prompt
        self._closed = threading.Event()
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def answer(self) -> Answer:
        if self._answer is None:
            raise PromptError("this answer is still being written: take all of its pieces first")
        return self._answer

    def __next__(self) -> str:
        if self._answer is not None or self._closed.is_set():
            raise StopIteration
        piece = self._pieces.get()
        if isinstance(piece, BaseException):
            self._closed.set()
            raise piece
        if isinstance(piece, Answer):
            self._answer = piece
            raise StopIteration
        return piece

    def close(self) -> None:
        """Stop listening; the model stops at its next token."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What transformers asks of a streamer, and of a stopping criterion.

    def put(self, ids: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self._ids.append(ids.flatten().cpu())
        text = self._read(torch.cat(self._ids))
        if text.startswith(self._said) and not text.endswith(INCOMPLETE):
            self._say(text)

    def end(self) -> None:
        """The rest comes with the answer itself, which knows where it ends."""

    def __call__(self, ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return torch.full((len(ids),), self._closed.is_set(), dtype=torch.bool, device=ids.device)

    def _say(self, text: str) -> None:
        if len(text) > len(self._said):
            self._pieces.put(text[len(self._said) :])
            self._said = text

    def _work(self) -> None:
        try:
            answer = self._run(self, self)
            if not answer.text.startswith(self._said):
                raise PromptError(f"the pieces {self._said!r} are not the start of the answer {answer.text!r}")
            self._say(answer.text)
            self._pieces.put(answer)
        except BaseException as error:  # whoever listens is told
            self._pieces.put(error)
