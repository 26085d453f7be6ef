"""`Ask`: a stage of Ray Data that answers a question about the image of each row."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.errors import ArrCocError, ImageError, PromptError, first_line
from arr_coc.files import read_bytes
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget, limit
from arr_coc.types.image import DECODING_ERRORS
from arr_coc.vlm.look import image_source

COUNTS = ("all", "encoded", "kept")
NOTHING: dict[str, Any] = {"answer": "", **{f"visual_{name}": 0 for name in COUNTS}}


@dataclass(eq=False)
class _Row:
    """One row while it is answered. It waits for the model if it has an image."""

    question: str
    image: Image.Image | None = None
    key: str = ""
    answer: dict[str, Any] = field(default_factory=lambda: dict(NOTHING))
    error: str = ""


class Ask:
    """Adds `answer`, `visual_all`, `visual_encoded`, `visual_kept` and `error` to each row.

    Each worker loads the model once and answers the rows of a batch together. A row that cannot be answered has an empty
    `answer` and one sentence in `error`; the others are not affected. With `kept`, a job that was interrupted and starts
    again asks only the rows that have no answer yet.

        ds.map_batches(Ask, fn_constructor_kwargs={"model": "reader", "budget": "12.5%"}, batch_size=8,
                       compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1)
    """

    def __init__(
        self,
        model: str = "reader",
        *,
        image: str = "image",
        question: str = "question",
        budget: Budget = "auto",
        glance: Budget = "auto",
        selector: str = "arr-coc",
        tokens: int = 160,
        device: str = "cpu",
        embeddings: str | None = None,
        layer: str | None = "auto",
        kept: str | Path | None = None,
    ) -> None:
        """`image`, `question`: the columns. An image is a path, the bytes of a file, or an array `[H, W, 3]`.

        `kept`: a folder for finished answers, which all workers can write to. The other arguments are those of `VLM.ask` and `arr_coc.load`.
        """
        limit(budget, 1000)
        limit(glance, 1000, "glance")
        arr_coc.selectors.selector(selector)
        keep_quiet()
        self.image, self.question = image, question
        self.options: dict[str, Any] = {
            "budget": budget, "glance": glance, "selector": selector, "max_new_tokens": tokens, "do_sample": False,
        }  # fmt: skip
        self.kept = None if kept is None else KeptAnswers(Path(kept), [_mark(model), embeddings, layer, self.options])
        self.vlm = arr_coc.load(model, embeddings=embeddings, layer=layer)
        self.vlm.model.to(device)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        for column in (self.image, self.question):
            if column not in batch:
                raise PromptError(
                    f"expected a column {column!r}, got {', '.join(batch)}: name yours with Ask(image=...)"
                )
        rows = [self._known(*row) for row in zip(batch[self.image], batch[self.question], strict=True)]
        waiting = [row for row in rows if row.image is not None]
        for row, found in zip(waiting, self._answer(waiting), strict=True):
            if isinstance(found, Answer):
                row.answer = {"answer": found.text} | {f"visual_{name}": found.tokens[name] for name in COUNTS}
                if self.kept is not None:
                    self.kept.write(row.key, row.answer)
            else:
                row.error = str(found)
        made = {name: [row.answer[name] for row in rows] for name in NOTHING} | {"error": [row.error for row in rows]}
        kinds = {name: object if name in ("answer", "error") else np.int64 for name in made}
        return dict(batch) | {name: np.array(values, dtype=kinds[name]) for name, values in made.items()}

    def _known(self, image: Any, question: Any) -> _Row:
        """A row with its answer from an earlier job, its decoded image, or an error."""
        try:
            if not isinstance(question, str):
                raise PromptError(f"expected a question as text, got {type(question).__name__}")
            row = _Row(question)
            if self.kept is not None:
                row.key = self.kept.key(image, question)
                if (known := self.kept.read(row.key)) is not None:
                    row.answer = known
                    return row
            row.image = _read(image)
            return row
        except ArrCocError as error:
            return _Row("", error=str(error))

    def _answer(self, rows: Sequence[_Row]) -> list[Answer | ArrCocError]:
        """The rows together; if that fails, each alone, so that one bad row does not spoil the others."""
        if not rows:
            return []
        try:
            return list(
                self.vlm.generate([[row.image] for row in rows], [row.question for row in rows], **self.options)
            )
        except ArrCocError as error:
            return [error] if len(rows) == 1 else [found for row in rows for found in self._answer([row])]


class KeptAnswers:
    """Answers in a folder, one file each, by what was asked: the content of the image, the question, model and options."""

    def __init__(self, folder: Path, settings: Sequence[Any]) -> None:
        self.folder = folder
        self.settings = json.dumps([arr_coc.__version__, *settings], sort_keys=True)

    def key(self, image: Any, question: str) -> str:
        digest = hashlib.sha256(f"{self.settings}\n{question}\n".encode())
        if isinstance(image, str | os.PathLike):
            try:
                digest.update(read_bytes(image, "an image file"))
            except ArrCocError:
                digest.update(os.fspath(image).encode())  # `_read` says what is wrong with it
        elif isinstance(image, bytes):
            digest.update(image)
        else:
            array = np.asarray(image)
            digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
        return digest.hexdigest()

    def read(self, key: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._path(key).read_text())
        except (OSError, ValueError):  # not there, or cut off when the machine went down
            return None
        return found if isinstance(found, dict) and found.keys() == NOTHING.keys() else None

    def write(self, key: str, answer: dict[str, Any]) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        spare = path.with_suffix(f".{os.getpid()}")
        spare.write_text(json.dumps(answer))
        spare.replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _mark(model: str) -> Any:
    """A model's name, and the sizes and times of its files where it is a folder."""
    files = sorted(Path(model).glob("*")) if Path(model).is_dir() else []
    return [model, [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]]


def _read(value: Any) -> Image.Image:
    if isinstance(value, bytes):
        try:
            with Image.open(io.BytesIO(value)) as opened:
                value = opened.copy()
        except (*DECODING_ERRORS, Image.DecompressionBombError) as error:
            raise ImageError(f"expected the bytes of an image file, got others ({first_line(error)})") from None
    picture: Image.Image = image_source(value).picture
    return picture
