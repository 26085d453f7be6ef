"""`arr-coc bench gpu`: its stages do what they say, and without a GPU it says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from arr_coc.bench.bars import stage_bars
from arr_coc.bench.events import Timed
from arr_coc.bench.gpu import Measured, Report, goals
from arr_coc.cli import main
from arr_coc.cli.bench_gpu import record


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu"]) == 2
    said = capsys.readouterr().err
    assert "expected a CUDA device to measure, and torch sees none" in said


@pytest.mark.parametrize("wrong", [["--size", "8"], ["--batch", "0"], ["--repeats", "1"]])
def test_what_cannot_be_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", *wrong]) == 2
    assert f"expected {wrong[0]} of at least" in capsys.readouterr().err


@pytest.fixture
def report() -> Report:
    stages = (
        Measured("full40, graph", Timed((0.4, 0.3, 0.5), 1000), None, 10**9, 4e12),
        Measured("pyramid, 5 levels", Timed((0.2, 0.2)), Timed((2.0, 3.0)), 0, 4e12),
    )
    return Report(1024, 1, 4e12, stages, 112_000_000)


def test_goals_stand_beside_what_was_measured(report: Report) -> None:
    found = {goal.what: goal.reached for goal in goals(report)}
    assert found["full40 without encoder and text engine"] is True
    assert found["pyramid, 5 levels, 40 channels"] is False
    assert found["another question on the same image"] is None
    made = record(report, goals(report))
    assert made["stages"][0]["share_of_copy"] == pytest.approx(10**9 / 0.4e-3 / 4e12, abs=1e-4)
    assert made["stages"][1]["reference_ms"] == 2.5


def test_the_table_sets_every_stage_beside_torch_and_crops(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from arr_coc.bench import events, gpu
    from arr_coc.texture import kernels

    crops = Measured("baseline: 273 crops through the encoder", Timed((8.0, 8.0)), None, 0, 4e12)
    measured = Report(1024, 1, 4e12, (*report.stages, crops), report.texture_bytes)
    monkeypatch.setattr(events, "check_cuda", lambda: None)
    monkeypatch.setattr(kernels, "reason", lambda device: None)
    monkeypatch.setattr(gpu, "measure", lambda *sizes, **options: measured)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["bench", "gpu"]) == 0
    said = capsys.readouterr().out
    assert "12.5 x" in said  # the pyramid against torch
    assert "20.0 x" in said  # the whole against crops
    assert "2,500 images/s" in said
    assert "pyramid, 5 levels, 40 channels: 0.2 (goal 0.12, not reached)" in said


def test_bars_are_drawn(report: Report) -> None:
    picture = stage_bars(report)
    colours = {colour for _, colour in picture.getcolors(1 << 20) or []}
    assert {(0, 128, 128), (200, 200, 200)} <= colours


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from arr_coc.texture import slic
    from arr_coc.texture.kernels import connecting, superpixels, using

    for module in (superpixels, connecting, slic):
        monkeypatch.setattr(module, "ROUNDS", 1, raising=False)
        monkeypatch.setattr(module, "SEGMENTS", 4)
        monkeypatch.setattr(module, "WORK_SIDE", 8, raising=False)
    with using("triton"):
        yield


@pytest.mark.skipif(torch.cuda.is_available(), reason="the command itself runs there")
@pytest.mark.usefixtures("by_triton")
def test_every_stage_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from arr_coc.bench import gpu_stages

    for name, value in (("GRID", (8, 8)), ("KEPT", 4), ("LEVELS", 1), ("CROPS", 5)):
        monkeypatch.setattr(gpu_stages, name, value)
    bench = gpu_stages.Bench(16, 1, torch.float32, encoder=False, device="cpu")
    names = []
    for stage in bench.stages():
        names.append(stage.name)
        stage.work()
        if stage.reference is not None:
            stage.reference()
    assert "superpixels" in names
    assert "full40, graph" in names
