"""Serve the endpoint with uvicorn, until a signal; then finish what was accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from arr_coc.errors import ArrCocError
from arr_coc.serve.app import create_app
from arr_coc.serve.engine import Engine
from arr_coc.serve.settings import ServeSettings

PORTS = range(8000, 8020)  # tried in order where none is given
LAST_SECONDS = 5.0  # for responses to be sent after the grace period


class Server(uvicorn.Server):
    """uvicorn with a stop in steps: a signal ends the accepting, after the grace period the rest is refused.

    A second signal ends at once.
    """

    def __init__(
        self, engine: Engine, settings: ServeSettings, host: str, port: int, started: Callable[[], None] = lambda: None
    ) -> None:
        config = uvicorn.Config(
            create_app(engine, settings),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(settings.grace + LAST_SECONDS),
        )
        super().__init__(config)
        self._engine, self._grace, self._started = engine, settings.grace, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.drain()
        abort = asyncio.get_running_loop().call_later(self._grace, self._engine.abort)
        await super().shutdown(sockets)
        abort.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal once more at the end. After a graceful stop the exit code is 0.
        if self.should_exit:
            self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # tasks that are cancelled now are no news
        self.should_exit = True


def serve(engine: Engine, settings: ServeSettings, host: str, port: int) -> bool:
    """Serve until SIGINT or SIGTERM; False if a second signal cut it short."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="arr-coc: %(message)s")
    shown = f"[{host}]" if ":" in host else host

    def started() -> None:
        print(f"The endpoint is at http://{shown}:{port}/v1 (Ctrl-C ends it).", flush=True)

    server = Server(engine, settings, host, port, started)
    try:
        server.run()
    except SystemExit:  # uvicorn has logged why
        raise ArrCocError(f"cannot listen on {host} port {port}") from None
    if server.force_exit:
        engine.abort()
        engine.close(timeout=LAST_SECONDS)
    return not server.force_exit
