"""Latency and memory of `arr-coc demo` under load.

python benchmarks/page_load.py [--requests 200] [--clients 8]

Starts the server and asks about the bundled receipt. Then several clients upload images of their own and ask about them
at the same time. Every answer is checked, so that an answer about another client's image is noticed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from arr_coc.demo.server import find_port, import_gradio
from arr_coc.errors import ArrCocError

SETTINGS = {"question": "What is the total amount?", "dense": False}
ALERT = "role='alert'"


def draw_receipt(number: int) -> tuple[Image.Image, str]:
    """A small receipt that only one client has, and its total."""
    total = f"{11 + 7 * number}.{10 + 9 * number % 90:02d}"
    paper = Image.new("RGB", (420, 420), (244, 243, 240))
    pen = ImageDraw.Draw(paper)
    for line, (words, amount) in enumerate((("TEA", "1.20"), ("BREAD", "3.10"), ("TOTAL", total))):
        for x, text in ((40, words), (270, amount)):
            pen.text((x, 60 + 110 * line), text, fill=(30, 30, 34), font=ImageFont.load_default(40))
    return paper, total


class PageClient:
    """A client with a session of its own."""

    def __init__(self, address: str) -> None:
        import_gradio()
        from gradio_client import Client

        self.client = Client(address, verbose=False, analytics_enabled=False)
        api = self.client.view_api(return_format="dict", print_info=False)
        self.endpoints: dict[str, Any] = api["named_endpoints"]

    def call(self, tab: str, **settings: Any) -> str:
        """Everything that a tab shows, as one text, errors included."""
        names = {one["parameter_name"] for one in self.endpoints[f"/{tab}"]["parameters"]}
        wanted = {name: value for name, value in (SETTINGS | settings).items() if name in names}
        found = self.client.predict(**wanted, api_name=f"/{tab}")
        return " ".join(str(part) for part in found)

    def close(self) -> None:
        """End the session, as closing the browser's tab does."""
        self.client.close()

    def send(self, image: Image.Image, folder: Path, name: str) -> None:
        from gradio_client import handle_file

        path = folder / f"{name}.png"
        image.save(path)
        self.client.predict(handle_file(path), api_name="/send")


def memory(process: int) -> float:
    """Resident megabytes of a process."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ArrCocError("expected VmRSS under /proc, which only Linux has")


def run_client(number: int, requests: int, address: str, folder: Path, done: list[float], wrong: list[str]) -> None:
    """The requests of one client. Each answer is checked against its own image."""
    client = PageClient(address)
    image, total = draw_receipt(number)
    client.send(image, folder, str(number))
    for turn in range(requests):
        start = time.monotonic()
        tab = ("ask", "ask", "channels", "knowing")[turn % 4]
        shown = client.call(tab, image="", glance="25%" if turn % 4 else "all")
        done.append(time.monotonic() - start)
        if ALERT in shown or (tab == "ask" and total not in shown):
            wrong.append(f"client {number}, request {turn} ({tab}): expected {total}, got {shown[:300]}")


def load(address: str, process: int, clients: int, requests: int) -> dict[str, Any]:
    """All clients at the same time; records the server's memory meanwhile."""
    done: list[float] = []
    wrong: list[str] = []
    rss: list[tuple[int, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            rss.append((len(done), memory(process)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(clients) as pool:
            each = [requests // clients + (number < requests % clients) for number in range(clients)]
            jobs = [pool.submit(run_client, n, each[n], address, Path(folder), done, wrong) for n in range(clients)]
            for job in jobs:
                job.result()
    finally:
        over.set()
        watcher.join()
    seconds = time.monotonic() - start
    return {
        "clients": clients, "requests": requests, "answered": len(done), "wrong": wrong[:5], "seconds": round(seconds, 1),
        "median_s": round(statistics.median(done), 2), "slowest_s": round(max(done), 2),
        "memory_mb": {f"{share:.0%}": round(_at(rss, share * requests)) for share in (0.125, 0.25, 0.5, 0.75, 1.0)},
    }  # fmt: skip


def _at(rss: Sequence[tuple[int, float]], count: float) -> float:
    """The memory when `count` requests were answered."""
    return [megabytes for done, megabytes in rss if done <= count][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    arguments = parser.parse_args()
    port = find_port("127.0.0.1", None)
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "arr_coc.cli", "demo", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ.copy(),
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            line = io.TextIOWrapper(process.stdout).readline()
            if "The page is at" not in line:
                raise ArrCocError("the page did not start: run arr-coc demo to see why")
            found: dict[str, Any] = {"page_s": round(time.monotonic() - start, 1)}
            client = PageClient(f"http://127.0.0.1:{port}/")
            asked = time.monotonic()
            assert "37.40" in client.call("ask")
            found["first_answer_after_start_s"] = round(found["page_s"] + time.monotonic() - asked, 1)
            warm = {
                "What is the total amount?": "37.40",
                "What is the date?": "12/03/2026",
                "How much is the Oat croissant?": "3.45",
            }
            times = []
            for question, answer in list(warm.items()) * 3:
                asked = time.monotonic()
                assert answer in client.call("ask", question=question)
                times.append(time.monotonic() - asked)
            found["warm_question_s"] = {"median": round(statistics.median(times), 2), "slowest": round(max(times), 2)}
            found |= load(f"http://127.0.0.1:{port}/", process.pid, arguments.clients, arguments.requests)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    print(json.dumps(found, indent=1))
    if found["wrong"] or found["answered"] != arguments.requests:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
