"""`arr-coc train`, as typed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.cli import main
from arr_coc.layer import ArrCocLayer
from arr_coc.training import layer as layer_training
from recipes.reader import folder as folders
from recipes.reader.model import TINY, build
from tests.training import squares


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    return str(folders.write(build(TINY), tmp_path_factory.mktemp("model"), torch.float32))


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


def test_ctrl_c_keeps_the_layer_and_the_same_command_resumes(
    data: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = layer_training.box_losses

    def interrupted(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(*given)

    assert train(data, model, tmp_path / "through") == 0
    monkeypatch.setattr(layer_training, "box_losses", interrupted)
    assert train(data, model, tmp_path / "parts") == 130
    assert "interrupted: the state is kept, and the same command resumes" in capsys.readouterr().out
    assert ArrCocLayer.from_pretrained(tmp_path / "parts")
    monkeypatch.setattr(layer_training, "box_losses", real)
    assert train(data, model, tmp_path / "parts") == 0
    through, parts = (ArrCocLayer.from_pretrained(tmp_path / name).state_dict() for name in ("through", "parts"))
    assert all(torch.equal(parts[name], weights) for name, weights in through.items())


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


BAD = [
    (["--learn", "hearsay"], "expected to learn from boxes, attention, answers, got hearsay"),
    (["--gate", "garden"], "expected a gate among log-gate, straight-through, gumbel, got 'garden'"),
    (["--pooling", "median"], "expected --pooling as one of learned, max, mean, sum, got 'median'"),
    (["--without", "smell"], "expected some channels among edges, .* to leave out, got smell"),
    (["--steps", "0"], "expected steps from 1 on, got 0"),
    (["--pictures", "-1"], "expected pictures from 1 on, got -1"),
    (["--minutes", "0"], "expected a learning rate and minutes above 0"),
    (["--lr", "nan"], "expected a learning rate and minutes above 0"),
    (["--lr", "inf"], "expected a learning rate and minutes above 0"),
    (["--workers", "-1"], "expected --workers from 0 on, got -1"),
    (["--limit", "0"], "expected --limit from 1 on, got 0"),
    (["--dtype", "int8"], "expected --dtype as one of float32, bfloat16, float16, got 'int8'"),
    (["--adapt", "heads:2", "--learn", "answers"], r"expected to adapt layers:N .*, got 'heads:2'"),
    (["--adapt", "lora:8"], "expected --adapt with answers as a source, .* --learn answers"),
    (["--adapt", "lora:8", "--learn", "answers", "--adapt-steps", "0"], "expected steps of adapting from 1 on, got 0"),
    (["--device", "toaster"], "toaster"),
    (["--model", "/no/where"], "expected a model folder or a hub id, got '/no/where'"),
    (["--validation", "/no/where"], "expected a folder with pictures and samples.jsonl, got '/no/where'"),
]


@pytest.mark.parametrize(("wrong", "said"), BAD, ids=[" ".join(wrong) for wrong, _ in BAD])
def test_bad_input_is_one_sentence(
    wrong: list[str], said: str, data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, model, tmp_path / "out", *wrong) == 2
    _one_sentence(capsys, said)
    assert not (tmp_path / "out").exists()


def test_bad_folders_are_one_sentence(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "nowhere", model, tmp_path / "out") == 2
    _one_sentence(capsys, "expected a folder with pictures and samples.jsonl, got .*nowhere")
    (tmp_path / "empty").mkdir()
    assert train(tmp_path / "empty", model, tmp_path / "out") == 2
    _one_sentence(capsys, "samples.jsonl")
    assert train(data, model, data / "samples.jsonl") == 2
    _one_sentence(capsys, "is a file, expected a folder to write into")
    bare = squares.draw(tmp_path / "bare", 2, evidence=None)
    assert train(bare, model, tmp_path / "out") == 2
    _one_sentence(capsys, "expected questions with evidence boxes in 'bare', found none that can be learned from")
    assert train(data, model, tmp_path / "out", "--validation", str(bare)) == 2
    _one_sentence(capsys, "expected questions with evidence boxes in .*bare', found none to validate on")
    mute = squares.draw(tmp_path / "mute", 2, answer="")
    assert train(mute, model, tmp_path / "out", "--learn", "answers") == 2
    _one_sentence(capsys, "expected questions with answers in 'mute', found none")


def test_a_checkpoint_of_another_model_is_refused(
    data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    other = folders.write(build(TINY), tmp_path / "other", torch.float32)
    assert train(data, str(other), tmp_path / "out", "--limit", "2") == 0
    capsys.readouterr()
    assert train(data, model, tmp_path / "out", "--limit", "2") == 2
    _one_sentence(capsys, "is of another model or shape: name another folder, or start again with --fresh")
    asked = ["ask", str(data / "0.png"), "red?", "--model", model, "--layer", str(tmp_path / "out")]
    assert main(asked) == 2
    _one_sentence(capsys, "this layer was trained for qwen2_vl-.*, and the model is qwen2_vl-")


def _one_sentence(capsys: pytest.CaptureFixture[str], said: str) -> None:
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("arr-coc: ")
    assert re.search(said, lines[0]), lines[0]
