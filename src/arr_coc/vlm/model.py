"""`VLM`: a wrapped vision-language model that reads only the visual tokens it needs.

One answer runs through this package top to bottom:

    request -> look -> glance -> encode -> gaze -> prompt -> generate -> answer

The model is called, never modified, and keeps no state of a call.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

import torch

from arr_coc.adapters.attention_probe import locate_answer
from arr_coc.adapters.families import adapter as adapter_of
from arr_coc.adapters.generic import Unlisted
from arr_coc.adapters.processor import PromptProcessor
from arr_coc.adapters.wrapped import check_peft
from arr_coc.devices import Stopwatch
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.errors import ModelError, PromptError, SelectorError
from arr_coc.frames.clip import load_clip, model_fps
from arr_coc.frames.reader import VideoSource
from arr_coc.hub import MESSAGE
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import fit_to_model
from arr_coc.layer.inference import LayerPredictor
from arr_coc.relevance.selector import ArrCoc
from arr_coc.selectors import SelectorLike
from arr_coc.selectors import selector as selector_of
from arr_coc.types.answer import Answer, Prepared
from arr_coc.types.budget import Budget
from arr_coc.types.gaze import Gaze
from arr_coc.types.image import ImageLike
from arr_coc.vlm import continuation, conversation, generation, prompt, saving, stages
from arr_coc.vlm import detail as views
from arr_coc.vlm.confidence import Calibration, check_refuse
from arr_coc.vlm.continuation import Waiting
from arr_coc.vlm.generation import AnswerStream, GenerationOptions
from arr_coc.vlm.look import Look, TokenCodec, take_look
from arr_coc.vlm.looking_again import check_sure, look_again, widened
from arr_coc.vlm.prompt import PrunedPrompt
from arr_coc.vlm.request import (
    AUTO,
    Default,
    Request,
    RequestOptions,
    SelectionRequest,
    changed_arguments,
    check_detail,
    is_image,
    is_video,
    listed,
    parse_request,
)

if TYPE_CHECKING:
    from arr_coc.vlm.recording import RecordingCost, Recordings

DEFAULT_SELECTOR = ArrCoc.name
USUAL_SELECTOR = Default(DEFAULT_SELECTOR)
Images: TypeAlias = "ImageLike | Look | Sequence[ImageLike] | None"


class AskOptions(RequestOptions, GenerationOptions, total=False):
    """The keyword arguments of `VLM.ask`, which describes them."""

    after: Answer | None
    history: Literal["all", "cells", "none"] | None
    cache: Literal["auto", "extend", "rebuild"]
    remember: bool | None
    sure: float | None
    refuse: Literal["auto", "off"]


class VLM:
    """A model and its processor. `arr_coc.wrap(model, processor)` and `arr_coc.load(folder)` create one."""

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        batch_windows: bool = False,
        embeddings: Embeddings | str | None = None,
        layer: ArrCocLayer | str | Path | None = "auto",
        codec: TokenCodec | None = None,
        source: Path | None = None,
    ) -> None:
        """See `arr_coc.wrap`.

        `codec`: a transform of the visual tokens between encoder and language model. `source`: the folder that the model and its
        processor were read from.
        """
        self.source = source
        self.model = model
        self.processor = processor
        self.adapter = adapter_of(
            model, image_processor=getattr(processor, "image_processor", None), batch_windows=batch_windows
        )
        self.embeddings = Embeddings(embeddings) if isinstance(embeddings, str) else embeddings
        self.layer: ArrCocLayer | None = None  # trained for this model
        self._universal: ArrCocLayer | None = None  # in place of the one that ships
        self._has_universal = layer is not None
        if layer is not None and layer not in ("auto", "universal"):
            made = layer if isinstance(layer, ArrCocLayer) else ArrCocLayer.from_pretrained(layer)
            fitted = fit_to_model(made, self.adapter)
            self.layer, self._universal = (None, fitted) if fitted.is_universal else (fitted, None)
        self.codec = codec
        self.recordings: Recordings | None = None  # made by `record`
        self.calibration = Calibration.find(
            source
        )  # of the confidence in answers; None: token probabilities as they are
        self._prompter = (
            None if processor is None else PromptProcessor(processor, self.adapter.kinds, self.adapter.images_by_row)
        )
        if self._prompter is not None:
            self._prompter.check(self.adapter)
            if isinstance(self.adapter, Unlisted):
                self.adapter.prove(self._prompter.sample())

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    @property
    def own_layer(self) -> ArrCocLayer | None:
        """The layer that belongs to this model: trained for it, or a universal one that was passed; None: the shipped one."""
        return self.layer if self.layer is not None else self._universal

    @property
    def predictor(self) -> LayerPredictor | None:
        """The layer that was trained for this model, as selectors call it; None if there is none."""
        return None if self.layer is None else LayerPredictor(self.layer, self.adapter.device)

    @property
    def universal(self) -> LayerPredictor | None:
        """The layer that depends on no model, loaded on first use; None if the model was wrapped with `layer=None`."""
        return LayerPredictor(self._universal, self.adapter.device) if self._has_universal else None

    @property
    def history(self) -> str:
        """How much of a conversation a follow-up reads by default: "none" for a model trained on single questions."""
        return "none" if getattr(self.adapter.config, "single_turn", False) else "all"

    @property
    def prompter(self) -> PromptProcessor:
        """The model's processor, chat template and tokenizer."""
        if self._prompter is None:
            raise ModelError("this model was wrapped without a processor: pass one, or call prepare(inputs=...)")
        return self._prompter

    def with_codec(self, codec: TokenCodec) -> VLM:
        """The same model, reading its visual tokens through `codec`."""
        other = copy.copy(self)
        other.codec = codec
        return other

    @overload
    def ask(self, images: Images, question: str, **options: Unpack[AskOptions]) -> Answer: ...

    @overload
    def ask(
        self, images: Images, question: list[str] | tuple[str, ...], **options: Unpack[AskOptions]
    ) -> list[Answer]: ...

    def ask(
        self,
        images: Images,
        question: str | Sequence[str],
        *,
        after: Answer | None = None,
        history: Literal["all", "cells", "none"] | None = None,
        cache: Literal["auto", "extend", "rebuild"] = "auto",
        videos: Any = None,
        video: VideoSource | None = None,
        fps: float | None = None,
        frames: int | None = None,
        budget: Budget | Sequence[Budget] = AUTO,
        glance: Budget | Sequence[Budget] = AUTO,
        selector: SelectorLike = USUAL_SELECTOR,
        glance_selector: SelectorLike | None = None,
        allocation: Any = None,
        shared: bool = False,
        seed: int = 0,
        gaze: Gaze | None = None,
        raw: bool = False,
        detail: str = "auto",
        straighten: str = "auto",
        remember: bool | None = None,
        sure: float | None = None,
        refuse: Literal["auto", "off"] = "auto",
        **options: Unpack[GenerationOptions],
    ) -> Answer | list[Answer]:
        """Answer a question about an image, several images, or a look; a list of questions gives a list of answers.

        Every question is about all of the images. For different images per question, call `generate`.

        Args:
            images: An image (path, PIL, numpy, torch), a list of them, a `Look`, or None for no image.
            question: One question, or several about the same images, which are encoded once.
            after: Continue from this answer, which was asked with `remember=True`: `vlm.ask(None, "And?", after=answer)`.
                Cells are chosen for the new question and added to those that were read; budget, glance and selector are
                those of the answer before unless given, "auto" included. `budget=0` adds none.
            history: How much of the conversation a follow-up's model reads: "all", the "cells" of all turns without their
                text, or "none": the new question alone, with the cells chosen for it. None: "all", unless the model's
                configuration has `single_turn`, as the reader's: then "none".
            cache: How a follow-up adds cells to the KV cache: "extend" (what was read stays as it is), "rebuild" (all is
                read again), or "auto": a short conversation is rebuilt, a long one extended.
            videos: Frames of a video, or a list of such, shown as they are.
            video: A clip (file, camera or frames) from which `fps` frames a second are sampled, at most `frames`.
            fps: Frames a second (2).
            frames: Maximum number of frames of `video` (32).
            budget: How many visual tokens the language model reads: a count (128), a share ("12.5%"), the fewest that
                hold a share of the relevance ("mass 90%"), "all", or "auto" (the default): as many as the relevance
                spreads over, and all where choosing would cost more than it saves. A list has one per image.
            glance: How many cells the vision encoder encodes at all; same forms.
            selector: Which selector chooses: a name (`arr_coc.selectors.names()`), a `Selector`, or a function.
            glance_selector: A different selector for the glance.
            allocation: Cells chosen beforehand: an `Allocation`, cell numbers or a mask, one per image.
            shared: One budget for all images of a prompt.
            seed: For selectors that draw at random.
            gaze: Where a person looks: (x, y) in pixels of the picture, or a list of such points. More of the budget goes there.
            raw: `question` is a whole prompt that contains the image tokens.
            detail: How a large image is shown: "views" (the part with text at a larger scale, and for models that read
                several images an overview), "mixed" (one image whose cells are small where it matters and large elsewhere;
                Qwen models), "off" (as the model's processor scales it), or "auto" (the default): views for a large image
                with small text.
            straighten: Whether a document that is turned, tilted or seen in perspective is shown upright: "auto" (the default) or
                "off". A page that is upright, or may be, is left as it is.
            remember: Keep the KV cache in the answer, for follow-up questions.
            sure: Look again where the confidence is below this: read twice the cells, four times, then all, until it is sure
                or two readings agree. The pictures are encoded once, whole. The answer is the surest one; `answer.tried`
                has all, `answer.tokens_paid` their tokens.
            refuse: "auto": where the model's folder says how (as the reader's does), an answer about what is not in the
                picture is "not in the picture"; `answer.refused` says why, `answer.raw_text` what the model wrote. "off": never.
            **options: Options of the model's own `generate`, such as `max_new_tokens` or `num_beams`.

        Returns:
            An `Answer` with its text, its tokens and timings, and the allocation of each image. A list of questions, or
            `num_return_sequences` above 1, gives a list.
        """
        generation.check_options(self.model, options, VLM.ask)
        if refuse != "auto":
            check_refuse(refuse)
        if after is not None:
            given = changed_arguments(VLM.ask, locals(), ("after", "remember", "history", "cache", "refuse", "sure"))
            return conversation.ask_after(
                self, after, images, question, given, history, cache, remember, sure, options, refuse
            )  # fmt: skip
        if late := [name for name, value in (("history", history), ("cache", cache)) if value not in (None, "auto")]:
            raise PromptError(f"expected {late[0]} only for a follow-up: pass after=answer")
        if sure is not None:
            check_sure(sure, self.adapter, options)
            if allocation is not None:
                raise PromptError(
                    "expected sure or an allocation, got both: given cells leave nothing to look at again"
                )
        several = not isinstance(question, str)
        look = images if isinstance(images, Look) else None
        if look is None and (several or sure is not None):
            chosen = selector_of(selector)
            asked = SelectionRequest(chosen, chosen, allocation=allocation, gaze=gaze)
            shown = views.of_look(
                self,
                listed(images, is_image),
                check_detail(detail, asked, raw=raw),
                question if isinstance(question, str) else "",
                budget,
                "off" if raw or allocation is not None or gaze is not None else straighten,
            )
            look = self.look(shown, videos=videos, video=video, fps=fps, frames=frames, straighten="off")
            videos = video = fps = frames = None
            detail = "off"
        request = parse_request(
            None if look is not None else images, question, look=look, videos=videos, video=video, fps=fps, frames=frames,
            budget=budget, glance=glance, selector=selector, glance_selector=glance_selector, allocation=allocation,
            shared=shared, seed=seed, gaze=gaze, raw=raw,
            detail=detail, straighten=straighten, frames_per_patch=self._frames_per_patch,
        )  # fmt: skip
        answers = self._answer(request, bool(remember), options, refuse)
        if sure is not None:
            selection = request.selection

            def read(row: int, budget: Budget | list[Budget]) -> Answer:
                return self._answer(widened(request, row, budget), bool(remember), options, refuse)[0]

            answers = [
                look_again(one, sure, selection.shared, selection, partial(read, row))
                for row, one in enumerate(answers)
            ]
        return answers if several or len(answers) > 1 else answers[0]

    def generate(
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
        budget: Budget | Sequence[Budget] = "auto",
        glance: Budget | Sequence[Budget] = "auto",
        selector: SelectorLike = DEFAULT_SELECTOR,
        glance_selector: SelectorLike | None = None,
        allocation: Any = None,
        shared: bool = False,
        seed: int = 0,
        gaze: Gaze | None = None,
        raw: bool = False,
        detail: str = "auto",
        straighten: str = "auto",
        remember: bool = False,
        refuse: Literal["auto", "off"] = "auto",
        **options: Unpack[GenerationOptions],
    ) -> list[Answer]:
        """Answers for a batch: one per row and returned sequence.

        Takes what `prepare` takes, or its result as the first argument, and the options of the model's own `generate`.
        `remember=True` keeps the KV cache for follow-up questions. `refuse`: as in `ask`.
        """
        generation.check_options(self.model, options, VLM.generate)
        if isinstance(images, Prepared):
            late = changed_arguments(VLM.generate, locals(), ("remember", "refuse"))
            if late:
                raise PromptError(f"these inputs are prepared already: {', '.join(sorted(late))} comes too late")
            return generation.generate(
                self.adapter, self._prompter, images, None, remember, options, self.calibration,
                recordings=self.recordings, refuse=refuse,
            )  # fmt: skip
        request = parse_request(
            images, text, videos=videos, video=video, fps=fps, frames=frames, messages=messages, inputs=inputs,
            originals=originals, look=look, budget=budget, glance=glance, selector=selector,
            glance_selector=glance_selector, allocation=allocation, shared=shared, seed=seed, gaze=gaze, raw=raw,
            detail=detail, straighten=straighten, frames_per_patch=self._frames_per_patch,
        )  # fmt: skip
        return self._answer(request, remember, options, refuse)

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
        budget: Budget | Sequence[Budget] = "auto",
        glance: Budget | Sequence[Budget] = "auto",
        selector: SelectorLike = DEFAULT_SELECTOR,
        glance_selector: SelectorLike | None = None,
        allocation: Any = None,
        shared: bool = False,
        seed: int = 0,
        gaze: Gaze | None = None,
        gradients: bool = False,
        raw: bool = False,
        detail: str = "auto",
        straighten: str = "auto",
    ) -> Prepared:
        """Keyword arguments for `model.generate`, with only the kept visual tokens.

        Args:
            images: Images of one prompt, or a list of such for a batch.
            text: The question of each row.
            messages: Chat messages with images and videos inside, instead of `images` and `text`.
            inputs: A processor's output, instead of `images`. With `originals` (the images behind it, or their textures)
                and `text` (the question alone), selectors that need pixels or words work, too.
            originals: See `inputs`.
            look: A look at the images (`vlm.look`), instead of `images`.
            gradients: Let gradients flow back through the encoder.
            raw: `text` is a whole prompt that contains the image tokens.

        The other arguments are those of `ask`.
        """
        request = parse_request(
            images, text, videos=videos, video=video, fps=fps, frames=frames, messages=messages, inputs=inputs,
            originals=originals, look=look, budget=budget, glance=glance, selector=selector,
            glance_selector=glance_selector, allocation=allocation, shared=shared, seed=seed, gaze=gaze, raw=raw,
            detail=detail, straighten=straighten, frames_per_patch=self._frames_per_patch,
        )  # fmt: skip
        chosen = request.selection.selector
        if chosen.depths:
            raise SelectorError(
                f"selector {chosen.name!r} works inside the language model, which inputs alone cannot carry: "
                "call generate or ask instead of prepare"
            )
        return self._prepare(request, gradients)

    def look(
        self,
        images: Any = None,
        *,
        videos: Any = None,
        video: VideoSource | None = None,
        fps: float | None = None,
        frames: int | None = None,
        attention_at: Sequence[float] = (),
        detail: str = "off",
        straighten: str = "auto",
    ) -> Look:
        """Preprocess images and videos once, for any number of questions: `vlm.ask(look, question)`.

        They are encoded once, too, when a question first needs it. `attention_at`: encoder depths (0 to 1) whose
        attention is recorded in that encoding, for selectors that use it. `detail`, `straighten`: as in `ask`; what is shown
        is the same for all questions.
        """
        videos, fps = load_clip(video, videos, fps, frames, self._frames_per_patch)
        shown = views.of_look(self, listed(images, is_image), detail, straighten=straighten)
        look = self._take_look([shown], [listed(videos, is_video)], model_fps(fps), Stopwatch(self.device))
        return replace(look, attention_at=tuple(attention_at))

    def record(
        self,
        *,
        budget: Budget,
        glance: Budget = "all",
        sizes: Sequence[tuple[int, int]] = ((1024, 1024),),
        texts: Sequence[int] = (64, 128),
        batches: Sequence[int] = (1,),
        new_tokens: int = 64,
        most: int = 16,
    ) -> RecordingCost:
        """Record answers of fixed shapes ahead of time, as CUDA graphs; on a CPU the same functions run without a graph.

        Answers that fit a recorded shape use it from then on; all others run as before. Their tokens are the same.

        Args:
            budget: The budget that will be asked with, as a count or a share, or "all".
            glance: Likewise. With counts, pictures of every size have one shape.
            sizes: (width, height) of pictures, which shares are counted for.
            texts: Lengths in tokens that prompts are padded to, besides their pictures' tokens.
            batches: Numbers of prompts that are answered together.
            new_tokens: The longest answer. Longer ones run as before.
            most: The most shapes kept, those of earlier calls included; the one unused for longest goes first.
        """
        from arr_coc.vlm import recording

        return recording.record(self, budget, glance, sizes, texts, batches, new_tokens, most)

    def stream(self, images: Images, question: str, **options: Unpack[AskOptions]) -> AnswerStream:
        """What `ask` answers to one question, piece by piece: iterate over the text, then read `.answer`.

        The options are those of `ask`.
        """
        if not isinstance(question, str):
            raise PromptError(f"expected one question to stream an answer to, got {type(question).__name__}")
        generation.check_options(self.model, options, VLM.ask)
        if options.get("sure") is not None:
            raise PromptError("expected sure with ask: a streamed answer cannot be taken back")
        for name in ("num_beams", "num_return_sequences"):
            if (count := self.adapter.generation_option(options, name)) not in (None, 1):
                raise PromptError(f"expected {name}=1 for a streamed answer, got {count!r}: call ask instead")

        def run(streamer: Any, stop: Any) -> Answer:
            criteria = [*(options.get("stopping_criteria") or ()), stop]
            own: AskOptions = {**options, "streamer": streamer, "stopping_criteria": criteria}
            return self.ask(images, question, **own)

        return AnswerStream(run, self.prompter.decode)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder for `arr_coc.load` and transformers: weights, processor, and the layer in its subfolder."""
        saving.save(self, Path(folder))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        report: str | Path | None = None,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = MESSAGE,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Push the folder of `save_pretrained` with a model card, in one commit; returns the commit's address.

        Args:
            repo_id: "user/repository", which is created where it does not exist.
            report: A folder of `arr-coc eval --report`, whose figures the card shows.
            private: Create a private repository.
            token: A token that may write; by default the one of `hf auth login` or of `HF_TOKEN`.
            commit_message: The commit's message.
            branch: The branch to push to (main).
            create_pr: Open a pull request instead.
        """
        return saving.push(
            self, repo_id, report, private=private, token=token, commit_message=commit_message, branch=branch,
            create_pr=create_pr,
        )  # fmt: skip

    def point(self, prepared: Prepared, answer: Answer) -> list[torch.Tensor]:
        """Where an answer is: each image's attention map `[N]` in [0, 1] while the answer was generated."""
        return locate_answer(self.adapter, prepared, answer.ids)

    # One answer, stage by stage.

    def _answer(
        self, request: Request, remember: bool, options: Mapping[str, Any], refuse: str = "auto"
    ) -> list[Answer]:
        """request -> look -> glance -> encode -> gaze -> prompt (`_prepare`) -> generate -> answer."""
        chosen, pruning, waiting = request.selection.selector, None, None
        if chosen.depths:  # it drops cells inside the language model
            request, pruning = continuation.prune_inside(self.adapter, request, remember, options)
        elif chosen.continues or chosen.continues_up_to:  # the prefill may continue from its probe
            waiting = continuation.allow_waiting(self.adapter, request, remember, options)
        prepared = self._prepare(request, waiting=waiting)
        if waiting is not None and waiting.rows:
            pruning = continuation.prune_from_probe(self.adapter, request.selection, waiting)
        return generation.generate(
            self.adapter, self._prompter, prepared, pruning, remember, options, self.calibration,
            recordings=self.recordings, refuse=refuse,
        )  # fmt: skip

    def _prepare(self, request: Request, gradients: bool = False, waiting: Waiting | None = None) -> Prepared:
        """request -> look -> glance -> encode -> gaze -> prompt.

        `waiting`: probes may wait for the prefill; the calls that do are added, by row.
        """
        check_peft(self.model)
        watch = Stopwatch(self.adapter.device)
        with torch.set_grad_enabled(gradients):
            pruned: list[PrunedPrompt] = []
            for context in self._contexts(request, watch):
                context.defer = None if waiting is None else waiting.allowed
                plan = stages.glance(context)
                if plan.downscale:
                    context, plan = prompt.downscale(context, plan)
                encoded = stages.encode(context, plan)
                result = stages.gaze(context, plan, encoded)
                if waiting is not None:  # several contexts have one row each
                    waiting.rows.update(
                        (len(pruned) + context.visuals[i].row, one) for i, one in result.deferred.items()
                    )
                pruned.append(prompt.build(context, result))
            return prompt.join(pruned, self.adapter.pad_token).prepared(self.adapter, watch)

    def _contexts(self, request: Request, watch: Stopwatch) -> Any:
        """The prompts of a request with their images preprocessed."""
        if request.inputs is not None:
            return [prompt.context_for_inputs(self, request, watch)]
        look = request.look
        if look is None:
            request = views.show_views(self, request, watch)
            look = self._take_look(request.images, request.videos, request.fps, watch)
        elif look.model is not self.adapter.model:
            raise PromptError("this look was taken with another model: take one with this model's own look(...)")
        return prompt.contexts(self, request, look, watch)

    def _take_look(self, images: Sequence[Any], videos: Sequence[Any], fps: float, watch: Stopwatch) -> Look:
        return take_look(self.adapter.model, self.prompter, images, videos, fps, watch, self.embeddings)

    @property
    def _frames_per_patch(self) -> int:
        """How many frames the model encodes as one."""
        return int(getattr(getattr(self.processor, "video_processor", None), "temporal_patch_size", 1))

    def __repr__(self) -> str:
        return f"VLM({self.adapter.family}, {type(self.model).__name__} on {self.device})"
