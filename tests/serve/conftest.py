"""Endpoints on a free port of this machine: with the bundled reader, and with a model that says what a test wants."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import arr_coc
from arr_coc.errors import PromptError
from arr_coc.serve.engine import Engine
from arr_coc.serve.limits import EndpointLimits
from arr_coc.serve.server import Server
from arr_coc.serve.settings import ServeSettings
from arr_coc.types.answer import Answer
from arr_coc.vlm.model import VLM

QUESTION = "What is the total amount?"
END = 0


def receipt(total: str = "18.20") -> Image.Image:
    paper = Image.new("RGB", (420, 280), (244, 243, 240))
    pen = ImageDraw.Draw(paper)
    for line, (words, amount) in enumerate((("BREAD", "3.10"), ("TOTAL", total))):
        for x, text in ((40, words), (270, amount)):
            pen.text((x, 40 + 110 * line), text, fill=(30, 30, 34), font=ImageFont.load_default(40))
    return paper


def data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def user(text: str, *images: Image.Image | str) -> list[dict[str, Any]]:
    """The messages of one question."""
    addresses = [one if isinstance(one, str) else data_uri(one) for one in images]
    parts = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


class ScriptedModel:
    """A model whose every answer is `text`, letter by letter. `gate(step)` runs before each letter, and may wait."""

    def __init__(self, text: str = "hello", gate: Callable[[int], object] = lambda step: None) -> None:
        self.text, self.gate = text, gate
        self.batches: list[list[str]] = []  # the questions of each batch
        self.steps = 0
        self.device = torch.device("cpu")
        self.model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=END))
        self.prompter = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids.tolist())))
        self.calibration = None

    def generate(
        self, *, messages: Sequence[Any], max_new_tokens: int, stopping_criteria: Any, **options: Any
    ) -> list[Answer]:
        asked = [talk[-1]["content"][-1]["text"] for talk in messages]
        self.batches.append(asked)
        if "bad" in asked:
            raise PromptError("expected another question, got 'bad'")
        if "broken" in asked:
            raise RuntimeError("a secret of the server")
        ids = torch.ones(len(messages), 1, dtype=torch.long)
        for step, token in enumerate([*map(ord, self.text), END][:max_new_tokens]):
            self.gate(step)
            self.steps += 1
            ids = torch.cat([ids, torch.full((len(messages), 1), token)], 1)
            if bool(stopping_criteria[0](ids, None).all()):
                break
        return [Answer(self.text, (), {"decode": 1.0}, ids[0], 7) for _ in messages]


@contextmanager
def running(vlm: Any, settings: ServeSettings | None = None) -> Iterator[tuple[str, Server, Engine]]:
    """An endpoint in a thread: its address, the server and the engine."""
    settings = settings or ServeSettings()
    engine = Engine(vlm, settings.limits)
    server = Server(engine, settings, "127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", server, engine
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def client(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=30)


@pytest.fixture(scope="session")
def reader() -> VLM:
    return arr_coc.load("reader")


@pytest.fixture(scope="session")
def address(reader: VLM) -> Iterator[str]:
    """The reader's endpoint."""
    with running(reader, ServeSettings(limits=EndpointLimits(images=3, megapixels=2, letters=200, tokens=64))) as (
        found,
        _,
        _,
    ):
        yield found
