"""`arr-coc bench gpu`: its stages run, and its report is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from arr_coc.bench import gpu
from arr_coc.bench.gpu import GOALS, GpuReport, StageTime, check_goals, stage_bars
from arr_coc.bench.timing import Timing
from arr_coc.cli import main
from arr_coc.cli.bench import gpu_record


@pytest.fixture
def report() -> GpuReport:
    stages = (
        StageTime("full40, graph", Timing((0.4, 0.3, 0.5), 1000), None, 10**9, 4e12),
        StageTime("pyramid, 5 levels", Timing((0.2, 0.2)), Timing((2.0, 3.0)), 0, 4e12),
    )
    return GpuReport(1024, 1, 4e12, stages, 112_000_000)


def test_goals_and_record(report: GpuReport) -> None:
    goals = check_goals(report, [("full40 without encoder", "full40, graph", 0.5), *GOALS])
    found = {goal.what: goal.reached for goal in goals}
    assert found["full40 without encoder"] is True
    assert found["pyramid, 5 levels, 40 channels"] is False
    assert found["273 positions x 40 channels, trilinear"] is None
    made = gpu_record(report, goals)
    assert made["stages"][0]["share_of_copy"] == pytest.approx(10**9 / 0.4e-3 / 4e12, abs=1e-4)
    assert made["stages"][1]["reference_ms"] == 2.5


@pytest.mark.parametrize("crops", [False, True])
def test_the_table_compares_every_stage_with_torch_and_crops(
    crops: bool, report: GpuReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from arr_coc.texture import kernels

    baseline = StageTime("baseline: 273 crops through the encoder", Timing((8.0, 8.0)), None, 0, 4e12)
    stages = (*report.stages, baseline) if crops else report.stages
    measured = GpuReport(1024, 1, 4e12, stages, report.texture_bytes)
    monkeypatch.setattr(gpu, "check_cuda", lambda: None)
    monkeypatch.setattr(kernels, "reason", lambda device: None)
    monkeypatch.setattr(gpu, "measure", lambda *sizes, **options: measured)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["bench", "gpu"]) == 0
    printed = capsys.readouterr().out
    assert "12.5 x" in printed  # the pyramid against torch
    assert ("20.0 x" in printed) == crops  # the texture against crops
    assert "2,500 images/s" in printed
    assert "pyramid, 5 levels, 40 channels: 0.2 (goal 0.12, not reached)" in printed


def test_bars_are_drawn(report: GpuReport) -> None:
    colours = {colour for _, colour in stage_bars(report).getcolors(1 << 20) or []}
    assert {(0, 128, 128), (200, 200, 200)} <= colours


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny sizes: the interpreter is slow."""
    pytest.importorskip("triton")
    from arr_coc.texture.channels import clusters
    from arr_coc.texture.kernels import connected_components, superpixels, using

    for module in (superpixels, connected_components, clusters):
        monkeypatch.setattr(module, "ROUNDS", 1, raising=False)
        monkeypatch.setattr(module, "SEGMENTS", 4)
        monkeypatch.setattr(module, "WORK_SIDE", 8, raising=False)
    for name, value in (("GRID", (8, 8)), ("LEVELS", 1), ("POINTS", 5)):
        monkeypatch.setattr(gpu, name, value)
    with using("triton"):
        yield


@pytest.mark.skipif(torch.cuda.is_available(), reason="the command itself runs there")
@pytest.mark.usefixtures("by_triton")
def test_every_stage_runs() -> None:
    names = []
    for stage in gpu.GpuBench(16, 1, torch.float32, device="cpu").stages():
        names.append(stage.name)
        stage.work()
        stage.run_reference()
    assert names == [
        "pointwise channels", "distance", "saliency", "superpixels", "regions", "pyramid, 1 levels", "5 samples, trilinear",
        "8 x 8 cells", "16 planes warped", "full40, launched",
    ]  # fmt: skip
