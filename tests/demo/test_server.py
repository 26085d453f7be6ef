"""What prevents the page from being served is one sentence."""

from __future__ import annotations

import socket
import sys

import pytest

from arr_coc.demo.app import AppState
from arr_coc.demo.server import Address, find_port, import_gradio, serve
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


def test_a_missing_gradio_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ArrCocError, match="pip install 'arr-coc"):
        import_gradio()
