"""The page under load: 8 clients with 200 requests each, then mixed requests for an hour with flat memory.

SOAK_REQUESTS sets the requests of each client in the first part, SOAK_MINUTES the length of the second part, and SOAK_PAUSE the seconds
between two of its requests (0).
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from arr_coc.demo.server import find_port
from page_load import ALERT, PageClient, draw_receipt, load, memory
from soak.conftest import ROOT, write_figures

CLIENTS = 8
REQUESTS = int(os.environ.get("SOAK_REQUESTS", "200"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
PAUSE = float(os.environ.get("SOAK_PAUSE", "0"))
VISIT = 25  # requests of one visitor, who comes with an image of their own
GROWTH = 1.1  # most that memory may grow between the second quarter of the hour and its end
TOTAL = "What is the total amount?"
QUESTIONS = (TOTAL, "What is the date?", "Is there a cat?", "Wie hoch ist die Summe?", "合計は?")


@dataclass(frozen=True)
class Page:
    address: str
    process: int
    uploads: Path  # the server's folder of temporary files


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A running page. At its end it leaves no files."""
    port, uploads = find_port("127.0.0.1", None), tmp_path_factory.mktemp("uploads")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(uploads)}
    command = [sys.executable, "-m", "arr_coc.cli", "demo", "--port", str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        try:
            assert process.stdout
            assert "The page is at" in process.stdout.readline()
            yield Page(f"http://127.0.0.1:{port}/", process.pid, uploads)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not [path for path in uploads.rglob("*") if path.is_file()]


def test_every_request_of_many_clients_is_answered_right(page: Page) -> None:
    found = load(page.address, page.process, CLIENTS, CLIENTS * REQUESTS)
    write_figures("page_load", found)
    assert found["answered"] == CLIENTS * REQUESTS
    assert found["wrong"] == []


def test_memory_stays_flat_for_an_hour_of_mixed_requests(page: Page, tmp_path: Path) -> None:
    draw, end = random.Random(0), time.monotonic() + 60 * MINUTES
    seconds: list[float] = []
    megabytes: list[float] = []
    counts = {"answered": 0, "refused": 0}
    client: PageClient | None = None
    while time.monotonic() < end:
        if len(seconds) % VISIT == 0:
            if client:
                client.close()
            client = PageClient(page.address)
            size = draw.randrange(80, 900), draw.randrange(80, 900)
            client.send(draw_receipt(draw.randrange(12))[0].resize(size), tmp_path, "x")
        assert client
        tab, settings, expected = draw.choice(_requests(draw))
        start = time.monotonic()
        shown = client.call(tab, **settings)
        seconds.append(time.monotonic() - start)
        megabytes.append(memory(page.process))
        assert expected in shown, (tab, settings, shown[:500])
        assert (ALERT in shown) == (expected == ALERT), (tab, settings, shown[:500])
        counts["refused" if expected == ALERT else "answered"] += 1
        time.sleep(PAUSE)
    if client:
        client.close()
    quarter = len(megabytes) // 4
    parts = [statistics.median(megabytes[n * quarter : (n + 1) * quarter]) for n in range(4)]
    write_figures(
        "page_hour",
        {
            "minutes": MINUTES, "pause_s": PAUSE, "requests": len(seconds), **counts, "visitors": -(-len(seconds) // VISIT),
            "median_s": round(statistics.median(seconds), 2), "slowest_s": round(max(seconds), 2),
            "memory_mb": {
                "first request": round(megabytes[0]), "middle": round(megabytes[len(megabytes) // 2]),
                "last request": round(megabytes[-1]), "largest": round(max(megabytes)),
                "medians of quarters": [round(part) for part in parts],
            },
            "uploads_mb": round(sum(path.stat().st_size for path in page.uploads.rglob("*")) / 1e6, 1),
        },
    )  # fmt: skip
    assert parts[-1] < GROWTH * parts[1]


def _requests(draw: random.Random) -> list[tuple[str, dict[str, Any], str]]:
    """One request of each kind, and what its answer contains: a part of the text, or an alert where the page must refuse."""
    image = draw.choice(["", "receipt", "scene"])
    question = draw.choice(QUESTIONS)
    letters = draw.choice([0, 1001, draw.randrange(1001, 3000)])
    return [
        ("ask", {"image": image, "question": question}, "37.40" if (image, question) == ("receipt", TOTAL) else ""),
        ("ask", {"image": image, "question": question, "budget": "12.5%", "glance": "25%"}, ""),
        ("ask", {"image": image, "question": "x" * letters}, ALERT),
        ("ask", {"image": "no such image", "question": question}, ALERT),
        ("compare", {"image": image, "question": question}, ""),
        ("knowing", {"image": image, "question": question}, ""),
        ("channels", {"image": image, "channel": draw.choice(["edges", "saliency", "text"])}, ""),
    ]
