"""The command `arr-coc eval`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arr_coc.cli import main
from tests.adapters.tiny_vlm import picture
from tests.evaluation.conftest import lines, write


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = write(tmp_path / "data", lines(["0.png", "1.png"]))
    for number in range(2):
        picture(112, 112, seed=number).save(place / f"{number}.png")
    return place


def run_eval(data: Path, model: str, *more: str) -> int:
    return main(["eval", str(data), "--model", model, "--tokens", "2", "--seeds", "1", "--budgets", "25%", *more])


def test_a_table_a_file_and_a_page(data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--json", str(tmp_path / "o.json"), "--report", str(tmp_path / "page"), "--plot", str(tmp_path / "p.svg")]
    assert run_eval(data, model, "--selectors", "all", "uniform", *more) == 0
    said = capsys.readouterr()
    assert "4 questions about 2 pictures" in said.out
    assert "| uniform | 25% |" in said.out
    assert said.err == ""
    assert [r["selector"] for r in json.loads((tmp_path / "o.json").read_text())["records"]] == ["all", "uniform"]
    assert (tmp_path / "page" / "index.html").is_file()
    assert (tmp_path / "p.svg").is_file()


def test_invalid_lines_are_reported_and_set_the_exit_code(
    data: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = lines(["1.png"])[0] | {"evidence": [[[0, 0, 500, 20]]]}
    write(data, [lines(["0.png"])[0], "{", {"image": "no.png", "question": "?"}, wide])
    assert run_eval(data, model, "--selectors", "uniform") == 1
    said = capsys.readouterr()
    assert "2 questions about 2 pictures" in said.out
    assert "left out: samples.jsonl, line 2" in said.err
    assert "left out: samples.jsonl, line 3: there is no picture 'no.png'" in said.err
    assert "note: samples.jsonl, line 4" in said.err


def test_many_invalid_lines_are_shortened(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(data, [*lines(["0.png"]), *["{"] * 50])
    assert run_eval(data, model, "--selectors", "uniform", "--json", str(tmp_path / "o.json")) == 1
    said = capsys.readouterr().err
    assert said.count("left out: ") == 21
    assert "30 more like these" in said
    assert len(json.loads((tmp_path / "o.json").read_text())["problems"]) == 50


def test_a_selector_from_the_working_folder(
    data: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_choice.py").write_text(
        "def first(selection):\n    return selection.candidates[: selection.count]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run_eval(data, model, "--selectors", "own_choice:first", "--limit", "1") == 0
    assert "| first | 25% |" in capsys.readouterr().out


def test_commas_split_selectors_and_budgets(data: Path, model: str, tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    more = ["--selectors", "all,uniform", "ink,", "--budgets", "25%,8", "--limit", "1", "--json", str(out)]
    assert run_eval(data, model, *more) == 0
    rows = [(r["selector"], r["budget"]) for r in json.loads(out.read_text())["records"]]
    assert rows == [("all", "all"), *((name, budget) for budget in ("25%", "8") for name in ("uniform", "ink"))]


def test_a_glance_at_budget_all_runs_every_selector_that_can_glance(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.json"
    more = ["--selectors", "uniform", "ink", "divprune", "--glance", "25%", "--budgets", "all", "--json", str(out)]
    assert run_eval(data, model, *more) == 0
    written = json.loads(out.read_text())
    assert [r["selector"] for r in written["records"]] == ["all", "uniform", "ink"]
    note = "budget all: left out because they cannot glance (select before encoding): divprune"
    assert f"note: {note}" in capsys.readouterr().err
    assert note in written["notes"]


def test_robustness(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o.json"
    asked = ["eval", "--suite", "robustness", "--model", model, "--selectors", "uniform", "--kinds", "void", "border"]
    assert main([*asked, "--json", str(out)]) == 0
    assert "| uniform | 25% |" in capsys.readouterr().out
    assert json.loads(out.read_text())["records"][0]["passed"]["void"] == [True, True, True]
    assert main([*asked, "--report", str(tmp_path / "page")]) == 0
    assert '<table class="matrix">' in (tmp_path / "page" / "index.html").read_text()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["eval", "--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    for words in ("samples.jsonl", "examples:", "--suite robustness", "module:name", "12.5%"):
        assert words in said
    assert "%%" not in said
