"""A model for lmms-eval: `lmms_eval --model arr_coc --model_args pretrained=NAME,budget=12.5%,glance=50%,selector=arr-coc`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from loguru import logger
from tqdm import tqdm

import arr_coc
from arr_coc.adapters.loading import keep_quiet
from arr_coc.devices import check_device
from arr_coc.errors import ArrCocError
from arr_coc.types.answer import Answer
from arr_coc.types.budget import Budget, limit

MAX_NEW_TOKENS = 128  # where a task does not say
PASSED_ON = ("max_new_tokens", "num_beams", "top_p", "top_k", "repetition_penalty", "length_penalty")


class ArrCocModel(lmms):  # type: ignore[misc]
    """Answers the tasks of lmms-eval that generate text, about any number of images, or about one video."""

    def __init__(
        self,
        pretrained: str = "reader",
        budget: Budget = "auto",
        glance: Budget = "auto",
        selector: str = "arr-coc",
        embeddings: str | None = None,
        layer: str | None = "auto",
        dtype: str | None = None,
        attn_implementation: str | None = None,
        frames: int = 32,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
    ) -> None:
        """`pretrained` and the arguments after it are those of `arr_coc.load` and `VLM.ask`; the last three are lmms-eval's.

        `frames`: at most so many are sampled from a video. `layer=none` uses no layer.
        """
        super().__init__()
        if str(batch_size) != "1":
            raise ArrCocError(f"expected --batch_size 1, got {batch_size}: each question is answered by itself")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ArrCocError("expected one process, got several: start lmms_eval without `accelerate launch`")
        limit(budget, 1000)
        limit(glance, 1000, "glance")
        arr_coc.selectors.selector(selector)
        check_device(device)
        keep_quiet()
        self.vlm = arr_coc.load(
            pretrained,
            embeddings=embeddings,
            layer=None if layer == "none" else layer,
            dtype=dtype,
            attn_implementation=attn_implementation,
        )
        if device is not None:
            self.vlm.model.to(device)
        self.frames = frames
        self.options: dict[str, Any] = {"budget": budget, "glance": glance, "selector": selector}

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        results = []
        read = seen = 0
        for request in tqdm(requests, desc="arr-coc"):
            context, wanted, doc_to_visual, doc_id, task, split = request.args
            visuals = as_list(doc_to_visual(self.task_dict[task][split][doc_id]))
            answer = self._answer(visuals, context.replace("<image>", " ").strip(), wanted)
            tokens = answer.tokens
            read, seen = read + tokens["kept"], seen + tokens["all"]
            text = truncated(answer.text, wanted.get("until"))
            counts = TokenCounts(input_tokens=answer.prompt_tokens, output_tokens=len(answer.ids))
            results.append(GenerationResult(text, counts))
            self.cache_hook.add_partial("generate_until", (context, wanted), text)
        if seen:
            logger.info(f"arr-coc: {read} of {seen} visual tokens were read ({read / seen:.1%})")
        return results

    def _answer(self, visuals: Sequence[Any], question: str, wanted: Mapping[str, Any]) -> Answer:
        options = {name: wanted[name] for name in PASSED_ON if wanted.get(name) is not None}
        options = {"max_new_tokens": MAX_NEW_TOKENS} | options | self.options
        temperature = float(wanted.get("temperature") or 0.0)
        if temperature > 0 and wanted.get("do_sample", True):
            options |= {"do_sample": True, "temperature": temperature}
        else:
            options = {name: value for name, value in options.items() if name not in ("top_p", "top_k")}
            options["do_sample"] = False
        videos = [visual for visual in visuals if isinstance(visual, str | Path) and not is_image_file(visual)]
        if not videos:
            return self.vlm.ask(list(visuals) or None, question, **options)
        if len(visuals) > 1:
            raise ArrCocError(f"expected images, or one video, for a question, got a video among {len(visuals)} inputs")
        return self.vlm.ask(None, question, video=videos[0], frames=self.frames, **options)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise ArrCocError("this task compares likelihoods, and arr_coc generates text: choose one with generate_until")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise ArrCocError("this task has several rounds, and arr_coc answers one: choose one with generate_until")


def as_list(visuals: Any) -> list[Any]:
    """What a task's `doc_to_visual` returns, as a flat list."""
    if visuals is None:
        return []
    if not isinstance(visuals, list | tuple):
        return [visuals]
    return [one for visual in visuals for one in as_list(visual)]


def is_image_file(name: str | Path) -> bool:
    from PIL import Image

    return Path(name).suffix.lower() in Image.registered_extensions()


def truncated(text: str, until: str | Sequence[str] | None) -> str:
    """The text before the first of the task's stop strings.

    >>> truncated("37.40\\n\\nand more", ["\\n\\n"])
    '37.40'
    """
    for stop in [until] if isinstance(until, str) else until or ():
        if stop:
            text = text.split(stop)[0]
    return text.strip()
