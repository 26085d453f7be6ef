"""`arr-coc serve` as a process: signals during a request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from arr_coc.hosting import find_port

# The tiny model runs slowly enough that a signal arrives during its answer.
SLOW = """
import sys, time
from arr_coc.serve.rows import Row
push = Row.push
def slow(self, *rest):
    time.sleep(0.05)
    push(self, *rest)
Row.push = slow
from arr_coc.cli import main
sys.exit(main())
"""


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = find_port("127.0.0.1", None, range(8300, 8400))
    command = [sys.executable, "-c", SLOW, "serve", "--model", model, "--name", "tiny", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == f"The endpoint is at http://127.0.0.1:{port}/v1 (Ctrl-C ends it).\n"
            yield process, f"http://127.0.0.1:{port}/v1/chat/completions"
        finally:
            process.kill()


def test_signals_during_a_request(model: str) -> None:
    """The first signal lets the answer end; during the next one's answer a second signal ends the process at once."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What?"}], "stream": True, "max_tokens": 40}
    with serving(model) as (process, url), httpx.stream("POST", url, json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"' in rest[-2]
        assert process.wait(20) == 0
        assert process.stderr
        assert process.stderr.read() == "arr-coc: the endpoint is closed\n"


def test_a_second_interrupt_ends_at_once(model: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What?"}], "stream": True, "max_tokens": 1000}
    with serving(model) as (process, url), httpx.stream("POST", url, json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert time.monotonic() - start < 10
        assert process.stderr
        assert process.stderr.read() == "arr-coc: stopped without finishing what ran\n"
        with pytest.raises(httpx.TransportError):
            list(lines)
