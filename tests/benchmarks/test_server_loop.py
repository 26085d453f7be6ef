"""The loop of different requests: on a small model, every way answers every request, and the recorded one as the plain one."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_pictures_and_questions_are_all_different(tmp_path: Path) -> None:
    found = server_loop.write_requests(tmp_path, 8, (80, 128))
    assert len({one.question for one in found}) == 8
    assert len({one.path.read_bytes() for one in found}) == 8
    assert {one.side for one in found} == {80, 128}
