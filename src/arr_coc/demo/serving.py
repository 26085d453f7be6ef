"""The page on a port: everything local, nothing measured, files in a folder that goes when the page does."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from arr_coc.demo.examples import Example
from arr_coc.demo.limits import Limits
from arr_coc.demo.visit import House
from arr_coc.errors import ArrCocError

PORTS = range(7860, 7880)  # tried in order where none is named


@dataclass(frozen=True)
class Place:
    """Where the page is to be found."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one
    share: bool = False  # through a tunnel that gradio's makers run


def gradio_module() -> Any:
    """gradio, or one sentence; told before it is imported to keep quiet and to keep to itself."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import gradio
    except ImportError:
        raise ArrCocError("the page needs gradio, which is not installed: pip install 'arr-coc[demo]'") from None
    return gradio


def free_port(host: str, port: int | None) -> int:
    """The port, or the first free one; one sentence where it is taken."""
    for number in PORTS if port is None else [port]:
        if port is not None and not 0 < port < 65536:
            raise ArrCocError(f"expected a port from 1 to 65535, got {port}")
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind((host, number))
            return number
        except OSError as error:
            reason = error.strerror or str(error)
            if port is not None:
                raise ArrCocError(f"cannot listen on {host} port {port}: {reason}") from None
    raise ArrCocError(f"cannot listen on {host}: ports {PORTS[0]} to {PORTS[-1]} are all taken: name one with --port")


@contextmanager
def served(house: House, place: Place) -> Iterator[str]:
    """The page, running; yields its address, and clears everything away at the end."""
    port = free_port(place.host, place.port)
    with tempfile.TemporaryDirectory(prefix="arr-coc-demo-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # where gradio puts what is uploaded; read when it is imported
        gradio = gradio_module()
        from arr_coc.demo.page.building import build

        page = build(house, Path(folder))
        own = files("arr_coc.demo.page")
        try:
            _, local, public = page.launch(
                server_name=place.host, server_port=port, share=place.share, quiet=True, prevent_thread_lock=True,
                inbrowser=False, show_error=False, max_file_size=int(house.limits.megabytes * 1e6),
                theme=_theme(gradio), css=own.joinpath("style.css").read_text(encoding="utf-8"),
                head=f"<script>{own.joinpath('page.js').read_text(encoding='utf-8')}</script>",
                footer_links=[], ssr_mode=False, run_history=False, enable_monitoring=False, pwa=False, mcp_server=False,
                state_session_capacity=house.limits.visitors, allowed_paths=[],
            )  # fmt: skip
        except OSError as error:
            raise ArrCocError(f"cannot show the page: {error.strerror or error}") from None
        try:
            yield public or local
        finally:
            page.close(verbose=False)


def _theme(gradio: Any) -> Any:
    """System fonts: a page that fetches nothing from elsewhere."""
    return gradio.themes.Default(
        primary_hue="teal", neutral_hue="slate", font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    )  # fmt: skip


def house_of(
    models: list[str], limits: Limits, root: Path, more: Mapping[str, Example] | None = None, device: str = "cpu",
    embeddings: str | None = None,
) -> House:  # fmt: skip
    """Everything that the page shares, loaded and warmed: the first question is not slower than the others.

    `more`: examples beside those that ship.
    """
    from arr_coc.demo import examples
    from arr_coc.demo.desks import Desks
    from arr_coc.demo.shelf import Shelf

    known = examples.bundled() | dict(more or {})
    shelf = Shelf(models, root, device, embeddings)
    for name in shelf.names:
        shelf.get(name).ask(known["scene"].load().resize((240, 160)), "?", max_new_tokens=1)
    return House(shelf, known, limits, root, Desks(limits))
