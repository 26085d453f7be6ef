"""The endpoint as a FastAPI app: `/v1/models`, `/v1/chat/completions`, `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from arr_coc.serve.engine import BusyError, Engine, Job, Work
from arr_coc.serve.protocol import (
    ChatRequest,
    Completion,
    RequestError,
    as_request_error,
    decoded,
    make_work,
    parse_request,
)
from arr_coc.serve.rows import Event, Piece, Result
from arr_coc.serve.settings import ServeSettings

CLIENT_LEFT = 499  # not sent: there is no client any more
BUFFERS = 8  # bodies of full size that may be in memory at the same time


class Endpoint:
    """What the routes share: the engine, the settings, and the bytes of bodies that are being received."""

    def __init__(self, engine: Engine, settings: ServeSettings) -> None:
        self.engine, self.settings = engine, settings
        self.buffered = 0

    async def check_key(self, request: Request) -> None:
        wanted = self.settings.api_key
        if wanted is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), wanted.encode()):
            raise RequestError(
                401,
                "expected the server's API key as Authorization: Bearer KEY",
                "authentication_error",
                "invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def receive(self, request: Request) -> bytes:
        """The body, within the limits of size and time."""
        limits = self.settings.limits
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # browsers send other kinds to any host without asking it first
            raise RequestError(415, f"expected Content-Type: application/json, got {kind[:80]!r}", headers=_CLOSE)
        most = limits.body_bytes
        large = RequestError(413, f"expected a request of at most {most / 1e6:.3g} MB, got more", headers=_CLOSE)
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise large
        body = bytearray()
        try:
            async with asyncio.timeout(limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    self.buffered += len(chunk)
                    if len(body) > most:
                        raise large
                    if self.buffered > BUFFERS * most and self.buffered > len(body):
                        raise BusyError("other requests fill the server's memory: send it again later", 1)
        except TimeoutError:
            seconds = f"{limits.seconds:g} seconds"
            raise RequestError(408, f"expected the whole request within {seconds}", headers=_CLOSE) from None
        finally:
            self.buffered -= len(body)
        return bytes(body)

    async def chat(self, request: Request) -> Response:
        self.engine.check_room()
        body = await self.receive(request)
        chat = await asyncio.to_thread(parse_request, body, self.settings)
        del body
        work, images = await asyncio.to_thread(make_work, chat, self.settings)
        async with AsyncExitStack() as stack:
            stack.enter_context(self.engine.hold(work.megapixels))
            work = await asyncio.to_thread(decoded, chat, work, images)
            del images
            answer = await stack.enter_async_context(_Answering.submitted(self.engine, work))
            first = await answer.first(request)
            if first is None:
                return Response(status_code=CLIENT_LEFT)
            completion = Completion(self.settings.name)
            if isinstance(first, Result) and not work.stream:
                return JSONResponse(completion.whole(first))
            return _EventStream(_stream(completion, chat, answer, first), stack.pop_all())
        raise AssertionError("unreachable: the stack suppresses no error")


class _Answering:
    """A request in the engine, seen from the event loop. Leaving the block before its end cancels it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.job: Job

    @classmethod
    @asynccontextmanager
    async def submitted(cls, engine: Engine, work: Work) -> AsyncIterator[_Answering]:
        made, loop = cls(engine), asyncio.get_running_loop()

        def emit(event: Event) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server was stopped by force
                loop.call_soon_threadsafe(made.events.put_nowait, event)

        made.job = engine.submit(work, emit)
        try:
            yield made
        finally:
            engine.cancel(made.job)

    async def first(self, request: Request) -> Event | None:
        """The first event; errors are raised. None if the client left before it."""
        event = asyncio.ensure_future(self.next())
        gone = asyncio.ensure_future(_until_gone(request))
        try:
            await asyncio.wait((event, gone), return_when=asyncio.FIRST_COMPLETED)
            return event.result() if event.done() else None
        finally:
            event.cancel()
            gone.cancel()

    async def next(self) -> Event:
        event = await self.events.get()
        if isinstance(event, BaseException):
            raise event
        return event


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _EventStream(StreamingResponse):
    """Server-sent events. The request is released when they end, also where the client leaves."""

    def __init__(self, events: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _stream(completion: Completion, chat: ChatRequest, answer: _Answering, event: Event) -> AsyncIterator[bytes]:
    """The chunks of an answer whose first event is known."""
    yield _sse(completion.chunk({"role": "assistant", "content": ""}))
    try:
        while isinstance(event, Piece):
            if event.text:
                yield _sse(completion.chunk({"content": event.text}))
            event = await answer.next()
    except Exception as error:  # the status was sent already: clients find the error in the stream
        yield _sse(as_request_error(error).to_dict())
        return
    assert isinstance(event, Result)
    yield _sse(completion.final_chunk(event))
    if chat.stream_options is not None and chat.stream_options.include_usage:
        yield _sse(completion.usage_chunk(event))
    yield b"data: [DONE]\n\n"


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


_CLOSE = {"Connection": "close"}  # the rest of the body is not read


def create_app(engine: Engine, settings: ServeSettings) -> FastAPI:
    """The app around an engine, which starts and ends with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(title="arr-coc", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    endpoint = Endpoint(engine, settings)
    needs_key = [Depends(endpoint.check_key)]
    card = {"id": settings.name, "object": "model", "created": 0, "owned_by": "arr-coc"}

    @app.get("/v1/models", dependencies=needs_key)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}", dependencies=needs_key)
    async def model(name: str) -> dict[str, Any]:
        if name != settings.name:
            message = f"expected the model {settings.name!r}, got {name[:80]!r}"
            raise RequestError(404, message, "not_found_error", "model_not_found", "model")
        return card

    @app.post("/v1/chat/completions", dependencies=needs_key)
    async def chat(request: Request) -> Response:
        try:
            response = await endpoint.chat(request)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_LEFT)
        except Exception as error:
            response = _error_response(as_request_error(error))
        engine.metrics.requests.labels(str(response.status_code)).inc()
        return response

    @app.get("/health")
    async def health() -> JSONResponse:
        status = "ok" if engine.healthy else "stopping" if engine.stopping else "failed"
        return JSONResponse({"status": status, "model": settings.name}, 200 if engine.healthy else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.render(), media_type=engine.metrics.media_type)

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> JSONResponse:
        return _error_response(error)

    @app.exception_handler(HTTPException)  # an unknown path or method
    async def refuse_route(request: Request, error: HTTPException) -> JSONResponse:
        message = f"expected /v1/models or POST /v1/chat/completions, got {request.method} {request.url.path[:80]}"
        return _error_response(RequestError(error.status_code, message, "not_found_error"))

    return app


def _error_response(error: RequestError) -> JSONResponse:
    return JSONResponse(error.to_dict(), error.status, error.headers)
