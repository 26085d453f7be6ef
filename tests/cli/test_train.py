"""`arr-coc train`, as typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import arr_coc
from arr_coc.cli import main
from arr_coc.layer import ArrCocLayer
from arr_coc.training import layer as layer_training
from tests.cli.conftest import without_progress, write_model
from tests.training import squares


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return squares.draw(tmp_path_factory.mktemp("squares"), 4)


def train(data: Path, model: str, out: Path, *more: str) -> int:
    return main(["train", str(data), "--model", model, "-o", str(out), "--steps", "2", "--pictures", "2", *more])


def test_the_layer_works_in_ask(data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(data, model, tmp_path / "layer", "--validation", str(data)) == 0
    said = capsys.readouterr()
    assert "2 steps in 0.0 minutes, 4 pictures" in said.out
    assert "evidence recall on 4 validation pictures" in said.out
    assert "gaze 12.5%" in said.out
    assert said.err == ""
    asked = ["ask", str(data / "0.png"), "red?", "--model", model, "--layer", str(tmp_path / "layer"), "--tokens", "1"]
    assert main([*asked, "--budget", "12.5%"]) == 0
    assert arr_coc.load(model, layer=tmp_path / "layer").layer is not None


def test_stdout_is_json_only(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOG_EVERY", "VALIDATE_EVERY"):  # all lines of a run
        monkeypatch.setattr(layer_training, name, -1.0)
    assert train(data, model, tmp_path, "--json", "--validation", str(data), "--limit", "3") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["steps"], said["pictures"], said["kept_back"], said["finished"]) == (2, 3, 3, True)
    assert set(said["evidence_recall"]) == {"gaze 25%", "gaze 12.5%", "gaze 6.25%", "glance 50%", "glance 25%"}
    assert said["parameters"] == ArrCocLayer.from_pretrained(tmp_path).parameter_count


def test_fresh_starts_again_with_a_new_log(data: Path, model: str, tmp_path: Path) -> None:
    for _ in range(2):
        assert train(data, model, tmp_path, "--limit", "2") == 0
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    assert train(data, model, tmp_path, "--limit", "2", "--fresh", "--seed", "1", "--pooling", "max") == 0
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1
    assert ArrCocLayer.from_pretrained(tmp_path).config.pooling == "max"


def test_channels_can_be_left_out(data: Path, model: str, tmp_path: Path) -> None:
    assert train(data, model, tmp_path, "--limit", "2", "--without", "text", "x", "y") == 0
    assert not {"text", "x", "y"} & set(ArrCocLayer.from_pretrained(tmp_path).config.channels)


def test_lines_that_are_left_out_are_named(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(data, tmp_path / "data")
    with (other / "samples.jsonl").open("a") as file:
        file.write('{\n{"image": "no.png", "question": "?"}\n')
    assert train(other, model, tmp_path / "out", "--limit", "2") == 0
    said = capsys.readouterr().err
    assert "arr-coc: left out: data: samples.jsonl, line 17: this is not JSON" in said


@pytest.mark.parametrize("what", ["layers:1", "lora:2"])
def test_adapt_fine_tunes_the_model(
    what: str, data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--learn", "boxes", "answers", "--gate", "straight-through", "--limit", "2", "--validation", str(data))
    assert train(data, model, tmp_path, *more, "--adapt", what, "--adapt-steps", "2") == 0
    said = capsys.readouterr().out
    assert "fine-tuned for 2 steps; answer loss" in said
    assert f"fine-tuned model written to {tmp_path / 'model'}" in said
    adapted = arr_coc.load(tmp_path / "model")
    assert adapted.layer is not None
    assert len(adapted.ask(data / "0.png", "red?", budget=8, max_new_tokens=1).allocations[0].keep) == 8
    assert main(["ask", str(data / "0.png"), "red?", "--model", str(tmp_path / "model"), "--tokens", "1"]) == 0


def test_a_checkpoint_of_another_model_is_refused(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_model(tmp_path / "other", seed=1)
    assert train(data, other, tmp_path / "out", "--limit", "2") == 0
    capsys.readouterr()
    assert train(data, model, tmp_path / "out", "--limit", "2") == 2
    output = capsys.readouterr()
    assert "is of another model or shape: name another folder, or start again with --fresh" in output.err
    assert (output.out, without_progress(output.err).count("\n")) == ("", 1)
