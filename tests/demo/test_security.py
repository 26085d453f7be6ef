"""Requests for another host are refused, responses have security headers, and messages name no folder of the host."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from arr_coc.demo.security import HEADERS, SecurityMiddleware, hide_paths, is_allowed_host


@pytest.mark.parametrize(
    ("header", "host", "allowed"),
    [
        ("127.0.0.1:7860", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("[::1]:7860", "::1", True),
        ("evil.example:7860", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("evil.example@127.0.0.1", "127.0.0.1", False),
        ("192.168.0.9", "127.0.0.1", False),  # a server for this machine has local names only
        ("", "127.0.0.1", False),
        ("localhost:x", "127.0.0.1", False),
        ("192.168.0.9:7860", "0.0.0.0", True),
        ("evil.example", "0.0.0.0", False),
        ("reader.example:80", "reader.example", True),
        ("abc.gradio.live", "127.0.0.1", False),
    ],
)
def test_the_host_header(header: str, host: str, allowed: bool) -> None:
    assert is_allowed_host(header, host) == allowed


def test_a_tunnel_is_allowed_only_if_it_is_shared() -> None:
    assert is_allowed_host("abc.gradio.live", "127.0.0.1", share=True)


def respond(hosts: list[bytes], kind: str = "http") -> list[Any]:
    """The messages that the middleware sends for a request; the application answers 200."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"SAMEORIGIN")]})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "headers": [(b"host", host) for host in hosts]}
    asyncio.run(SecurityMiddleware(application, "127.0.0.1")(scope, None, send))  # type: ignore[arg-type]
    return sent


def test_responses_have_the_headers_once() -> None:
    (start,) = respond([b"localhost"])
    names = [name for name, _ in start["headers"]]
    assert sorted(names) == sorted(name.encode() for name in HEADERS)
    assert (b"x-frame-options", b"SAMEORIGIN") in start["headers"]


@pytest.mark.parametrize("hosts", [[b"evil.example"], [], [b"localhost", b"evil.example"]])
def test_a_request_for_another_host_does_not_reach_the_page(hosts: list[bytes]) -> None:
    start, body = respond(hosts)
    assert start["status"] == 421
    assert b"another name" in body["body"]
    assert respond(hosts, "websocket")[0]["type"] == "websocket.close"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no folder '/srv/a b/runs/none'", "there is no folder 'none'"),
        ("cannot read /home/ann/x.bin: denied", "cannot read x.bin: denied"),
        (r"cannot read 'C:\Users\ann\x.bin'", "cannot read 'x.bin'"),
        ("expected 3/4 or a 1/2 share of receipts/a.png", "expected 3/4 or a 1/2 share of receipts/a.png"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("failed (/usr/lib/python3/site.py, line 3)", "failed (site.py, line 3)"),
    ],
)
def test_folders_of_the_host_are_hidden(text: str, shown: str) -> None:
    assert hide_paths(text) == shown
