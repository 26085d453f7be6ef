"""A vision-language model that reads only the visual tokens it needs.

The model stays as it is: it is called, never changed, and nothing of a call is kept on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.adapters import layer_pruning as inside
from arr_coc.adapters.attention_probe import locate_answer
from arr_coc.adapters.families import adapter as adapter_of
from arr_coc.adapters.processor import PromptProcessor, user_message
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import ModelError, PromptError, SelectorError
from arr_coc.frames.clip import load_clip, model_fps
from arr_coc.frames.reader import VideoSource
from arr_coc.layer import ArrCocLayer
from arr_coc.layer import identity as fitting
from arr_coc.selectors import SelectorLike
from arr_coc.selectors import selector as selector_of
from arr_coc.timing import Stopwatch
from arr_coc.types.answer import Answer, Prepared
from arr_coc.types.budget import Budget
from arr_coc.types.image import ImageLike
from arr_coc.vlm import prompt as preparing
from arr_coc.vlm import sources
from arr_coc.vlm.generation import conversation, follow_up, generate, last_words
from arr_coc.vlm.look import Look
from arr_coc.vlm.request import Wish
from arr_coc.vlm.streaming import Stream

DEFAULT = "arr-coc"  # the selector, unless told


class VLM:
    """A model and its processor, wrapped. `arr_coc.wrap(model, processor)` and `arr_coc.load(folder)` make one."""

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        batch_windows: bool = False,
        embeddings: Embeddings | str | None = None,
        layer: ArrCocLayer | str | Path | None = None,
    ) -> None:
        """`batch_windows`: whole pictures, too, are encoded with all windows in one call; equal to the stock encoder to
        rounding, and much faster on a GPU where its attention is divided into windows (Qwen2.5-VL). `embeddings`: what
        selectors may ask about picture and question before the model sees either; or an encoder's name. `layer`: what
        `arr-coc train` learned for this model, or its folder."""
        self.model = model
        self.adapter = adapter_of(model)
        self.adapter.batched = batch_windows
        self.embeddings = Embeddings(embeddings) if isinstance(embeddings, str) else embeddings
        if layer is not None:
            made = layer if isinstance(layer, ArrCocLayer) else ArrCocLayer.from_pretrained(layer)
            self.adapter.layer = fitting.check(made, self.adapter)
        self.processor = processor
        self.adapter.image_processor = getattr(processor, "image_processor", None)
        self._prompter = (
            None if processor is None else PromptProcessor(processor, self.adapter.kinds, self.adapter.images_by_row)
        )
        if self._prompter is not None:
            self._prompter.check(self.adapter)

    @property
    def layer(self) -> ArrCocLayer | None:
        """What was learned for this model; None: nothing was, and relevance is worked out without training."""
        return self.adapter.layer

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def look(
        self, images: Any = None, *, videos: Any = None, video: VideoSource | None = None, fps: float | None = None,
        frames: int | None = None, attention_at: Sequence[float] = (),
    ) -> Look:  # fmt: skip
        """Preprocess pictures once, for any number of questions: `vlm.ask(look, question)`.

        They are encoded once, too, when a question first needs it; with `attention_at`, so that selectors which want to
        see the encoder's attention at those depths (0 to 1) share that encoding.
        """
        videos, fps = load_clip(video, videos, fps, frames, self._together)
        rows = [_listed(images, sources.is_image)], [_listed(videos, sources.is_video)]
        seen = self._look(*rows, model_fps(fps), Stopwatch(self.device))
        return replace(seen, attention_at=tuple(attention_at))

    def prepare(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        *,
        videos: Any = None,
        video: VideoSource | None = None,
        fps: float | None = None,
        frames: int | None = None,
        messages: Sequence[Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        originals: Sequence[Any] | None = None,
        look: Look | None = None,
        budget: Budget | Sequence[Budget] = "all",
        glance: Budget | Sequence[Budget] = "all",
        selector: SelectorLike = DEFAULT,
        glance_selector: SelectorLike | None = None,
        allocation: Any = None,
        shared: bool = False,
        seed: int = 0,
        gradients: bool = False,
        raw: bool = False,
    ) -> Prepared:
        """Keyword arguments for `model.generate`, with only the visual tokens that were kept.

        Pictures and words come as `images`/`videos` and `text` (lists for a batch), as chat `messages`, as a `look` and
        `text`, or as `inputs`, a processor's output; `originals`, the images behind these (or their textures), and `text`, the
        question alone, then let a selector see what it decides about. `budget` is what to keep and `glance` what to encode at all, of all
        cells: a count, a share ("12.5%"), as few as hold a share of the relevance ("mass 90%"), "auto" or "all"; a list
        has one for each picture. `shared`: one budget for all pictures of a prompt. `allocation`: cells decided beforehand.
        `gradients`: let them flow back through the encoder.
        `video`: a clip's file, of which `fps` frames a second (2) are shown, or frames of any kind; at most `frames` of them
        (32); where they move, the model gets each of them by itself. `videos`: lists of frames, all of which are shown as they are,
        `fps` a second. `raw`: the text is a whole prompt with the picture tokens in it.
        """
        chosen = selector_of(selector)
        wish = Wish(
            chosen, chosen if glance_selector is None else selector_of(glance_selector),
            budget, glance, allocation, shared, seed,
        )  # fmt: skip
        if chosen.depths:
            raise SelectorError(
                f"selector {chosen.name!r} works inside the language model, which inputs alone cannot carry: "
                "call generate or ask instead of prepare"
            )
        if video is not None and not isinstance(text, str):
            raise PromptError("expected one question beside video=: for several, take vlm.look(video=...) first")
        videos, fps = load_clip(video, videos, fps, frames, self._together)
        with torch.set_grad_enabled(gradients):
            return self._prepare(images, text, videos, fps, messages, inputs, originals, look, wish, raw)

    def generate(self, *args: Any, **options: Any) -> list[Answer]:
        """Answers, one per row and returned sequence. Takes what `prepare` takes (or its result) and what the model's own
        `generate` takes (`max_new_tokens`, `num_beams`, `streamer`, ...); `remember=True` allows follow-up questions."""
        remember = options.pop("remember", False)
        if args and isinstance(args[0], Prepared):
            wrong = sorted(set(options) & PREPARE_OPTIONS)
            if wrong or len(args) > 1:
                what = ", ".join(wrong) or "anything beside them"
                raise PromptError(f"these inputs are prepared already: {what} comes too late")
            return generate(self, args[0], None, remember, options)
        chosen = selector_of(options.get("selector", DEFAULT))
        own = {name: options.pop(name) for name in list(options) if name in PREPARE_OPTIONS}
        if not chosen.depths:
            return generate(self, self.prepare(*args, **own), None, remember, options)
        if remember:
            raise SelectorError(
                f"selector {chosen.name!r} leaves a cache that cannot be gone on from: drop remember=True"
            )
        budget, shared = own.pop("budget", "all"), own.pop("shared", False)
        Wish(chosen, chosen, budget, shared=shared)  # complains now, not after encoding
        late = inside.PruningRequest(chosen, budget, shared, own.get("seed", 0))
        inside.check_options(chosen, options)
        own["selector"] = "all"
        return generate(self, self.prepare(*args, **own), late, remember, options)

    def ask(
        self,
        images: ImageLike | Look | Sequence[ImageLike] | None,
        question: str | Sequence[str],
        *,
        after: Answer | None = None,
        **options: Any,
    ) -> Any:
        """An answer about an image, several, or a look (None: no picture); for a list of questions, a list of answers.

        Every question is about all of the pictures; `generate` takes a list of pictures for each question.
        `after=answer` goes on from an answer that was asked for with `remember=True`: `vlm.ask(None, "And?", after=answer)`.
        """
        if after is not None:
            if images is not None or not isinstance(question, str):
                raise PromptError("a follow-up is one question about the same pictures: pass None as the image")
            return follow_up(self, after, question, options)
        several = not isinstance(question, str)
        if isinstance(images, Look):
            answers = self.generate(look=images, text=question, **options)
        elif several:
            shown = {name: options.pop(name) for name in ("videos", "video", "fps", "frames") if name in options}
            answers = self.generate(look=self.look(images, **shown), text=question, **options)
        else:
            answers = self.generate(images, question, **options)
        return answers if several or len(answers) > 1 else answers[0]

    def stream(self, images: ImageLike | Look | Sequence[ImageLike] | None, question: str, **options: Any) -> Stream:
        """What `ask` answers, piece by piece: iterate for text, then read `.answer`. Takes what `ask` takes, for one question."""
        if not isinstance(question, str):
            raise PromptError(f"expected one question to stream an answer to, got {type(question).__name__}")
        for name in ("num_beams", "num_return_sequences"):
            if options.get(name, 1) != 1:
                raise PromptError(f"expected {name}=1 for an answer in pieces, got {options[name]!r}: call ask instead")
        stops = list(options.pop("stopping_criteria", ()))

        def run(streamer: Any, stop: Any) -> Answer:
            return self.ask(images, question, streamer=streamer, stopping_criteria=[*stops, stop], **options)

        return Stream(run, self.prompter.decode)

    def point(self, prepared: Prepared, answer: Answer) -> list[torch.Tensor]:
        """Where an answer stands: for each picture the attention `[N]`, 0 to 1, that its cells got while it was written."""
        return locate_answer(self.adapter, prepared, answer.ids)

    def _prepare(
        self, images: Any, text: Any, videos: Any, fps: float | None, messages: Any, inputs: Any, originals: Any,
        look: Any, wish: Wish, raw: bool,
    ) -> Prepared:  # fmt: skip
        watch = Stopwatch(self.device)
        pictures = images is not None or videos is not None
        if sum((inputs is not None, messages is not None, text is not None and inputs is None)) != 1:
            raise PromptError("expected one of text, messages or inputs to hold the question")
        if (pictures or look is not None) and (text is None or inputs is not None):
            raise PromptError("expected the pictures inside the messages or inputs, got them beside")
        if look is not None and (pictures or fps is not None):
            raise PromptError("a look holds its pictures: leave images, videos and fps out beside it")
        if originals is not None and inputs is None:
            raise PromptError("expected originals beside inputs only: pictures come as images")
        if raw and (text is None or inputs is not None):
            raise PromptError("expected raw=True beside text only")
        rate = model_fps(fps)
        if inputs is not None:
            texts = None if text is None else _texts(text)
            made = preparing.draft_inputs(
                self.adapter,
                self._prompter,
                inputs,
                wish,
                watch,
                texts=texts,
                originals=originals,
                embeddings=self.embeddings,
            )
        elif messages is not None:
            talks, images, videos = conversation(messages)
            seen = self._look(images, videos, rate, watch)
            made = self._draft(seen, [last_words(talk) for talk in talks], talks, wish, watch)
        else:
            texts = _texts(text)
            if look is not None:
                made = self._questions(look, texts, wish, watch, raw)
            else:
                images = sources.rows_of(images, len(texts), "image", sources.is_image)
                videos = sources.rows_of(videos, len(texts), "video", sources.is_video)
                talks = [[user_message(t, len(i), len(v))] for t, i, v in zip(texts, images, videos, strict=True)]
                seen = self._look(images, videos, rate, watch)
                made = self._draft(seen, texts, talks, wish, watch, raw)
        return made.prepared(self.adapter, watch)

    @property
    def _together(self) -> int:
        """How many frames the model sees as one."""
        return int(getattr(getattr(self.processor, "video_processor", None), "temporal_patch_size", 1))

    def _look(self, images: Sequence[Any], videos: Sequence[Any], fps: float, watch: Stopwatch) -> Look:
        return preparing.look(self.model, self.prompter, images, videos, fps, watch, self.embeddings)

    def _questions(self, look: Any, texts: list[str], wish: Wish, watch: Stopwatch, raw: bool) -> preparing.Draft:
        """Several questions about the same pictures, encoded once."""
        if not isinstance(look, Look) or look.rows != 1:
            raise PromptError(f"expected a look at one prompt's pictures (vlm.look), got {type(look).__name__}")
        if look.model is not self.model:
            raise PromptError("this look was taken with another model: take one with this model's own look(...)")
        drafts = []
        for text in texts:
            talk = [user_message(text, len(look.images[0]), len(look.videos[0]))]
            drafts.append(self._draft(look, [text], [talk], wish, watch, raw))
        return preparing.batch(self.adapter, drafts)

    def _draft(
        self,
        look: Look,
        texts: list[str],
        talks: Sequence[Sequence[Any]],
        wish: Wish,
        watch: Stopwatch,
        raw: bool = False,
    ) -> preparing.Draft:
        return preparing.draft(self.adapter, self.prompter, look, texts, talks, wish, watch, raw)

    @property
    def prompter(self) -> PromptProcessor:
        if self._prompter is None:
            raise ModelError("this model was wrapped without a processor: pass one, or call prepare(inputs=...)")
        return self._prompter

    def __repr__(self) -> str:
        return f"VLM({self.adapter.family}, {type(self.model).__name__} on {self.device})"


PREPARE_OPTIONS = frozenset({
    "images", "text", "videos", "video", "fps", "frames", "messages", "inputs", "originals", "look", "budget", "glance", "selector",
    "glance_selector",
    "allocation", "shared", "seed", "gradients", "raw",
})  # fmt: skip


def _listed(things: Any, is_one: Any) -> tuple[Any, ...]:
    return () if things is None else (things,) if is_one(things) else tuple(things)


def _texts(text: Any) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, list | tuple) else []
    if not texts or not all(isinstance(one, str) for one in texts):
        raise PromptError("expected a question as text, or a list of them")
    return texts
