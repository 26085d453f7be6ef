"""Training a layer: it learns, it stops and resumes, on one process and on two."""

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
from arr_coc.layer import ArrCocLayer, universal
from arr_coc.layer.identity import config_for
from arr_coc.layer.universal import UniversalLayer
from arr_coc.training import layer as layer_training
from arr_coc.training.batches import LayerTrainingSettings
from arr_coc.training.distributed import World
from arr_coc.training.examples import LookCache, TrainingExample, load_examples
from arr_coc.training.finetune import FinetuneConfig, finetune
from arr_coc.training.gates import METHODS
from arr_coc.training.journal import Journal
from arr_coc.training.layer import (
    CHECKPOINT,
    LayerTrainer,
    LayerTrainingResult,
    fit_statistics,
    measure_recall,
    take_over,
    train_layer,
)
from tests.training import squares

CPU = torch.device("cpu")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
QUICK = LayerTrainingSettings(steps=80, lr=1e-2, warmup_steps=5, average=0.9)
MEASURES = {"gaze 25%", "gaze 12.5%", "gaze 6.25%", "glance 50%", "glance 25%"}


def train(
    vlm: Any, examples: list[TrainingExample], out: Path, settings: LayerTrainingSettings,
    validation: list[TrainingExample] | None = None,
) -> LayerTrainingResult:  # fmt: skip
    config = config_for(vlm.adapter, **squares.SHAPE)
    return train_layer(vlm, config, examples, validation or [], out, settings, journal=Journal(out, lines=False))


def same(one: ArrCocLayer, other: ArrCocLayer) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


def test_it_learns_where_the_answers_are(tmp_path: Path) -> None:
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path / "seen", 10)
    config = config_for(vlm.adapter, **squares.SHAPE)
    unseen = load_examples(vlm, read_samples(squares.draw(tmp_path / "unseen", 5, seed=9)), config)
    before = squares.layer(vlm).eval()
    fit_statistics(before, examples)
    first, last = measure_recall(before, examples, CPU), train(vlm, examples, tmp_path / "out", QUICK, examples)
    assert last.finished
    assert last.steps == 80
    assert max(first["gaze 6.25%"], first["gaze 12.5%"]) < 0.45
    assert last.recall["gaze 6.25%"] > 0.9  # 4 of 64 cells: exactly the size of an answer
    assert last.recall["glance 25%"] > 0.9  # without tokens
    other = measure_recall(ArrCocLayer.from_pretrained(tmp_path / "out"), unseen, CPU)
    assert other["gaze 12.5%"] > 0.7  # on pictures that were not in training


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path / "data", 4, by_answer=True)
    settings = LayerTrainingSettings(learn=("answers", "boxes"), gate="gumbel", steps=9, warmup_steps=2, pictures=2)
    through = train(vlm, examples, tmp_path / "through", settings)
    real = layer_training.model_losses

    def interrupted(*given: Any) -> Any:
        if stops.pop():
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    stops = [False] * 10 + [True] + [False] * 3
    monkeypatch.setattr(layer_training, "model_losses", interrupted)
    part = train(vlm, examples, tmp_path / "parts", settings)
    assert (part.steps, part.finished) == (4, False)
    assert ArrCocLayer.from_pretrained(tmp_path / "parts")  # already usable
    rest = train(vlm, examples, tmp_path / "parts", settings)
    assert (rest.steps, rest.finished) == (9, True)
    assert same(rest.layer, through.layer)
    assert not same(part.layer, through.layer)
    again = train(vlm, examples, tmp_path / "parts", settings)  # nothing left to do
    assert again.steps == 9
    assert same(again.layer, through.layer)


def test_checkpoints_that_cannot_be_resumed(tmp_path: Path) -> None:
    vlm = squares.model()
    examples, settings = squares.examples(vlm, tmp_path / "data", 2), replace(QUICK, steps=1)
    train(vlm, examples, tmp_path, settings)
    with pytest.raises(LayerError, match=r"was trained with another lr and seed: use the same, .* --fresh"):
        train(vlm, examples, tmp_path, replace(settings, lr=1.0, seed=3))
    assert train(vlm, examples, tmp_path, replace(settings, steps=2)).steps == 2  # a longer schedule is allowed
    other = config_for(vlm.adapter, **squares.SHAPE | {"width": 32})
    with pytest.raises(LayerError, match="is of another model or shape"):
        train_layer(vlm, other, examples, [], tmp_path, settings, journal=Journal(tmp_path, lines=False))
    (tmp_path / CHECKPOINT).write_bytes(b"what is this")
    with pytest.raises(LayerError, match=r"cannot resume from .*: start again with --fresh"):
        train(vlm, examples, tmp_path, settings)


def test_no_examples(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected examples to learn from, got none"):
        train(squares.model(), [], tmp_path, QUICK)


def trainer(folder: Path, world: World = World()) -> LayerTrainer:  # noqa: B008
    vlm = squares.model()
    examples, config = squares.examples(vlm, folder / "data", 1), config_for(vlm.adapter, **squares.SHAPE)
    return LayerTrainer(LookCache(vlm), config, examples, [], folder / "out", QUICK, Journal(folder), world)


def test_nan_weights_are_not_saved(tmp_path: Path) -> None:
    task = trainer(tmp_path)
    with torch.no_grad():
        task.layer.not_encoded[0] = torch.nan
    with pytest.raises(LayerError, match=r"NaN or infinite before step 0; .* lower learning rate"):
        task.save()
    assert not (tmp_path / "out").exists()


def test_attention_of_a_model_that_is_never_right_is_an_error(tmp_path: Path) -> None:
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path / "data", 2, by_box=False, by_answer=True)
    message = "nothing was learned in 2 steps from attention: the model gave no right answer"
    with pytest.raises(ArrCocError, match=message):
        train(vlm, examples, tmp_path / "out", LayerTrainingSettings(learn=("attention",), steps=2))
    assert not (tmp_path / "out" / "layer.safetensors").exists()


def test_a_schedule_by_the_clock_counts_earlier_calls(tmp_path: Path) -> None:
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path / "data", 2)
    timed = replace(QUICK, steps=10**6, minutes=0.4 / 60, pictures=1)
    done = train(vlm, examples, tmp_path, timed)
    assert done.finished
    assert 0.4 <= done.seconds < 3
    again = train(vlm, examples, tmp_path, timed)
    assert again.steps == done.steps


def test_log_and_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    for name in ("LOG_EVERY", "SAVE_EVERY", "VALIDATE_EVERY"):
        monkeypatch.setattr(layer_training, name, -1.0)
    vlm = squares.model()
    examples = squares.examples(vlm, tmp_path / "data", 2)
    config = config_for(vlm.adapter, **squares.SHAPE)
    with Journal(tmp_path, events=True) as journal:
        train_layer(vlm, config, examples, examples, tmp_path, replace(QUICK, steps=2), journal=journal)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 2, 2]
    assert set(rows[0]) == {"step", "seconds", "ranking", "calibration"}
    assert set(rows[1]["recall"]) == set(rows[-1]["recall"]) == MEASURES
    assert rows[-1]["settings"]["steps"] == 2
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"loss/ranking", "loss/calibration", "evidence recall/gaze 12.5%"} <= set(events.Tags()["scalars"])
    assert "gaze 12.5%" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "llava_next", "idefics3"])
def test_every_family_learns_from_all_sources(family: str, tmp_path: Path) -> None:
    vlm = squares.model(family)
    examples = squares.examples(vlm, tmp_path / "data", 2, by_answer=True)
    if family in ("llava_next", "idefics3"):
        assert len(examples[0].views) > 1  # tiles and an overview
    settings = LayerTrainingSettings(learn=("answers", "attention", "boxes"), steps=1)
    done = train(vlm, examples, tmp_path / "out", settings, examples)
    assert done.steps == 1
    assert set(done.recall) == MEASURES
    assert squares.model(family).layer is None
    used = type(vlm)(vlm.model, vlm.processor, layer=tmp_path / "out")
    assert used.layer is not None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_a_bfloat16_model_works_in_both_phases(device: str, tmp_path: Path) -> None:
    vlm = squares.model()
    vlm.model.to(device, torch.bfloat16)
    examples = squares.examples(vlm, tmp_path / "data", 2, by_answer=True)
    for gate in METHODS:
        settings = LayerTrainingSettings(learn=("answers", "attention", "boxes"), gate=gate, steps=1)
        train(vlm, examples, tmp_path / gate, settings)
        done = train(vlm, examples, tmp_path / gate, replace(settings, steps=2), examples)  # resumed
        assert done.steps == 2
        assert all(bool(weights.isfinite().all()) for weights in done.layer.parameters())
    tuned = finetune(vlm, done.layer, examples, examples, FinetuneConfig.parse("layers:1", 1))
    assert set(tuned.losses) == {"before", "after"}
    assert vlm.model.dtype == torch.bfloat16
    image = examples[0].image
    answer = type(vlm)(vlm.model, vlm.processor, layer=done.layer).ask(image, "red?", budget=8, max_new_tokens=1)
    assert len(answer.allocations[0].keep) == 8


class Pair(World):
    """Two ranks, seen by one whose partner has zero gradients."""

    def average_gradients(self, parameters: Any) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= 2


def test_a_parameter_without_gradient_is_averaged_as_zero(tmp_path: Path) -> None:
    task = trainer(tmp_path, Pair(0, 2))
    task.layer.not_encoded.sum().backward()
    before = task.layer.from_tokens.weight.clone()
    task.update(1e-2)
    assert not torch.equal(task.layer.not_encoded, torch.zeros_like(task.layer.not_encoded))
    assert torch.allclose(task.layer.from_tokens.weight, before, atol=1e-3)


def test_channel_statistics_are_those_of_all_examples(tmp_path: Path) -> None:
    vlm = squares.model()
    found, layer = squares.examples(vlm, tmp_path, 3), squares.layer(vlm)
    fit_statistics(layer, found)
    values = torch.cat([view.channels.double().transpose(0, 1).flatten(1) for one in found for view in one.views], 1)
    spread = values.std(1, unbiased=False)
    assert torch.allclose(layer.mean.flatten().double(), values.mean(1), atol=1e-5)
    assert torch.allclose(layer.spread.flatten().double(), torch.where(spread > 1e-4, spread, 1.0), atol=1e-4)


def test_two_processes_end_with_the_same_layer(tmp_path: Path) -> None:
    """Three pictures of two shapes: one process has two examples, the other has one."""
    squares.draw(tmp_path / "data", 2)
    squares.draw(tmp_path / "other", 1, side=48)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("pair.py")), str(tmp_path)], capture_output=True, text=True, check=False,
        timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    left, right = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert left["examples"] == 2
    assert right["examples"] == 1
    for name, weights in left["layer"].items():
        assert torch.equal(weights, right["layer"][name]), name
    rows = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert len(rows) == 1  # only rank 0 writes


def test_parts_of_the_same_kind_and_shape_are_taken_over() -> None:
    vlm = squares.model()
    layer = squares.layer(vlm, channels=universal.CHANNELS)
    start = UniversalLayer(universal.universal_config(**{**squares.SHAPE, "seeing": layer.config.seeing}))
    before = {name: values.clone() for name, values in layer.state_dict().items()}
    taken = take_over(layer, start)
    copied = {name for name, values in layer.named_parameters() if not torch.equal(values, before[name])}
    assert all(torch.equal(layer.get_parameter(name), start.get_parameter(name)) for name in copied)
    assert {name.split(".")[0] for name in copied} >= {"from_channels", "seeing", "asking", "questions", "policy"}
    assert not [name for name in copied if name.startswith(("words", "from_pixels", "from_tokens"))]
    assert taken < layer.parameter_count
    other = squares.layer(vlm, channels=universal.CHANNELS, width=32)  # another width: what does not depend on it
    assert 0 < take_over(other, start) < taken
