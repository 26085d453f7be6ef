"""OpenAI's chat completions: the request, checked; the response, its chunks and its errors.

A field that would change the answer and is not supported is refused, and so is an unknown field: a misspelt option must not be
ignored. Fields that only label a request (`user`, `metadata`) are accepted and not used.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, field_validator

import arr_coc
from arr_coc.errors import ArrCocError
from arr_coc.hosting import UploadedImage
from arr_coc.serve.engine import BusyError, Sampling, StoppingError, Work
from arr_coc.serve.images import open_image
from arr_coc.serve.rows import Result
from arr_coc.serve.settings import Selection, ServeSettings

_log = logging.getLogger(__name__)

LABELS = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
# Fields that are not supported, and the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "presence_penalty": (0,), "audio": (),
    "frequency_penalty": (0,), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none",),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "prediction": (), "reasoning_effort": (),
    "verbosity": (), "web_search_options": (),
}  # fmt: skip


@dataclass(eq=False)
class RequestError(Exception):
    """An error with its HTTP status, as OpenAI's clients expect it."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ImageAddress(_Strict):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"  # of no effect: glance and budget say what is encoded and read


class ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: ImageAddress


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: list[Part]
    name: str | None = None  # clients send these with earlier answers; they are not used
    refusal: str | None = None
    annotations: list[Any] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _as_parts(cls, content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.content if isinstance(part, TextPart)]

    @property
    def addresses(self) -> list[str]:
        return [part.image_url.url for part in self.content if isinstance(part, ImagePart)]


class SelectionOptions(_Strict):
    """The object `arr_coc` of a request."""

    budget: Any = None  # `Selection` checks it
    glance: Any = None
    selector: StrictStr | None = None
    glance_selector: StrictStr | None = None
    shared: StrictBool | None = None
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] | None = None
    sure: Annotated[float, Field(ge=0, le=1)] | None = None
    refuse: StrictStr | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(_Strict):
    """The body of `/v1/chat/completions`."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    arr_coc: SelectionOptions | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop


def parse_request(body: bytes, settings: ServeSettings) -> ChatRequest:
    """The body of a request, checked without its images."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"expected the request as JSON, got something else ({error})") from None
    if not isinstance(given, dict):
        raise RequestError(400, f"expected the request as a JSON object, got {type(given).__name__}")
    for name in LABELS:
        given.pop(name, None)
    for name, harmless in UNSUPPORTED.items():
        value = given.pop(name, None)
        if value is not None and value not in harmless:
            raise RequestError(400, f"{name} is not supported: leave it out", param=name, code="unsupported_parameter")
    try:
        request = ChatRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RequestError(400, f"{where}: {_sentence(first)}", param=str(first["loc"][0])) from None
    if request.model != settings.name:
        message = f"expected the model {settings.name!r}, got {request.model[:80]!r}: see /v1/models"
        raise RequestError(404, message, "not_found_error", "model_not_found", "model")
    return request


def _sentence(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "unknown field: expected a field of OpenAI's chat completions, and the options of arr-coc inside arr_coc"
    return str(error["msg"]).replace("Input should be", "expected")[:200]


def make_work(request: ChatRequest, settings: ServeSettings) -> tuple[Work, list[UploadedImage]]:
    """What a request asks of the model, and its images, which are not decoded yet (see `decoded`)."""
    limits = settings.limits
    letters = sum(len(text) for message in request.messages for text in message.texts)
    if letters > limits.letters:
        raise RequestError(400, f"expected at most {limits.letters} letters of text, got {letters}: shorten it")
    addresses = [address for message in request.messages for address in message.addresses]
    if len(addresses) > limits.images:
        raise RequestError(400, f"expected at most {limits.images} images, got {len(addresses)}: send fewer")
    if request.messages[-1].role == "assistant":
        raise RequestError(400, "expected a question as the last message, got one of the assistant", param="messages")
    tokens = request.max_completion_tokens or request.max_tokens or limits.tokens
    if tokens > limits.tokens:
        raise RequestError(
            400, f"expected max_tokens of at most {limits.tokens}, got {tokens}: the server's --tokens sets it"
        )
    given = {} if request.arr_coc is None else request.arr_coc.model_dump(exclude_none=True)
    selection: Selection = replace(settings.selection, **given)
    if selection.sure is not None and request.stream:
        raise RequestError(400, "sure needs stream=false: a streamed answer cannot be taken back", param="stream")
    images = [open_image(url, number, limits, settings.addresses) for number, url in enumerate(addresses, start=1)]
    megapixels = sum(image.megapixels for image in images)
    if megapixels > limits.megapixels:
        raise RequestError(
            400,
            f"expected at most {limits.megapixels:g} megapixels, got {megapixels:.1f} in all: scale the images down",
        )
    sampling = Sampling(request.temperature, request.top_p, request.seed)
    work = Work(
        (), len(images), megapixels, selection, sampling, tokens, tuple(request.stop or ()), bool(request.stream)
    )
    return work, images


def decoded(request: ChatRequest, work: Work, images: list[UploadedImage]) -> Work:
    """The work with its conversation, the images decoded."""
    rest = iter(images)
    messages = []
    for message in request.messages:
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": part.text}
            if isinstance(part, TextPart)
            else {"type": "image", "image": next(rest).decode()}
            for part in message.content
        ]
        messages.append({"role": "system" if message.role == "developer" else message.role, "content": parts})
    return replace(work, messages=messages)


@dataclass(frozen=True)
class Completion:
    """The identity of one response, and its parts as JSON objects."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def _object(self, kind: str, choices: list[Any], **more: Any) -> dict[str, Any]:
        mark = f"arr-coc-{arr_coc.__version__}"
        own = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "system_fingerprint": mark}
        return own | {"choices": choices} | more

    def whole(self, result: Result) -> dict[str, Any]:
        message = {"role": "assistant", "content": result.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish}
        return self._object("chat.completion", [choice], usage=usage(result), arr_coc=details(result))

    def chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._object("chat.completion.chunk", [choice], **more)

    def final_chunk(self, result: Result) -> dict[str, Any]:
        return self.chunk({}, result.finish, arr_coc=details(result))

    def usage_chunk(self, result: Result) -> dict[str, Any]:
        return self._object("chat.completion.chunk", [], usage=usage(result))


def usage(result: Result) -> dict[str, Any]:
    """Tokens that were read and written. `visual_tokens`: all there are, those encoded, those kept (and read)."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": result.prompt_tokens + result.completion_tokens,
        "visual_tokens": result.visual,
    }


def details(result: Result) -> dict[str, Any]:
    """The object `arr_coc` of a response: how the answer was made."""
    made = asdict(result)
    return {"visual_tokens": result.visual, "timings_ms": result.timings} | {
        name: made[name]
        for name in (
            "confidence",
            "confidence_source",
            "refused",
            "raw_text",
            "tried",
            "strategy",
            "fallback",
            "notes",
            "batch",
        )
    }


def as_request_error(error: Exception) -> RequestError:
    """The HTTP error for any error. What is neither the client's fault nor a full queue goes to the log."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ArrCocError):
        return RequestError(400, str(error))
    if isinstance(error, BusyError):
        headers = {"Retry-After": str(error.seconds)}
        return RequestError(429, str(error), "rate_limit_error", "server_busy", headers=headers)
    if isinstance(error, StoppingError):
        return RequestError(503, str(error), "server_error", "server_stopping", headers={"Retry-After": "5"})
    _log.error("a request failed", exc_info=error)
    return RequestError(500, "the model failed on this request: the server's log has the reason", "server_error")
