"""vLLM's own server with the plugin, asked by the `openai` client. `make test-vllm` runs this."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")
import openai

import arr_coc
from arr_coc import reader

START_SECONDS = 240
TOTAL = "What is the total amount?"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(reader.WEIGHTS),
        "--served-model-name", "reader", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--max-model-len", "1536", "--enforce-eager", "--gpu-memory-utilization", "0.1",
        "--kv-cache-memory-bytes", str(2**28), "--limit-mm-per-prompt", '{"image": 2, "video": 0}',
        "--mm-processor-kwargs", json.dumps({"arr_coc": {"budget": "50%"}}), "--trust-request-mm-kwargs",
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("server") / "log"
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        wait(server, port, log)
        yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    finally:
        server.terminate()
        server.wait(60)


def wait(server: subprocess.Popen[bytes], port: int, log: Any) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no answer in {START_SECONDS} s: {log.read_text()[-4000:]}")


def uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


RECEIPT = uri(arr_coc.pictures.receipt())


def ask(client: openai.OpenAI, question: str = TOTAL, images: tuple[str, ...] = (RECEIPT,), **options: Any) -> Any:
    """One request; `options` are its own for `arr_coc`."""
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": one}} for one in images]
    content = [*parts, {"type": "text", "text": question}]
    extra = {"mm_processor_kwargs": {"arr_coc": options}} if options else None
    return client.chat.completions.create(
        model="reader", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=24, extra_body=extra
    )


def test_an_unmodified_client_reads_half_of_the_cells(client: openai.OpenAI) -> None:
    half, whole = ask(client), ask(client, budget="all")
    assert half.choices[0].message.content == whole.choices[0].message.content == "37.40"
    cells = arr_coc.load("reader").prepare(arr_coc.pictures.receipt(), TOTAL).allocations[0].n
    assert whole.usage.prompt_tokens - half.usage.prompt_tokens == cells // 2


def test_concurrent_requests_of_different_budgets(client: openai.OpenAI) -> None:
    budgets = ["all", "50%", "25%", "12.5%"]
    alone = [ask(client, budget=budget).choices[0].message.content for budget in budgets]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda budget: ask(client, budget=budget), budgets * 3))
    assert [one.choices[0].message.content for one in together] == alone * 3


def test_text_alone_and_two_pictures(client: openai.OpenAI) -> None:
    assert ask(client, images=()).usage.prompt_tokens < 40
    one, two = ask(client), ask(client, images=(RECEIPT, RECEIPT))
    assert two.usage.prompt_tokens > one.usage.prompt_tokens + 100


def test_a_stream(client: openai.OpenAI) -> None:
    content = [{"type": "image_url", "image_url": {"url": RECEIPT}}, {"type": "text", "text": TOTAL}]
    parts = client.chat.completions.create(
        model="reader", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=24, stream=True
    )
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "37.40"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "lots"}, "expected budget as a count"),
        ({"budget": 0}, "expected a budget of at least one cell, got 0"),
        ({"embeddings": "labels"}, "expected the options of a request among"),
        ({"cells": [[5000]]}, "expected cells between 0 and"),
    ],
)
def test_bad_options_are_a_bad_request_with_the_sentence(
    client: openai.OpenAI, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(client, **options)
    assert ask(client).choices[0].message.content == "37.40"
