"""What prevents the page from being served is one sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from arr_coc.demo.app import AppState
from arr_coc.demo.server import FOLDER, LOCK, Address, end_by_signal, find_port, import_gradio, serve, upload_folder
from arr_coc.errors import ArrCocError


def test_a_port_must_be_free_and_possible() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ArrCocError, match="cannot listen on 127"):
            find_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ArrCocError, match="from 1 to 65535"):
        find_port("127.0.0.1", 70_000)


def test_an_unknown_host_raises(app: AppState) -> None:
    with pytest.raises(ArrCocError, match="cannot listen on nowhere"), serve(app, Address("nowhere.invalid", 7999)):
        pass


@pytest.mark.parametrize("port", [None, 7999])
def test_an_address_of_another_machine_is_not_called_a_taken_port(port: int | None) -> None:
    with pytest.raises(ArrCocError, match=r"cannot listen on 192\.0\.2\.7: this machine has no such address"):
        find_port("192.0.2.7", port)  # an address for documentation: no machine has it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_page_like_ctrl_c_and_a_second_one_waits(number: int) -> None:
    before = signal.getsignal(number)
    cleaned = []

    def serve_and_clean() -> None:
        with end_by_signal():
            try:
                os.kill(os.getpid(), number)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), number)  # while it cleans up
                time.sleep(0.05)
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        serve_and_clean()
    assert cleaned
    assert signal.getsignal(number) == before


def test_uploads_of_a_killed_page_are_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import time\nfrom arr_coc.demo.server import upload_folder\n"
        "with upload_folder() as folder:\n    (folder / 'face.png').write_bytes(b'x')\n    print(folder.parent, flush=True)\n"
        "    time.sleep(60)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}

    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment, text=True)
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    with start()[0] as living, start()[0] as dead:
        folders = sorted(tmp_path.iterdir())
        dead.kill()
        dead.wait()
        elsewhere, other = tmp_path / "elsewhere", tmp_path / f"{FOLDER}other"
        elsewhere.mkdir()
        (elsewhere / LOCK).touch()
        (tmp_path / f"{FOLDER}link").symlink_to(elsewhere)
        other.mkdir()  # without a lock: of an older version, or just being made
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with upload_folder() as uploads:
            left = [folder for folder in folders if folder.exists()]
            assert len(left) == 1
            assert (left[0] / "uploads" / "face.png").exists()
            assert other.exists()
            assert (elsewhere / LOCK).exists()
        assert not uploads.parent.exists()
        living.kill()


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with end_by_signal():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_missing_gradio_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ArrCocError, match="pip install 'arr-coc"):
        import_gradio()
