"""Serve the page on a port. Everything is local; uploaded files are in a folder that is deleted at the end."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from arr_coc.demo.app import AppState
from arr_coc.errors import ArrCocError

PORTS = range(7860, 7880)  # tried in order where none is given


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one
    share: bool = False  # also through gradio's public tunnel


def import_gradio() -> Any:
    """Import gradio with its telemetry switched off, which must happen before the import."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import gradio
    except ImportError:
        raise ArrCocError("the page needs gradio, which is not installed: pip install 'arr-coc[demo]'") from None
    return gradio


def find_port(host: str, port: int | None) -> int:
    """The given port, or the first free one; raises where it is not free."""
    for number in PORTS if port is None else [port]:
        if port is not None and not 0 < port < 65536:
            raise ArrCocError(f"expected a port from 1 to 65535, got {port}")
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, number))
            return number
        except OSError as error:
            if port is not None:
                raise ArrCocError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    raise ArrCocError(f"cannot listen on {host}: ports {PORTS[0]} to {PORTS[-1]} are all in use: give one with --port")


@contextmanager
def serve(app: AppState, address: Address) -> Iterator[str]:
    """Run the page in the background and yield its URL. At the end everything is removed."""
    port = find_port(address.host, address.port)
    with tempfile.TemporaryDirectory(prefix="arr-coc-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # gradio's upload folder; it reads this when it is imported
        gradio = import_gradio()
        from arr_coc.demo.page.events import build_page

        page, _ = build_page(app, Path(folder))
        resources = files("arr_coc.demo.page")
        script = resources.joinpath("page.js").read_text(encoding="utf-8")
        theme = gradio.themes.Default(  # system fonts: the page loads nothing from other servers
            primary_hue="teal",
            neutral_hue="slate",
            font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
            font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
        )
        try:
            _, local, public = page.launch(
                server_name=address.host,
                server_port=port,
                share=address.share,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=int(app.limits.megabytes * 1e6),
                theme=theme,
                css=resources.joinpath("style.css").read_text(encoding="utf-8"),
                head=f"<script>{script}</script>",
                footer_links=[],
                ssr_mode=False,
                run_history=False,
                enable_monitoring=False,
                pwa=False,
                mcp_server=False,
                state_session_capacity=app.limits.visitors,
                allowed_paths=[],
            )
        except OSError as error:
            raise ArrCocError(f"cannot serve the page: {error.strerror or error}") from None
        try:
            yield public or local
        finally:
            page.close(verbose=False)
