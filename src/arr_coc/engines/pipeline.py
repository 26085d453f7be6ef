"""A pipeline of transformers, "image-text-to-text", that reads only the visual tokens it needs.

    pipe = ArrCocPipeline(arr_coc.load("reader"), budget="12.5%", glance="50%")
    pipe(text=[{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "The total?"}]}])

Inputs, options and outputs are those of transformers' own pipeline; `budget`, `glance` and `selector` are added, and every
output has `visual_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import ImageTextToTextPipeline
from transformers.image_utils import load_image

import arr_coc
from arr_coc.errors import PromptError
from arr_coc.layer import ArrCocLayer
from arr_coc.selectors.registry import SelectorLike
from arr_coc.types.budget import Budget, limit
from arr_coc.vlm.model import VLM

OPTIONS = ("budget", "glance", "selector")
SOURCES = ("image", "url", "path", "base64")  # keys of an image in a chat message


class ArrCocPipeline(ImageTextToTextPipeline):
    """`ImageTextToTextPipeline` with a budget. Its model is a `VLM`, or a transformers model with its processor."""

    def __init__(
        self, model: Any, processor: Any = None, *, layer: ArrCocLayer | str | None = None, **options: Any
    ) -> None:
        """`layer`: for a transformers model, see `arr_coc.wrap`. `options`: of transformers' pipeline, and those of each call."""
        self.vlm = model if isinstance(model, VLM) else arr_coc.wrap(model, processor, layer=layer)
        parts = {"tokenizer": self.vlm.processor.tokenizer} | {"task": "image-text-to-text"} | options
        super().__init__(model=self.vlm.model, processor=self.vlm.processor, **parts)

    def _sanitize_parameters(
        self,
        budget: Budget | None = None,
        glance: Budget | None = None,
        selector: SelectorLike | None = None,
        **options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        given = {"budget": budget, "glance": glance, "selector": selector}
        for name in ("budget", "glance"):
            if given[name] is not None:
                limit(given[name], 1000, name)  # type: ignore[arg-type]
        preprocess, forward, postprocess = super()._sanitize_parameters(**options)
        chosen = {name: value for name, value in given.items() if value is not None}
        return preprocess, forward | ({"selection": chosen} if chosen else {}), postprocess

    def preprocess(self, inputs: Any = None, **options: Any) -> Any:
        """As the stock pipeline; also the images themselves, and the question alone, for selectors that need them."""
        prepared = super().preprocess(inputs, **options)
        prepared["arr_coc"] = originals_of(inputs)
        return prepared

    def _forward(self, model_inputs: Any, generate_kwargs: Any = None, selection: Any = None) -> dict[str, Any]:
        generate_kwargs = dict(generate_kwargs or {})
        if hasattr(self, "_prepare_generate_kwargs"):
            generate_kwargs = self._prepare_generate_kwargs(generate_kwargs, return_dict_in_generate=False)
        else:  # transformers before 5.20
            generate_kwargs.setdefault("generation_config", vars(self)["generation_config"])
        prompt, (images, questions) = model_inputs.pop("text"), model_inputs.pop("arr_coc")
        ids = model_inputs["input_ids"]
        generate_kwargs.pop("return_dict_in_generate", None)
        answers = self.vlm.generate(
            inputs=dict(model_inputs),
            originals=images or None,
            text=questions,
            **self._forward_params.get("selection", {}) | (selection or {}),
            **generate_kwargs,
        )
        if len(answers) != len(ids):
            raise PromptError(f"expected one answer for each prompt, got {len(answers)} for {len(ids)}")
        longest = max(len(answer.ids) for answer in answers)
        padding = self.vlm.processor.tokenizer.pad_token_id or 0
        # As the stock pipeline: the whole prompt, not the pruned one, and what follows it.
        rows = [
            torch.cat([row.cpu(), answer.ids.cpu(), torch.full((longest - len(answer.ids),), padding)])
            for row, answer in zip(ids, answers, strict=True)
        ]
        return {
            "generated_sequence": torch.stack(rows),
            "prompt_text": prompt,
            "input_ids": ids,
            "visual_tokens": [dict(answer.tokens) for answer in answers],
        }

    def postprocess(self, model_outputs: Any, **options: Any) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = super().postprocess(model_outputs, **options)
        counts = model_outputs["visual_tokens"]
        return [record | {"visual_tokens": count} for record, count in zip(records, counts, strict=True)]


def originals_of(inputs: Any) -> tuple[list[Any], list[str]]:
    """The images of a pipeline's input, in order, and the question of each prompt."""
    messages = getattr(inputs, "messages", None)
    if messages is None:
        if not isinstance(inputs, Mapping):  # text alone
            return [], [inputs] if isinstance(inputs, str) else list(inputs)
        text = inputs["text"]
        return _flat(inputs["images"]), [text] if isinstance(text, str) else list(text)
    images, question = [], ""
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part.get("type") == "image":
                images.append(load_image(next(part[key] for key in SOURCES if part.get(key) is not None)))
        if message["role"] == "user":
            question = " ".join(part["text"] for part in parts if part.get("type") == "text")
    return images, [question]


def _flat(images: Any) -> list[Any]:
    if isinstance(images, list | tuple):
        return [one for some in images for one in _flat(some)]
    return [load_image(images)]
