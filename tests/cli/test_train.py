"""`arr-coc train`, as typed."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import arr_coc
from arr_coc.cli import main
from arr_coc.layer import ArrCocLayer, universal
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


@pytest.fixture
def universal_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small universal layer with random weights in place of the one that ships."""
    torch.manual_seed(0)
    folder = tmp_path / "universal"
    universal.UniversalLayer(universal.universal_config(width=16, heads=2, seeing=1, asking=1)).save_pretrained(folder)
    monkeypatch.setattr(universal, "WEIGHTS", folder)
    return folder


def train_drawn(model: str, out: Path, *more: str) -> int:
    return main(["train", "--model", model, "-o", str(out), "--drawn", "2", "--pictures", "2", *more])


def test_without_data_it_learns_from_drawings(
    model: str, tmp_path: Path, universal_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert train_drawn(model, out, "--steps", "2", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["pictures"], said["kept_back"], said["drawn"], said["finished"]) == (2, 1, 2, True)
    layer = ArrCocLayer.from_pretrained(out)
    source = universal.UniversalLayer.from_pretrained(universal_weights)
    assert 0 < said["taken_over"] < said["parameters"] == layer.parameter_count
    assert layer.config.channels == source.config.channels
    questions = [
        {json.loads(line)["question"] for line in (out / "drawn" / part / "samples.jsonl").read_text().splitlines()}
        for part in ("training", "validation")
    ]
    assert not questions[0] & questions[1]
    card = (out / "README.md").read_text()
    assert "2 drawn documents and scenes (seed 0, no annotation)" in card
    assert f"{said['taken_over']:,} of its parameters started from another layer" in card
    assert "| gaze 12.5% |" in card
    picture = str(next((out / "drawn" / "training").glob("*.png")))
    assert main(["ask", picture, "Total?", "--model", model, "--layer", str(out), "--tokens", "1"]) == 0


def test_a_stopped_run_on_drawings_ends_like_one_that_was_not(
    model: str, tmp_path: Path, universal_weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train_drawn(model, whole, "--steps", "3") == 0
    step = layer_training.LayerTrainer.step

    def stop_after_one(self: layer_training.LayerTrainer, progress: float) -> int:
        if self.counts.step == 1:
            signal.raise_signal(signal.SIGTERM)
        return step(self, progress)

    monkeypatch.setattr(layer_training.LayerTrainer, "step", stop_after_one)
    assert train_drawn(model, parts, "--steps", "3") == 130
    monkeypatch.setattr(layer_training.LayerTrainer, "step", step)
    before = {path: path.stat().st_mtime_ns for path in (parts / "drawn").rglob("*.png")}
    assert train_drawn(model, parts, "--steps", "3") == 0
    assert before == {path: path.stat().st_mtime_ns for path in (parts / "drawn").rglob("*.png")}  # not drawn again
    first, second = (ArrCocLayer.from_pretrained(folder).state_dict() for folder in (whole, parts))
    assert all(torch.equal(values, second[name]) for name, values in first.items())


def test_drawings_are_added_to_a_folder(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, model, tmp_path, "--drawn", "1", "--scenes", "1", "--start", "none", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["pictures"] + said["kept_back"], said["taken_over"]) == (4 + 2, 0)
    assert "scene: " in (tmp_path / "drawn" / "training" / "samples.jsonl").read_text()


def test_a_layer_can_start_from_another_one(data: Path, model: str, tmp_path: Path) -> None:
    assert train(data, model, tmp_path / "first", "--without", "text") == 0
    assert train(data, model, tmp_path / "second", "--start", str(tmp_path / "first")) == 0
    first, second = (ArrCocLayer.from_pretrained(tmp_path / name) for name in ("first", "second"))
    assert first.config == second.config


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--drawn", "0"), "expected folders with data, or --drawn from 1 on, got none and --drawn 0"),
        (("--scenes", "2"), "expected a share of scenes from 0 to 1, got 2"),
        (("--scenes", "nan"), "expected a share of scenes from 0 to 1, got nan"),
        (("--fonts", "/no/where"), "expected a folder with .ttf fonts, found none in /no/where"),
        (("--start", "/no/where"), "'/no/where' holds no learned layer"),
    ],
)
def test_bad_options_for_drawings(
    more: tuple[str, ...], sentence: str, tmp_path: Path, universal_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--model", "/not/read", "-o", str(tmp_path / "out"), *more]) == 2
    output = capsys.readouterr()
    assert sentence in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()
