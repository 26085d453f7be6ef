"""Learning: it works, it stops and goes on, alone and in a team."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import ArrCocError, DataError, LayerError
from arr_coc.evaluation.data import read_samples
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.identity import config_for
from arr_coc.training import loop
from arr_coc.training.distributed import Team
from arr_coc.training.examples import Lesson, lessons
from arr_coc.training.finetune import Adaptation, accustom
from arr_coc.training.gates import METHODS
from arr_coc.training.journal import Journal
from arr_coc.training.loop import CHECKPOINT, Learned, Run, learn, standardise
from arr_coc.training.metrics import measured
from arr_coc.training.settings import Settings
from tests.training import squares

CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
QUICK = Settings(steps=80, lr=1e-2, warmup_steps=5, average=0.9)


def ran(vlm: Any, found: list[Lesson], out: Path, settings: Settings, back: list[Lesson] | None = None) -> Learned:
    config = config_for(vlm.adapter, **squares.SHAPE)
    return learn(vlm, config, found, back or [], out, settings, journal=Journal(out, lines=False))


def same(one: ArrCocLayer, other: ArrCocLayer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


def test_it_learns_where_the_answers_stand(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path / "seen", 10)
    unseen = lessons(
        vlm, read_samples(squares.draw(tmp_path / "unseen", 5, seed=9)), config_for(vlm.adapter, **squares.SHAPE)
    )
    before = squares.layer(vlm).eval()
    standardise(before, found)
    first, last = measured(before, found, CPU), ran(vlm, found, tmp_path / "out", QUICK, found)
    assert last.finished
    assert last.steps == 80
    assert max(first["gaze 6.25%"], first["gaze 12.5%"]) < 0.45
    assert last.found["gaze 6.25%"] > 0.9  # 4 of 64 cells, just as many as an answer has
    assert last.found["glance 25%"] > 0.9  # before the encoder has seen any
    other = measured(ArrCocLayer.from_pretrained(tmp_path / "out"), unseen, CPU)
    assert other["gaze 12.5%"] > 0.7  # and on pictures that it never saw


def test_going_on_ends_where_an_uninterrupted_call_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path / "data", 4, by_answer=True)
    settings = Settings(learn=("answers", "boxes"), gate="gumbel", steps=9, warmup_steps=2, pictures=2)
    through = ran(vlm, found, tmp_path / "through", settings)
    real = loop.model_losses

    def interrupted(*given: Any) -> Any:
        if stops.pop():
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    stops = [False] * 10 + [True] + [False] * 3
    monkeypatch.setattr(loop, "model_losses", interrupted)
    part = ran(vlm, found, tmp_path / "parts", settings)
    assert (part.steps, part.finished) == (4, False)
    assert ArrCocLayer.from_pretrained(tmp_path / "parts")  # what was learned is of use already
    rest = ran(vlm, found, tmp_path / "parts", settings)
    assert (rest.steps, rest.finished) == (9, True)
    assert same(rest.layer, through.layer)
    assert not same(part.layer, through.layer)
    again = ran(vlm, found, tmp_path / "parts", settings)  # nothing is left to do
    assert again.steps == 9
    assert same(again.layer, through.layer)


def test_what_is_not_gone_on_from(tmp_path: Path) -> None:
    vlm = squares.model()
    found, settings = squares.taught(vlm, tmp_path / "data", 2), replace(QUICK, steps=1)
    ran(vlm, found, tmp_path, settings)
    with pytest.raises(LayerError, match=r"has learned with another lr and seed: go on as before, .* --fresh"):
        ran(vlm, found, tmp_path, replace(settings, lr=1.0, seed=3))
    assert ran(vlm, found, tmp_path, replace(settings, steps=2)).steps == 2  # longer is fine
    other = config_for(vlm.adapter, **squares.SHAPE | {"width": 32})
    with pytest.raises(LayerError, match="is of another model or shape"):
        learn(vlm, other, found, [], tmp_path, settings, journal=Journal(tmp_path, lines=False))
    (tmp_path / CHECKPOINT).write_bytes(b"what is this")
    with pytest.raises(LayerError, match=r"cannot go on from .*: start anew with --fresh"):
        ran(vlm, found, tmp_path, settings)


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected lessons to learn from, got none"):
        ran(squares.model(), [], tmp_path, QUICK)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    run = Run(config_for(squares.model().adapter, **squares.SHAPE), QUICK, CPU)
    with torch.no_grad():
        run.layer.not_encoded[0] = torch.nan
    with pytest.raises(LayerError, match=r"learning went astray before step 0, .* lower learning rate"):
        run.save(tmp_path / CHECKPOINT, QUICK)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_never_right_teaches_nothing_by_its_attention(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path / "data", 2, by_box=False, by_answer=True)
    with pytest.raises(
        ArrCocError, match="nothing was learned in 2 steps from attention: the model gave no right answer"
    ):
        ran(vlm, found, tmp_path / "out", Settings(learn=("attention",), steps=2))
    assert not (tmp_path / "out" / "layer.safetensors").exists()


def test_the_clock_ends_a_schedule_and_counts_earlier_calls(tmp_path: Path) -> None:
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path / "data", 2)
    timed = replace(QUICK, steps=10**6, minutes=0.4 / 60, pictures=1)
    done = ran(vlm, found, tmp_path, timed)
    assert done.finished
    assert 0.4 <= done.seconds < 3
    again = ran(vlm, found, tmp_path, timed)
    assert again.steps == done.steps
    assert timed.progress(5, 0.2) == pytest.approx(0.5)
    assert timed.rate(10, 1.0) == pytest.approx(timed.lr * timed.last_lr)
    assert timed.rate(0, 0.0) == pytest.approx(timed.lr / timed.warmup_steps)


def test_the_log_and_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    for name in ("TELL_EVERY", "SAVE_EVERY", "MEASURE_EVERY"):
        monkeypatch.setattr(loop, name, -1.0)
    vlm = squares.model()
    found = squares.taught(vlm, tmp_path / "data", 2)
    config = config_for(vlm.adapter, **squares.SHAPE)
    with Journal(tmp_path, events=True) as journal:
        learn(vlm, config, found, found, tmp_path, replace(QUICK, steps=2), journal=journal)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2, 2]
    assert set(rows[0]) == {"step", "seconds", "ranking", "calibration"}
    assert set(rows[1]["recall"]) == {"gaze 25%", "gaze 12.5%", "gaze 6.25%", "glance 50%", "glance 25%"}
    assert rows[-1]["settings"]["steps"] == 2
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = EventAccumulator(str(tmp_path / "tensorboard"))
    told.Reload()
    assert {"loss/ranking", "loss/calibration", "evidence recall/gaze 12.5%"} <= set(told.Tags()["scalars"])
    assert "gaze 12.5%" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "llava_next", "idefics3"])
def test_every_family_learns_from_everything(family: str, tmp_path: Path) -> None:
    vlm = squares.model(family)
    found = squares.taught(vlm, tmp_path / "data", 2, by_answer=True)
    if family in ("llava_next", "idefics3"):
        assert len(found[0].views) > 1  # tiles and an overview
    settings = Settings(learn=("answers", "attention", "boxes"), steps=1)
    done = ran(vlm, found, tmp_path / "out", settings, found)
    assert done.steps == 1
    assert set(done.found) == {"gaze 25%", "gaze 12.5%", "gaze 6.25%", "glance 50%", "glance 25%"}
    assert squares.model(family).adapter.layer is None
    used = type(vlm)(vlm.model, vlm.processor, layer=tmp_path / "out")
    assert used.layer is not None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_a_model_in_bfloat16_teaches_in_both_phases(device: str, tmp_path: Path) -> None:
    vlm = squares.model()
    vlm.model.to(device, torch.bfloat16)
    found = squares.taught(vlm, tmp_path / "data", 2, by_answer=True)
    for gate in METHODS:
        settings = Settings(learn=("answers", "attention", "boxes"), gate=gate, steps=1)
        ran(vlm, found, tmp_path / gate, settings)
        done = ran(vlm, found, tmp_path / gate, replace(settings, steps=2), found)  # going on, too
        assert done.steps == 2
        assert all(bool(weights.isfinite().all()) for weights in done.layer.parameters())
    adapted = accustom(vlm, done.layer, found, found, Adaptation.of("layers:1", 1))
    assert set(adapted.losses) == {"before", "after"}
    assert vlm.model.dtype == torch.bfloat16
    image = found[0].image
    answer = type(vlm)(vlm.model, vlm.processor, layer=done.layer).ask(image, "red?", budget=8, max_new_tokens=1)
    assert len(answer.allocations[0].keep) == 8


class Pair(Team):
    """A team of two, seen by one of them whose partner has no gradients at all."""

    def average_gradients(self, parameters: Any) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= 2


def test_a_process_whose_batch_had_no_use_for_a_parameter_averages_it(tmp_path: Path) -> None:
    run = Run(config_for(squares.model().adapter, **squares.SHAPE), QUICK, CPU)
    run.layer.not_encoded.sum().backward()
    before = run.layer.from_tokens.weight.clone()
    run.update(1e-2, 0.9, Pair(0, 2))
    assert not torch.equal(run.layer.not_encoded, torch.zeros_like(run.layer.not_encoded))
    assert torch.allclose(run.layer.from_tokens.weight, before, atol=1e-3)


def test_two_processes_end_with_the_same_layer(tmp_path: Path) -> None:
    """Three pictures of two shapes: one process has two lessons, the other has one."""
    squares.draw(tmp_path / "data", 2)
    squares.draw(tmp_path / "other", 1, side=48)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("pair.py")
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    left, right = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert left["lessons"] == 2
    assert right["lessons"] == 1
    for name, weights in left["layer"].items():
        assert torch.equal(weights, right["layer"][name]), name
    rows = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert len(rows) == 1  # one of them writes
