"""Serve the page on a port. Everything is local; uploaded files are in a folder that is deleted at the end.

The end is the end of the `with` block: a signal that asks the process to end (SIGTERM, SIGHUP) ends it like Ctrl-C. What a killed
process leaves is removed by the next page: a process holds a lock in its folder, and the system releases it with the process.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from arr_coc import hosting
from arr_coc.demo.app import AppState
from arr_coc.demo.security import SecurityMiddleware
from arr_coc.errors import ArrCocError

try:
    import fcntl
except ImportError:  # pragma: no cover - not a Unix: no lock there
    fcntl = None  # type: ignore[assignment]

PORTS = range(7860, 7880)  # tried in order where none is given
FOLDER, LOCK = "arr-coc-demo-", "lock"
END_SECONDS = 30  # that a running answer may take when the page ends
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one
    share: bool = False  # also through gradio's public tunnel
    names: tuple[str, ...] = ()  # under which a proxy forwards requests to it
    embedders: tuple[str, ...] = ()  # addresses whose pages may show it in a frame


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
    """The given port, or the first free one of the page's."""
    return hosting.find_port(host, port, PORTS)


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Inside the `with`, SIGTERM and SIGHUP raise `KeyboardInterrupt` as Ctrl-C does; while it ends, all three wait.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. Only the main thread can do this: others change nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        for one in previous:
            signal.signal(one, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
        raise KeyboardInterrupt

    previous = {one: signal.getsignal(one) for one in SIGNALS if signal.getsignal(one) != signal.SIG_IGN}
    for one in previous:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one, handler in previous.items():
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def upload_folder() -> Iterator[Path]:
    """A folder for uploaded files, removed at the end, and with it those of pages whose process was killed."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name, ExitStack() as stack:
        folder = Path(name)
        if fcntl is not None:
            lock = stack.enter_context((folder / f"{LOCK}.new").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / f"{LOCK}.new").rename(folder / LOCK)  # visible only when it is locked
        uploads = folder / "uploads"
        uploads.mkdir()
        yield uploads


def _remove_abandoned(place: Path) -> None:
    """Remove this user's upload folders whose lock no process holds. Others, and what cannot be removed, stay."""
    if fcntl is None:
        return
    for folder in place.glob(f"{FOLDER}*"):
        with suppress(OSError):  # another process removes it, or still holds the lock
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def serve(app: AppState, address: Address) -> Iterator[str]:
    """Run the page in the background and yield its URL. At the end everything is removed."""
    port = find_port(address.host, address.port)
    with end_by_signal(), upload_folder() as uploads:
        os.environ["GRADIO_TEMP_DIR"] = str(uploads)  # gradio's upload folder; it reads this when it is imported
        gradio = import_gradio()
        from starlette.middleware import Middleware

        from arr_coc.demo.page.events import build_page

        page, events = build_page(app, uploads)
        resources = files("arr_coc.demo.page")
        scripts = "\n".join(resources.joinpath(name).read_text(encoding="utf-8") for name in ("page.js", "viewer.js"))
        theme = gradio.themes.Default(  # system fonts: the page loads nothing from other servers
            primary_hue="teal",
            neutral_hue="slate",
            font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
            font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
        )
        security = {name: getattr(address, name) for name in ("host", "share", "names", "embedders")}
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
                head=f"<script>{scripts}</script>",
                footer_links=[],
                ssr_mode=False,
                run_history=False,
                enable_monitoring=False,
                pwa=False,
                mcp_server=False,
                state_session_capacity=app.limits.visitors,
                allowed_paths=[],
                app_kwargs={"middleware": [Middleware(SecurityMiddleware, **security)]},
            )
        except OSError as error:
            raise ArrCocError(f"cannot serve the page: {error.strerror or error}") from None
        try:
            yield public or local
        finally:
            page.close(verbose=False)
            events.wait(END_SECONDS)
