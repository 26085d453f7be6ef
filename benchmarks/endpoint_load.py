"""Answers a second and memory of `arr-coc serve` under load: nothing may be lost.

python benchmarks/endpoint_load.py [--clients 8] [--requests 200] [--batch 8]

Starts the endpoint. Each client sends that many requests through the openai client, about a receipt of its own, so that an
answer about another client's receipt is noticed. Every fourth request is streamed. Before every tenth one the client opens a
stream in addition and leaves it. The server's memory is recorded meanwhile.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from arr_coc.errors import ArrCocError
from arr_coc.hosting import find_port
from page_load import draw_receipt, memory

QUESTION = "What is the total amount?"
OPTIONS = {"arr_coc": {"budget": "25%", "glance": "50%"}}


class LoadClient:
    """One client with its own receipt."""

    def __init__(self, number: int, address: str) -> None:
        self.client = openai.OpenAI(base_url=address, api_key="none", timeout=300, max_retries=8)
        image, self.total = draw_receipt(number)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        parts = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": QUESTION}]
        self.asked: dict[str, Any] = {
            "model": "reader",
            "messages": [{"role": "user", "content": parts}],
            "extra_body": OPTIONS,
        }

    def ask(self, turn: int) -> str:
        if turn % 4 == 3:
            stream = self.client.chat.completions.create(**self.asked, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return self.client.chat.completions.create(**self.asked).choices[0].message.content or ""

    def leave(self) -> None:
        """Read the beginning of a stream and close the connection."""
        with self.client.chat.completions.create(**self.asked, stream=True) as stream:
            next(iter(stream))


def load(address: str, process: int, clients: int, requests: int) -> dict[str, Any]:
    """All clients at the same time."""
    done: list[float] = []
    wrong: list[str] = []
    rss: list[tuple[int, float]] = [(0, memory(process))]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            rss.append((len(done), memory(process)))

    def run(number: int) -> None:
        client = LoadClient(number, address)
        for turn in range(requests):
            if turn % 10 == 9:
                client.leave()
            start = time.monotonic()
            text = client.ask(turn)
            done.append(time.monotonic() - start)
            if text != client.total:
                wrong.append(f"client {number}, request {turn}: expected {client.total}, got {text[:80]!r}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    try:
        with ThreadPoolExecutor(clients) as pool:
            for job in [pool.submit(run, number) for number in range(clients)]:
                job.result()
    finally:
        over.set()
        watcher.join()
    seconds, count = time.monotonic() - start, clients * requests
    return {
        "clients": clients, "requests": count, "answered": len(done), "wrong": wrong[:5], "seconds": round(seconds, 1),
        "answers_per_s": round(count / seconds, 2), "median_s": round(statistics.median(done), 2), "slowest_s": round(max(done), 2),
        "memory_mb": {f"{share:.1%}": round(next(mb for number, mb in reversed(rss) if number <= share * count)) for share in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    port = find_port("127.0.0.1", None, range(8400, 8500))
    command = [sys.executable, "-m", "arr_coc.cli", "serve", "--port", str(port), "--batch", str(arguments.batch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ.copy(), text=True) as process:
        try:
            assert process.stdout
            if "The endpoint is at" not in process.stdout.readline():
                raise ArrCocError("the endpoint did not start: run arr-coc serve to see why")
            address = f"http://127.0.0.1:{port}"
            found = {"batch": arguments.batch} | load(
                f"{address}/v1", process.pid, arguments.clients, arguments.requests
            )
            shown = openai.DefaultHttpxClient().get(f"{address}/metrics").text
            counts = dict(line.rsplit(" ", 1) for line in shown.splitlines() if not line.startswith("#"))
            found["mean_batch"] = round(float(counts["arr_coc_batch_sum"]) / float(counts["arr_coc_batch_count"]), 2)
            found["cancelled"] = int(float(counts["arr_coc_cancelled_total"]))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    print(json.dumps(found, indent=1))
    if found["wrong"] or found["answered"] != found["requests"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
