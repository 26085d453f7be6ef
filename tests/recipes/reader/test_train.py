"""Training the reader: resuming, stopping, validation, and two processes that end with the same weights."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Qwen2VLForConditionalGeneration

from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import World
from arr_coc.training.documents.page import FontSet
from arr_coc.training.journal import Journal
from recipes.reader import folder, recipe
from recipes.reader import train as train_module
from recipes.reader.data import Library, TrainingBatches, make_loader
from recipes.reader.losses import compute_losses
from recipes.reader.model import TINY, build
from recipes.reader.recipe import TINY_STEP_KINDS, Settings
from recipes.reader.train import ReaderTrainer, Run, train
from recipes.reader.validation import rendered_sheets
from tests.recipes.reader import ranks

STEPS = 4
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


def loss(trainer: ReaderTrainer, library: Library) -> float:
    torch.manual_seed(0)
    found = compute_losses(
        trainer.forward, trainer.run.head, TrainingBatches(library, TINY_STEP_KINDS, 0).make(random.Random(0), 0)
    )
    return (found.answer + found.cell).item()


def test_the_loss_falls_and_the_checkpoint_has_everything(fonts: FontSet, tmp_path: Path):
    library = Library(fonts)
    trainer = ReaderTrainer(SETTINGS, TINY)
    before = loss(trainer, library)
    run = train(trainer, library, rendered_sheets(library, 1)[-1:], tmp_path, TINY_STEP_KINDS)
    assert run.step == 30
    assert loss(trainer, library) < before - 1
    again = ReaderTrainer(SETTINGS, TINY)
    again.run.load(tmp_path / "checkpoint.pt", "cpu")
    assert again.run.step == run.step
    assert again.run.seconds == pytest.approx(run.seconds)
    torch.testing.assert_close(again.run.model.state_dict(), run.model.state_dict())
    assert Qwen2VLForConditionalGeneration.from_pretrained(tmp_path / "reader").dtype == torch.float16
    assert "measured" in (tmp_path / "log.jsonl").read_text()
    assert run.images == 30 * 6


def test_with_a_frozen_encoder_only_the_language_model_learns(fonts: FontSet, tmp_path: Path) -> None:
    settings = replace(SETTINGS, steps=3, encoder=False, bfloat16=True)
    trainer = ReaderTrainer(settings, TINY)
    before = {name: value.clone() for name, value in trainer.run.model.state_dict().items()}
    train(trainer, Library(fonts), [], tmp_path, TINY_STEP_KINDS)
    changed = {name for name, value in trainer.run.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert not any(".visual." in name for name in changed)


@pytest.mark.parametrize("request_", [signal.SIGTERM, signal.SIGINT])
def test_a_call_that_is_stopped_saves_its_state(fonts: FontSet, tmp_path: Path, request_: signal.Signals):
    library = Library(fonts)
    trainer = ReaderTrainer(replace(SETTINGS, steps=None), TINY)
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
    run = train(ReaderTrainer(settings, TINY), library, rendered_sheets(library, 1)[-1:], tmp_path, TINY_STEP_KINDS)
    assert 1.5 <= run.seconds < 10
    assert "measured" in (tmp_path / "log.jsonl").read_text()
    steps, weights = run.step, (tmp_path / "checkpoint.pt").read_bytes()
    again = train(ReaderTrainer(settings, TINY), library, [], tmp_path, TINY_STEP_KINDS)
    assert again.step == steps
    assert "has ended already" in capsys.readouterr().out
    assert (tmp_path / "checkpoint.pt").read_bytes() == weights


def test_checkpoints_are_written_during_training(fonts: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept = []
    monkeypatch.setattr(Run, "save", lambda run, path: kept.append(run.step))
    library = Library(fonts)
    train(ReaderTrainer(replace(SETTINGS, steps=3, save_every=0), TINY), library, [], tmp_path, TINY_STEP_KINDS)
    assert kept == [1, 2, 3]


@pytest.mark.parametrize("lines", [True, False])
def test_curves_and_validation_are_logged_and_printed(
    fonts: FontSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: bool
):
    report = {"receipts: total": {"exact": 0.9, "similarity": 0.97, "count": 39}}
    monkeypatch.setattr(train_module, "validate", lambda *_: (report, [("total?", "9.00", "9.60")]))
    monkeypatch.setattr(recipe, "LOG_EVERY", 0)
    settings = replace(SETTINGS, steps=2)
    with Journal(tmp_path, events=True, lines=lines) as journal:
        train(ReaderTrainer(settings, TINY), Library(fonts), [], tmp_path, TINY_STEP_KINDS, journal)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {
        "loss/answer",
        "loss/cell",
        "loss/colour",
        "training/cell accuracy",
        "training/learning rate",
        "training/images per second",
        "training/fresh share",
        "exact/receipts: total",
        "similarity/receipts: total",
    }
    *entries, measured = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    for name, tag in (("answer_loss", "loss/answer"), ("learning_rate", "training/learning rate")):
        assert [(one.step, one.value) for one in found.Scalars(tag)] == [
            (entry["step"], pytest.approx(entry[name])) for entry in entries
        ]
    assert [entry["step"] for entry in entries] == [1, 2]
    assert found.Scalars("exact/receipts: total")[0].value == pytest.approx(0.9)
    assert (measured["step"], measured["measured"]) == (2, report)
    printed = capsys.readouterr().out
    assert (f"minutes {entries[0]['minutes']}  step 1  answer_loss" in printed) == lines
    assert re.search(r"receipts: total +exact 0\.900  similarity 0\.970  of 39", printed)
    assert "'total?': expected '9.00', got '9.60'" in printed


def test_weights_of_another_shape_are_refused(tmp_path: Path):
    weights = folder.write(build(replace(TINY, depth=1)), tmp_path)
    with pytest.raises(ValueError, match=r"trained shape.*layers\.1"):
        ReaderTrainer(SETTINGS, TINY, weights)
    started = ReaderTrainer(SETTINGS, replace(TINY, depth=1), weights).run.model
    assert started.lm_head.weight is started.model.language_model.embed_tokens.weight


@contextmanager
def started(out: Path, *steps: str) -> Iterator[subprocess.Popen[str]]:
    """Two ranks of `ranks.py` under torchrun; ended with the block if they have not ended before."""
    path = os.pathsep.join(sys.path)  # the package and, for the recipes, the repository's root
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*command, ranks.__file__, str(out), *steps],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended_with(out: Path) -> list[dict[str, Any]]:
    return [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("run")
    with started(out, str(STEPS)) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return out, said


def test_both_ranks_end_with_the_same_weights_and_one_prints(finished: tuple[Path, str]) -> None:
    out, said = finished
    first, second = ended_with(out)
    for part in ("model", "head"):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)
    assert first["counts"] == second["counts"]
    assert first["counts"][0] == STEPS
    assert said.count("training for") == said.count("wrote ") == 1


def test_two_ranks_equal_one_process_with_both_batches(finished: tuple[Path, str]) -> None:
    alone = ReaderTrainer(ranks.SETTINGS, TINY)
    library, images, streams, noise = ranks.library(), 0, [], []
    for rank in range(2):  # a rank's random state after its trainer and its loader were made
        ReaderTrainer(ranks.SETTINGS, TINY, world=World(rank, 2))
        streams.append(iter(make_loader(TrainingBatches(library, TINY_STEP_KINDS, seed=0, rank=rank), 0, pin=False)))
        noise.append(torch.get_rng_state())
    for _ in range(STEPS):
        gradients = []
        for rank in range(2):
            batch = next(streams[rank])
            torch.set_rng_state(noise[rank])
            alone.backward(batch)
            noise[rank], images = torch.get_rng_state(), images + len(batch.images)
            gradients.append([parameter.grad for parameter in alone.weights])
        for parameter, one, other in zip(alone.weights, *gradients, strict=True):
            parameter.grad = (one + other) / 2
        alone.update(0.0)
        alone.run.step += 1
    together = ended_with(finished[0])[0]
    assert together["counts"][2] == images
    torch.testing.assert_close(together["model"], alone.run.model.state_dict(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together["head"], alone.run.head.state_dict(), rtol=1e-5, atol=1e-6)
    untrained = ReaderTrainer(ranks.SETTINGS, TINY).run.head.state_dict()
    assert (together["head"]["out.weight"] - untrained["out.weight"]).abs().max() > 5e-3


@pytest.mark.parametrize("request_", [signal.SIGTERM, signal.SIGINT])
def test_two_processes_resume_and_stop_at_a_signal(
    finished: tuple[Path, str], tmp_path: Path, request_: signal.Signals
) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    with started(out) as process:
        assert process.stdout
        heard = ""
        while "measured in" not in heard:
            heard = process.stdout.readline()
            assert heard, "it ended without a signal"
        process.send_signal(request_)
        said = process.stdout.read()
        process.wait(60)
    first, second = ended_with(out)
    assert first["counts"] == second["counts"], said
    assert first["counts"][0] > STEPS
    torch.testing.assert_close(first["model"], second["model"], rtol=0, atol=0)
    again = ReaderTrainer(ranks.SETTINGS, TINY)
    again.run.load(out / "checkpoint.pt", "cpu")
    assert again.run.step == first["counts"][0]
    torch.testing.assert_close(again.run.model.state_dict(), first["model"])


def test_ranks_at_different_steps_do_not_train(tmp_path: Path) -> None:
    class Elsewhere(World):
        def sync(self, decision: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
            return list(decision), [1.0 for _ in counts]  # another rank is at a different step

    trainer = ReaderTrainer(ranks.SETTINGS, TINY, world=Elsewhere())
    with pytest.raises(ArrCocError, match=r"must all see .*checkpoint\.pt"):
        train(trainer, ranks.library(), [], tmp_path, TINY_STEP_KINDS)
