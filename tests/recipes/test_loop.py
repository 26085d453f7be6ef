"""The whole pipeline in small: rendering, training, resuming, measuring, writing the folder."""

import os
import random
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.reader import folder
from arr_coc.reader.model import TINY, build
from arr_coc.training.documents.page import FontSet
from recipes.reader.checkpoint import Run
from recipes.reader.loop import train
from recipes.reader.losses import losses
from recipes.reader.recipe import TINY_STEP_KINDS
from recipes.reader.settings import Settings, rate
from recipes.reader.source import Library, TrainingBatches
from recipes.reader.trainer import Trainer
from recipes.reader.validation import rendered_sheets

SETTINGS = Settings(
    seconds=600,
    schedule_seconds=120,
    lr=5e-3,
    warmup_steps=5,
    steps=30,
    reserve=2,
    workers=0,
    device="cpu",
    compiled=False,
)


def loss(trainer: Trainer, library: Library) -> float:
    torch.manual_seed(0)
    found = losses(
        trainer.forward, trainer.run.head, TrainingBatches(library, TINY_STEP_KINDS, 0).make(random.Random(0), 0)
    )
    return (found.answer + found.cell).item()


def test_loss_goes_down_and_the_run_can_go_on(fonts: FontSet, tmp_path: Path):
    library = Library(fonts)
    trainer = Trainer(SETTINGS, TINY)
    before = loss(trainer, library)
    run = train(trainer, library, rendered_sheets(library, 1)[-1:], tmp_path, TINY_STEP_KINDS)
    assert run.step == 30
    assert loss(trainer, library) < before - 1
    again = Trainer(SETTINGS, TINY)
    again.run.load(tmp_path / "checkpoint.pt", "cpu")
    assert again.run.step == run.step
    assert again.run.seconds == pytest.approx(run.seconds)
    torch.testing.assert_close(again.run.model.state_dict(), run.model.state_dict())
    assert Qwen2VLForConditionalGeneration.from_pretrained(tmp_path / "reader").dtype == torch.float16
    assert "measured" in (tmp_path / "log.jsonl").read_text()
    assert run.images == 30 * 6


@pytest.mark.parametrize("request_", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_is_told_to_stop_keeps_what_it_learned(fonts: FontSet, tmp_path: Path, request_: signal.Signals):
    library = Library(fonts)
    trainer = Trainer(replace(SETTINGS, steps=None), TINY)
    before = signal.getsignal(request_)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), request_))
    timer.start()
    run = train(trainer, library, rendered_sheets(library, 1)[-1:], tmp_path, TINY_STEP_KINDS)
    timer.join()
    assert run.step > 0
    assert run.seconds < 100
    assert (tmp_path / "checkpoint.pt").is_file()
    assert (tmp_path / "reader" / "model.safetensors").is_file()
    assert signal.getsignal(request_) is before


def test_a_call_without_a_limit_trains_to_the_end_of_the_schedule(
    fonts: FontSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    library, settings = Library(fonts), replace(SETTINGS, seconds=None, schedule_seconds=1.5, steps=None)
    run = train(Trainer(settings, TINY), library, rendered_sheets(library, 1)[-1:], tmp_path, TINY_STEP_KINDS)
    assert 1.5 <= run.seconds < 10
    assert "measured" in (tmp_path / "log.jsonl").read_text()
    steps, weights = run.step, (tmp_path / "checkpoint.pt").read_bytes()
    again = train(Trainer(settings, TINY), library, [], tmp_path, TINY_STEP_KINDS)
    assert again.step == steps
    assert "has ended already" in capsys.readouterr().out
    assert (tmp_path / "checkpoint.pt").read_bytes() == weights


def test_weights_are_written_while_training_runs(fonts: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = []
    monkeypatch.setattr(Run, "save", lambda run, path: kept.append(run.step))
    library = Library(fonts)
    train(Trainer(replace(SETTINGS, steps=3, save_every=0), TINY), library, [], tmp_path, TINY_STEP_KINDS)
    assert kept == [1, 2, 3]


def test_the_learning_rate_rises_then_falls():
    rates = [rate(SETTINGS, step, progress) for step, progress in ((0, 0.0), (5, 0.0), (50, 0.5), (99, 1.0))]
    assert rates[0] < rates[1] == pytest.approx(SETTINGS.lr)
    assert rates[1] > rates[2] > rates[3] == pytest.approx(SETTINGS.lr * SETTINGS.last_lr)


def test_the_mix_may_start_later_than_the_learning_rate():
    later = replace(SETTINGS, mix_from=0.4)
    assert [round(later.mixed(progress), 3) for progress in (0.0, 0.5, 1.0)] == [0.4, 0.7, 1.0]


def test_weights_of_another_shape_are_refused(tmp_path: Path):
    weights = folder.write(build(replace(TINY, depth=1)), tmp_path)
    with pytest.raises(ValueError, match=r"trained shape.*layers\.1"):
        Trainer(SETTINGS, TINY, weights)
    started = Trainer(SETTINGS, replace(TINY, depth=1), weights).run.model
    assert started.lm_head.weight is started.model.language_model.embed_tokens.weight
