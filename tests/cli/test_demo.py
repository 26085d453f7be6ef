"""`arr-coc demo`, as typed: what can be wrong is said before a model is loaded."""

from __future__ import annotations

import socket

import pytest

from arr_coc.cli import main


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--files", "/nowhere/at/all"], "expected a folder for --files"),
        (["--megapixels", "-3"], "the limit megapixels above 0"),
        (["--data", "/nowhere"], "expected a folder with samples.jsonl"),
        (["--port", "99999"], "a port from 1 to 65535"),
        (["--device", "moon"], "moon"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["demo", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
