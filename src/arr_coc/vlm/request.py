"""One call, parsed and checked once: what is shown, what is asked, how much is encoded and kept."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch

from arr_coc.adapters.processor import Message, user_message
from arr_coc.errors import AllocationError, BudgetError, PromptError, SelectorError
from arr_coc.frames.clip import MODEL_FPS, Clip, load_clip, model_fps
from arr_coc.frames.reader import VideoSource
from arr_coc.selectors import Selector, SelectorLike
from arr_coc.selectors import selector as selector_of
from arr_coc.types.allocation import Allocation, check_cells
from arr_coc.types.budget import Budget, limit
from arr_coc.types.gaze import Gaze, check_gaze
from arr_coc.types.grid import Cells
from arr_coc.types.question import check_question, check_text
from arr_coc.vlm.look import Look

Rows = tuple[tuple[Any, ...], ...]  # images or videos of each row of the batch
DETAILS = ("auto", "off", "views", "mixed")
STRAIGHTEN = ("auto", "off")


class Default(str):
    """A default value that differs from the same word given by a caller, so that a follow-up can go back to it."""


AUTO = Default("auto")


class RequestOptions(TypedDict, total=False):
    """What `VLM.ask` and `VLM.stream` take besides images, question and generation options; see `VLM.ask`."""

    videos: Any
    video: VideoSource | None
    fps: float | None
    frames: int | None
    budget: Budget | Sequence[Budget]
    glance: Budget | Sequence[Budget]
    selector: SelectorLike
    glance_selector: SelectorLike | None
    allocation: Any
    shared: bool
    seed: int
    gaze: Gaze | None
    raw: bool
    detail: str
    straighten: str


@dataclass(frozen=True)
class SelectionRequest:
    """How much to encode and keep, and which selector decides. Checked as far as possible without images."""

    selector: Selector
    glance_selector: Selector
    budget: Budget | Sequence[Budget] = "auto"
    glance: Budget | Sequence[Budget] = "auto"
    allocation: Any = None  # cells that the caller chose, one entry per image
    shared: bool = False  # one budget for all images of a row
    seed: int = 0
    gaze: Gaze | None = None  # where a person looks: (x, y) in pixels of the picture, or several points

    def __post_init__(self) -> None:
        for what, budget in (("budget", self.budget), ("glance", self.glance)):
            for one in budget if isinstance(budget, list | tuple) else [budget]:
                limit(one, 1, what)  # type: ignore[arg-type]
        if self.shared and isinstance(self.budget, list | tuple):
            raise BudgetError("expected one budget for all pictures with shared=True, got a list")
        if self.allocation is not None and any(one not in ("auto", "all") for one in (self.budget, self.glance)):
            raise AllocationError("an allocation says what is kept and encoded: leave budget and glance out")
        if self.selector.early and self.glance not in ("auto", "all"):
            raise SelectorError(f"selector {self.selector.name!r} spends its budget before encoding: leave glance out")
        if self.gaze is not None:
            check_gaze(self.gaze)
            for one in (self.selector, self.glance_selector):
                if not one.reads_gaze:
                    raise SelectorError(
                        f"expected a selector that uses the gaze, got {one.name!r}: leave gaze out, or choose arr-coc"
                    )
        for one in (self.selector, self.glance_selector):
            for depth in (*one.attention_at, *one.depths):
                if not isinstance(depth, int | float) or not math.isfinite(depth) or not 0 <= depth <= 1:
                    raise SelectorError(f"expected depths between 0 and 1 of selector {one.name!r}, got {depth!r}")


@dataclass(frozen=True, eq=False)
class Request:
    """One call. Exactly one of `look`, `inputs` and `images`/`videos` holds what is shown."""

    selection: SelectionRequest
    questions: tuple[str, ...] | None  # one per row; None: read them from `inputs`
    conversations: tuple[tuple[Message, ...], ...] = ()  # chat messages of each row; empty for `inputs`
    images: Rows = ()
    videos: Rows = ()
    fps: float = 0.0
    look: Look | None = None
    inputs: Mapping[str, Any] | None = None  # a processor's output
    originals: Sequence[Any] | None = None  # the images behind `inputs`
    raw: bool = False  # the questions are whole prompts
    detail: str = "off"  # whether large images are shown as views
    straighten: str = "off"  # whether documents are shown upright


def parse_request(
    images: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    videos: Any,
    video: VideoSource | None,
    fps: float | None,
    frames: int | None,
    messages: Sequence[Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    originals: Sequence[Any] | None = None,
    look: Look | None,
    budget: Budget | Sequence[Budget],
    glance: Budget | Sequence[Budget],
    selector: SelectorLike,
    glance_selector: SelectorLike | None,
    allocation: Any,
    shared: bool,
    seed: int,
    gaze: Gaze | None,
    raw: bool,
    detail: str,
    straighten: str,
    frames_per_patch: int,
) -> Request:
    """The arguments of `VLM.prepare` and `VLM.generate` as a `Request`; raises one clear sentence if they do not fit."""
    chosen = selector_of(selector)
    glancing = chosen if glance_selector is None else selector_of(glance_selector)
    selection = SelectionRequest(chosen, glancing, budget, glance, allocation, shared, seed, gaze)
    detail = check_detail(detail, selection, inputs is not None, look is not None, raw)
    check_straighten(straighten)
    if raw or allocation is not None or gaze is not None:  # all of which are about the image as it is
        straighten = "off"
    if video is not None and not isinstance(text, str):
        raise PromptError("expected one question with video=: for several, take vlm.look(video=...) first")
    if video is not None or frames is not None:
        videos, fps = load_clip(video, videos, fps, frames, frames_per_patch)
    shown = images is not None or videos is not None
    if sum((inputs is not None, messages is not None, text is not None and inputs is None)) != 1:
        raise PromptError("expected one of text, messages or inputs to hold the question")
    if (shown or look is not None) and (text is None or inputs is not None):
        raise PromptError("expected the pictures inside the messages or inputs, got them as separate arguments")
    if look is not None and (shown or fps is not None):
        raise PromptError("a look holds its pictures: leave images, videos and fps out")
    if originals is not None and inputs is None:
        raise PromptError("expected originals only with inputs: pass pictures as images")
    if raw and (text is None or inputs is not None):
        raise PromptError("expected raw=True only with text")
    rate = MODEL_FPS if fps is None else model_fps(fps)
    if inputs is not None:
        questions = None if text is None else tuple(_texts(text))
        return Request(selection, questions, inputs=inputs, originals=originals)
    if messages is not None:
        talks, found_images, found_videos = split_conversations(messages)
        questions = tuple(check_text(last_text(talk)) for talk in talks)
        conversations = tuple(tuple(talk) for talk in talks)
        return Request(
            selection, questions, conversations, _rows(found_images), _rows(found_videos), rate, detail=detail,
            straighten=straighten,
        )  # fmt: skip
    texts = _texts(text, check_text if raw else check_question)
    if look is not None:
        if not isinstance(look, Look) or look.rows != 1:
            raise PromptError(f"expected a look at one prompt's pictures (vlm.look), got {type(look).__name__}")
        message = len(look.images[0]), len(look.videos[0])
        conversations = tuple((user_message(one, *message),) for one in texts)
        return Request(selection, tuple(texts), conversations, fps=rate, look=look, raw=raw)
    rows = rows_of(images, len(texts), "image", is_image), rows_of(videos, len(texts), "video", is_video)
    conversations = tuple((user_message(t, len(i), len(v)),) for t, i, v in zip(texts, *rows, strict=True))
    return Request(
        selection, tuple(texts), conversations, _rows(rows[0]), _rows(rows[1]), rate, raw=raw, detail=detail,
        straighten=straighten,
    )  # fmt: skip


def check_detail(
    detail: str, selection: SelectionRequest, inputs: bool = False, look: bool = False, raw: bool = False
) -> str:
    """`detail`, or "off" where `auto` cannot show views; raises where views were asked for and cannot be shown."""
    if detail not in DETAILS:
        raise PromptError(f"expected detail as one of {', '.join(DETAILS)}, got {detail!r}")
    selector, why = selection.selector, ""
    if inputs:
        why = "model inputs: pass the image itself"
    elif look:
        why = f"a look, which has its views already: call look(..., detail={detail!r})"
    elif raw:
        why = "a raw prompt, whose image tokens are fixed: pass the question alone"
    elif selection.allocation is not None and detail != "mixed":
        why = "an allocation, which is for the whole image: leave one of the two out"
    elif selection.gaze is not None:
        why = "a gaze, which is on the image as it is: leave one of the two out"
    elif selector.early or selector.depths:
        why = f"selector {selector.name!r}, which does not choose among encoded cells: choose another one"
    if why and detail in ("views", "mixed"):
        raise PromptError(f"expected an image and a selector of cells with detail={detail!r}, got {why}")
    return "off" if why else detail


def check_straighten(straighten: str) -> None:
    if straighten not in STRAIGHTEN:
        raise PromptError(f"expected straighten as one of {', '.join(STRAIGHTEN)}, got {straighten!r}")


def given_cells(allocation: Any, grids: Sequence[Cells]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Cells to keep and to encode that the caller chose, checked against the images' grids."""
    entries = list(allocation) if _is_list(allocation) or len(grids) != 1 else [allocation]
    if len(entries) != len(grids):
        raise AllocationError(f"expected one allocation for each of the {len(grids)} pictures, got {len(entries)}")
    cells = []
    for entry, grid in zip(entries, grids, strict=True):
        if not isinstance(entry, Allocation):
            cells.append((check_cells(entry, grid, "kept cells"), torch.arange(grid.n)))
            continue
        # The covered area may be known for one of the two only, so it is not compared.
        if [(v.t, v.h, v.w) for v in entry.grid.views] != [(v.t, v.h, v.w) for v in grid.views]:
            raise AllocationError(f"this allocation is for a grid of {entry.grid} cells, but the picture has {grid}")
        cells.append((entry.keep, entry.encoded))
    return cells


def _is_list(allocation: Any) -> bool:
    """Whether there are several entries, rather than the cell numbers of one."""
    if isinstance(allocation, Allocation | torch.Tensor | np.ndarray):
        return False
    if not isinstance(allocation, list | tuple):
        raise AllocationError(f"expected cells or a list of them, one per picture, got {type(allocation).__name__}")
    return any(isinstance(entry, Allocation | torch.Tensor | np.ndarray | list | tuple) for entry in allocation)


def split_conversations(messages: Any) -> tuple[list[list[Message]], list[list[Any]], list[list[Any]]]:
    """Chat messages (one conversation or a list of them) without their media, and the images and videos of each."""
    if not isinstance(messages, list | tuple) or len(messages) == 0:
        raise PromptError("expected a list of messages, at least one")
    talks = [messages] if isinstance(messages[0], Mapping) else list(messages)
    clean, images, videos = [], [], []
    for talk in talks:
        if not isinstance(talk, list | tuple) or len(talk) == 0:
            raise PromptError("expected conversations as lists of messages, none of them empty")
        found: dict[str, list[Any]] = {"image": [], "video": []}
        clean.append([_without_media(message, found) for message in talk])
        images.append(found["image"])
        videos.append(found["video"])
    return clean, images, videos


def _without_media(message: Any, found: dict[str, list[Any]]) -> Message:
    """A message without its images and videos, which go into `found`."""
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise PromptError("expected messages as dicts with role and content")
    content = message["content"]
    if isinstance(content, str):
        return message
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        raise PromptError("expected a message's content as text or a list of parts with a type each")
    parts = []
    for part in content:
        kind = part.get("type")
        if kind in found:
            if part.get(kind) is None:
                raise PromptError(f"expected the {kind} itself under {kind!r} in the message")
            if "fps" in part:
                raise PromptError("expected fps as an argument, got it inside a message")
            found[kind].append(part[kind])
        elif kind == "text" and not isinstance(part.get("text"), str):
            raise PromptError("expected the words under 'text' in the message's part")
        parts.append({"type": kind} if kind in found else part)
    return {**message, "content": parts}


def last_text(talk: Sequence[Message]) -> str:
    """The text of a conversation's last message."""
    content = talk[-1]["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("type") == "text")


def rows_of(things: Any, rows: int, what: str, is_one: Callable[[Any], bool]) -> list[Sequence[Any]]:
    """The images or videos of a batch, as one list per row."""
    if things is None:
        return [()] * rows
    if rows == 1:
        if is_one(things):
            return [(things,)]
        if not isinstance(things, list | tuple | np.ndarray | torch.Tensor):
            raise PromptError(f"expected {what}s, got {type(things).__name__}")
        nested = isinstance(things, list | tuple) and len(things) == 1 and isinstance(things[0], list | tuple)
        return [tuple(things[0])] if nested and not is_one(things[0]) else [tuple(things)]
    if is_one(things) or not isinstance(things, list | tuple) or len(things) != rows:
        came = 1 if is_one(things) else len(things)
        raise PromptError(f"expected {what}s for each of the {rows} questions (an empty list for none), got {came}")
    for row in things:
        if row is not None and not is_one(row) and not isinstance(row, list | tuple):
            raise PromptError(f"expected {what}s for each of the {rows} questions, got {type(row).__name__} for one")
    return [() if row is None else (row,) if is_one(row) else tuple(row) for row in things]


def listed(things: Any, is_one: Callable[[Any], bool]) -> tuple[Any, ...]:
    """None, one image or video, or several, as a tuple."""
    return () if things is None else (things,) if is_one(things) else tuple(things)


def is_image(thing: Any) -> bool:
    batch = isinstance(thing, np.ndarray | torch.Tensor) and thing.ndim == 4
    return not isinstance(thing, list | tuple) and not batch


def is_video(thing: Any) -> bool:
    """Frames: an array with four dimensions, or a list of images rather than of videos."""
    if isinstance(thing, np.ndarray | torch.Tensor):
        return thing.ndim == 4
    if isinstance(thing, str | os.PathLike | Clip):
        return True
    return isinstance(thing, list | tuple) and len(thing) > 0 and all(is_image(frame) for frame in thing)


def _rows(rows: Sequence[Sequence[Any]]) -> Rows:
    return tuple(tuple(row) for row in rows)


def _texts(text: Any, check: Callable[[str], str] = check_question) -> list[str]:
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, list | tuple) else []
    if not texts or not all(isinstance(one, str) for one in texts):
        raise PromptError("expected a question as text, or a list of them")
    return [check(one) for one in texts]


def changed_arguments(function: Any, given: Mapping[str, Any], apart: Sequence[str] = ()) -> dict[str, Any]:
    """The keyword arguments in `given` that differ from the function's defaults, apart from some, images and question."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "images", "question", *apart) or parameter.kind == parameter.VAR_KEYWORD:
            continue
        value = given[name]
        plain = isinstance(value, str | int | float) and not isinstance(parameter.default, Default)
        if value is not parameter.default and not (plain and value == parameter.default):
            found[name] = value
    return found
