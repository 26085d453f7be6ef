"""The loop of different requests: on a small model, every way answers every request, and the recorded one as the plain one."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import server_loop
from arr_coc.texture.kernels import using


def test_every_way_answers_every_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "loop.jsonl"
    given = ["--tiny", "--pictures", "6", "--batches", "1", "2", "--warm", "1", "--models", "Qwen3-VL-8B"]
    with using("auto"):  # not the kernels, which are slow where they are interpreted
        server_loop.main([*given, "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len([one for one in records if one["batch"] == batch]) for batch in (1, 2)] == [5, 2]
    for one in records:
        assert one["same"]
        assert all(0 < one[way]["first"] <= one[way]["whole"] for way in server_loop.WAYS)
    assert records[-1]["used"] > 0
    capsys.readouterr()
    server_loop.main(["--table", str(out)])
    shown = capsys.readouterr().out
    assert shown.count("Qwen3-VL-8B") == 2 * len(server_loop.WAYS)
    assert "| stock |" in shown


def test_the_cases_of_the_goals_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "goals.jsonl"
    given = ["--tiny", "--quick", "--pictures", "9", "--warm", "1", "--seconds", "0", "--models", "Qwen2.5-VL-7B"]
    with using("auto"):
        server_loop.main([*given, "--out", str(out)])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["px"], one["batch"]) for one in records] == [
        (1024, 1),
        (2048, 1),
    ]  # one of each where time is up at once
    for one in records:
        assert one["same"]
        assert one["options"]["glance"] == pytest.approx(2 * one["options"]["budget"], abs=1)
        assert one["plain"]["choosing"] > 0
    shown = capsys.readouterr()
    assert shown.out.count("| recorded |") == 2
    assert "drawing 9 pictures" in shown.err


def test_stopped_early_there_is_a_table_of_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, by_stock = tmp_path / "loop.jsonl", server_loop.by_stock
    runs: list[int] = []

    def stopped(*given: Any) -> Any:
        runs.append(1)
        if len(runs) == 3:
            signal.raise_signal(signal.SIGTERM)
        return by_stock(*given)

    monkeypatch.setattr(server_loop, "by_stock", stopped)
    before = signal.getsignal(signal.SIGTERM)
    given = ["--tiny", "--pictures", "5", "--batches", "1", "--warm", "0", "--models", "Qwen2-VL-2B", "--out", str(out)]
    with using("auto"):
        server_loop.main(given)
    assert len(out.read_text().splitlines()) == 2
    shown = capsys.readouterr()
    assert "| Qwen2-VL-2B | mixed | 1 | 2 | stock |" in shown.out
    assert "stopped" in shown.err
    assert signal.getsignal(signal.SIGTERM) == before


def test_pictures_and_questions_are_all_different(tmp_path: Path) -> None:
    found = server_loop.write_requests(tmp_path, 8, (80, 128))
    assert len({one.question for one in found}) == 8
    assert len({one.path.read_bytes() for one in found}) == 8
    assert {one.side for one in found} == {80, 128}
