"""`arr-coc serve` as a process: signals during a request."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[str]
    url: str

    def ask(self, tokens: int) -> AbstractContextManager[httpx.Response]:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "What?"}],
            "stream": True,
            "max_tokens": tokens,
        }
        return httpx.stream("POST", f"{self.url}/chat/completions", json=body, timeout=60)

    def end(self) -> tuple[int, str]:
        """The exit code and the last line of stderr; other packages may write there when they are imported."""
        assert self.process.stderr
        code, written = self.process.wait(20), self.process.stderr.read()
        assert "Traceback" not in written
        return code, written.splitlines()[-1]


@pytest.fixture(scope="module")
def two(model: str) -> Iterator[list[Served]]:
    """Two processes, which start at the same time."""
    with ExitStack() as stack:
        served = []
        for ports in (range(8300, 8350), range(8350, 8400)):
            port = find_port("127.0.0.1", None, ports)
            command = [sys.executable, "-c", SLOW, "serve", "--model", model, "--name", "tiny", "--port", str(port)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            served.append(Served(process, f"http://127.0.0.1:{port}/v1"))
        for one in served:
            assert one.process.stdout
            assert one.process.stdout.readline() == f"The endpoint is at {one.url} (Ctrl-C ends it).\n"
        yield served


def test_a_signal_lets_the_answer_end(two: list[Served]) -> None:
    with two[0].ask(tokens=30) as response:
        lines = response.iter_lines()
        next(lines)
        two[0].process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"' in rest[-2]
    assert two[0].end() == (0, "arr-coc: the endpoint is closed")


def test_a_second_interrupt_ends_at_once(two: list[Served]) -> None:
    with two[1].ask(tokens=1000) as response:
        lines = response.iter_lines()
        next(lines)
        two[1].process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert two[1].process.poll() is None
        two[1].process.send_signal(signal.SIGINT)
        assert two[1].end() == (130, "arr-coc: stopped without finishing what ran")
        with pytest.raises(httpx.TransportError):
            list(lines)
