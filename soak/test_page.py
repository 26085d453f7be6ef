"""The page under load: 8 clients with 200 requests each, then mixed requests for an hour with flat memory.

SOAK_MINUTES sets the length of the second part.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arr_coc.demo.server import find_port
from page_load import PageClient, draw_receipt, load, memory
from soak.conftest import ROOT, write_figures

CLIENTS, REQUESTS = 8, 200
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
GROWTH = 1.15  # most that memory may grow between the second quarter of the hour and its end
QUESTIONS = ("What is the total amount?", "What is the date?", "Is there a cat?", "Wie hoch ist die Summe?", "合計は?")


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[str, int]]:
    """The address of a running page, and its process."""
    port = find_port("127.0.0.1", None)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "arr_coc.cli", "demo", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout
        assert "The page is at" in io.TextIOWrapper(process.stdout).readline()
        yield f"http://127.0.0.1:{port}/", process.pid
        process.terminate()
        assert process.wait(30) == 0


def test_every_request_of_many_clients_is_answered_right(page: tuple[str, int]) -> None:
    found = load(*page, CLIENTS, CLIENTS * REQUESTS)
    write_figures("page_load", found)
    assert found["answered"] == CLIENTS * REQUESTS
    assert found["wrong"] == []


def test_memory_stays_flat_for_an_hour_of_mixed_requests(page: tuple[str, int], tmp_path: Path) -> None:
    address, process = page
    draw, end = random.Random(0), time.monotonic() + 60 * MINUTES
    megabytes: list[float] = []
    seconds: list[float] = []
    client = PageClient(address)
    for number in itertools.count():
        if time.monotonic() > end:
            break
        if number % 25 == 0:  # a visitor comes with an image of their own
            client = PageClient(address)
            client.send(
                draw_receipt(number % 12)[0].resize((draw.randrange(80, 900), draw.randrange(80, 900))), tmp_path, "x"
            )
        tab, settings = draw.choice(_requests(draw))
        start = time.monotonic()
        assert client.call(tab, **settings)
        seconds.append(time.monotonic() - start)
        megabytes.append(memory(process))
    quarter = len(megabytes) // 4
    early, late = (statistics.median(part) for part in (megabytes[quarter : 2 * quarter], megabytes[-quarter:]))
    write_figures(
        "page_hour",
        {
            "minutes": MINUTES, "requests": len(seconds), "median_s": round(statistics.median(seconds), 2),
            "slowest_s": round(max(seconds), 2), "memory_mb": {"second quarter": round(early), "last quarter": round(late)},
        },
    )  # fmt: skip
    assert late < GROWTH * early


def _requests(draw: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """One request of each kind; some of them are refused by the page, which counts as an answer."""
    image = draw.choice(["", "receipt", "scene", "nothing of that name"])
    return [
        ("ask", {"image": image, "question": draw.choice(QUESTIONS), "dense": False}),
        ("ask", {"image": image, "question": "x" * draw.randrange(0, 3000), "dense": False}),
        ("knowing", {"image": image, "question": draw.choice(QUESTIONS)}),
        ("channels", {"image": image, "channel": draw.choice(["edges", "saliency", "text"])}),
    ]
