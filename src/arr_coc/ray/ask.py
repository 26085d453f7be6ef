"""`Ask`: a stage of Ray Data that answers a question about the image of each row."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.errors import ArrCocError, ImageError, PromptError, first_line
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget, limit
from arr_coc.types.image import DECODING_ERRORS
from arr_coc.vlm.look import image_source

COUNTS = ("all", "encoded", "kept")


class Ask:
    """Adds `answer`, `visual_all`, `visual_encoded`, `visual_kept` and `error` to each row.

    Each worker loads the model once and answers the rows of a batch together. A row that cannot be answered has an empty
    `answer` and one sentence in `error`; the others are not affected.

        ds.map_batches(Ask, fn_constructor_kwargs={"model": "reader", "budget": "12.5%"}, batch_size=8,
                       compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1)
    """

    def __init__(
        self,
        model: str = "reader",
        *,
        image: str = "image",
        question: str = "question",
        budget: Budget = "all",
        glance: Budget = "all",
        selector: str = "arr-coc",
        tokens: int = 160,
        device: str = "cpu",
        embeddings: str | None = None,
        layer: str | None = "auto",
    ) -> None:
        """`image`, `question`: the columns. An image is a path, the bytes of a file, or an array `[H, W, 3]`.

        The other arguments are those of `VLM.ask` and `arr_coc.load`.
        """
        limit(budget, 1000)
        limit(glance, 1000, "glance")
        arr_coc.selectors.selector(selector)
        keep_quiet()
        self.image, self.question = image, question
        self.options: dict[str, Any] = {
            "budget": budget, "glance": glance, "selector": selector, "max_new_tokens": tokens, "do_sample": False,
        }  # fmt: skip
        self.vlm = arr_coc.load(model, embeddings=embeddings, layer=layer)
        self.vlm.model.to(device)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        for column in (self.image, self.question):
            if column not in batch:
                raise PromptError(
                    f"expected a column {column!r}, got {', '.join(batch)}: name yours with Ask(image=...)"
                )
        images: list[Image.Image | None] = []
        errors: list[str] = []
        for value, text in zip(batch[self.image], batch[self.question], strict=True):
            try:
                images.append(_read(value))
                errors.append(
                    "" if isinstance(text, str) else f"expected a question as text, got {type(text).__name__}"
                )
            except ArrCocError as error:
                images.append(None)
                errors.append(str(error))
        answers: list[Answer | None] = [None] * len(images)
        good = [number for number, error in enumerate(errors) if not error]
        for number, found in self._answer(good, images, batch[self.question]):
            if isinstance(found, Answer):
                answers[number] = found
            else:
                errors[number] = str(found)
        counts = [dict.fromkeys(COUNTS, 0) if one is None else one.tokens for one in answers]
        made: dict[str, Any] = {"answer": np.array(["" if one is None else one.text for one in answers], dtype=object)}
        made |= {f"visual_{name}": np.array([count[name] for count in counts]) for name in COUNTS}
        return dict(batch) | made | {"error": np.array(errors, dtype=object)}

    def _answer(
        self, numbers: Sequence[int], images: Sequence[Image.Image | None], texts: Any
    ) -> list[tuple[int, Answer | ArrCocError]]:
        """The rows together; if that fails, each alone, so that one bad row does not spoil the others."""
        if not numbers:
            return []
        try:
            rows = [[images[number]] for number in numbers]
            answers = self.vlm.generate(rows, [str(texts[number]) for number in numbers], **self.options)
            return list(zip(numbers, answers, strict=True))
        except ArrCocError as error:
            if len(numbers) == 1:
                return [(numbers[0], error)]
            return [pair for number in numbers for pair in self._answer([number], images, texts)]


def _read(value: Any) -> Image.Image:
    if isinstance(value, bytes):
        try:
            with Image.open(io.BytesIO(value)) as opened:
                value = opened.copy()
        except (*DECODING_ERRORS, Image.DecompressionBombError) as error:
            raise ImageError(f"expected the bytes of an image file, got others ({first_line(error)})") from None
    picture: Image.Image = image_source(value).picture
    return picture
