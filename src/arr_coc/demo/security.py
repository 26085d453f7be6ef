"""What protects the page from other web sites: the Host header is checked, and every response has security headers."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
TUNNEL = ".gradio.live"  # public addresses of `--share`
# gradio writes its settings into the page as a script and compiles the events' JavaScript, so both are allowed; nothing
# may be loaded from, or sent to, another server, and no other page may show this one in a frame.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}


def security_headers(embedders: Sequence[str] = ()) -> dict[str, str]:
    """The headers of every response. `embedders`: addresses whose pages may show this one in a frame."""
    policy = POLICY | {"frame-ancestors": " ".join(embedders) or "'none'"}
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "permissions-policy": "camera=(), microphone=(), geolocation=()",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
    if embedders:  # this older header cannot name addresses
        del headers["x-frame-options"]
    return headers


HEADERS = security_headers()


def is_allowed_host(header: str, host: str, share: bool = False, names: Sequence[str] = ()) -> bool:
    """Whether a request's Host header names this server, which listens on `host`, and is also known by `names`.

    A web site whose name was changed to point to this machine (DNS rebinding) still sends its own name. A server for this
    machine only accepts its local names. Any other also accepts plain addresses, which need no name server, and the names
    of this machine.

    >>> is_allowed_host("localhost:7860", "127.0.0.1"), is_allowed_host("evil.example:7860", "127.0.0.1")
    (True, False)
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]/@\s]+))(?::\d{1,5})?", header)
    if not found:
        return False
    name = (found[1] or found[2]).lower().rstrip(".")
    if name in LOCAL_NAMES or name == host.lower() or name in names or (share and name.endswith(TUNNEL)):
        return True
    if host.lower() in LOCAL_NAMES:
        return False
    return _is_address(name) or name in (socket.gethostname().lower(), socket.getfqdn().lower())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class SecurityMiddleware:
    """Answers requests for another host with an error, and adds the security headers to all responses."""

    def __init__(
        self,
        app: Application,
        host: str,
        share: bool = False,
        names: Sequence[str] = (),
        embedders: Sequence[str] = (),
    ) -> None:
        self.app, self.host, self.share, self.names = app, host, share, names
        self.headers = security_headers(embedders)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                extra = [(name.encode(), value.encode()) for name, value in self.headers.items()]
                message["headers"] = [*message.get("headers", ()), *(one for one in extra if one[0] not in present)]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and is_allowed_host(hosts[0], self.host, self.share, self.names):
            await self.app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = b"This server has another name: open the address that arr-coc demo printed."
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
            await send_with_headers({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": text})


_PATH = re.compile(r"(?<![\w.:/\\])(?:/(?:[^/\s'\"<>|:*?\\]+/)+[^/\s'\"<>|:*?,;()\\]*|[A-Za-z]:\\[^\s'\"<>|*?,;()]+)")
_QUOTED_PATH = re.compile(r"(?<=')(?:/|[A-Za-z]:\\)[^'\n]*(?=')|(?<=\")(?:/|[A-Za-z]:\\)[^\"\n]*(?=\")")


def hide_paths(text: str) -> str:
    """A message without the host's folders: of each absolute path only the last part stays.

    >>> hide_paths("cannot read '/home/ann b/runs/a.json': [Errno 13] denied: /srv/x/y.bin, see https://a.b/c/d")
    "cannot read 'a.json': [Errno 13] denied: y.bin, see https://a.b/c/d"
    """

    def last_part(found: re.Match[str]) -> str:
        path = found[0]
        kind = PureWindowsPath if path[1:2] == ":" else PurePosixPath
        return kind(path.rstrip("/\\") or path).name or "a folder"

    return _PATH.sub(last_part, _QUOTED_PATH.sub(last_part, text))
