"""`arr-coc bench` reports everything it runs; no test looks at how long anything took."""

from __future__ import annotations

import json
import sys

import pytest

import arr_coc
from arr_coc.cli import main


@pytest.fixture
def no_memory_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the fresh processes that measure memory: `tests/bench/test_timing.py` runs one."""
    monkeypatch.setattr("arr_coc.bench.timing.peak_megabytes", lambda side, dtype: 1.0)


@pytest.mark.usefixtures("no_memory_probe")
def test_texture_as_json_and_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "texture", "--sizes", "64", "--rounds", "1"]
    assert main([*options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {row["what"]: row for row in printed["sizes"][0]["rows"]}
    assert rows["full40"]["ours"]["median_ms"] > 0
    assert rows["full40"]["times_faster"] > 0
    assert rows["text"]["obvious"] is None
    assert printed["machine"]
    assert printed["date"]
    assert main(options) == 0
    table = capsys.readouterr().out
    assert "64 x 64 px on cpu" in table
    assert "peak memory, all channels and their one-block tensor, float16: 1 MB" in table


@pytest.mark.usefixtures("no_memory_probe")
def test_texture_alone_needs_no_scikit_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "arr_coc.bench.skimage_baseline", raising=False)
    monkeypatch.delattr("arr_coc.bench.skimage_baseline", raising=False)
    monkeypatch.setitem(sys.modules, "skimage", None)
    assert main(["bench", "texture", "--sizes", "32", "--rounds", "1", "--alone", "--json"]) == 0
    assert all(row["obvious"] is None for row in json.loads(capsys.readouterr().out)["sizes"][0]["rows"])
    assert main(["bench", "texture", "--sizes", "32", "--rounds", "1"]) == 2
    assert "pip install scikit-image" in capsys.readouterr().err


def test_ask_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["bench", "ask", "--side", "4", "--rounds", "1", "--tokens", "2"]
    assert main([*options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = [setting["setting"] for setting in printed["settings"]]
    assert names[0] == "stock"
    assert "glance 25%, gaze 12.5%" in names
    assert printed["settings"][0]["times_faster"]["first"] == 1.0
    assert main(options) == 0
    assert "of the stock prefill" in capsys.readouterr().out


def test_realize_as_json_and_as_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = arr_coc.pictures.receipt().resize((168, 280))
    monkeypatch.setattr("arr_coc.pictures.receipt", lambda: small)
    options = ["bench", "realize", "--rounds", "1", "--tokens", "1", "--side", "8"]
    assert main([*options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = {"texture", "realize", "allocator, first question", "allocator, second question", "ask, dense"}
    expected |= {f"ask, {name}" for name in ("default", "glance 50%", "glance 25%", "glance all")}
    assert expected <= set(printed["ms"])
    assert all(one["is"] > 0 and one["goal"] and isinstance(one["reached"], bool) for one in printed["goals"])
    assert main(options) == 0
    assert "times faster than dense, glance 50%" in capsys.readouterr().out
