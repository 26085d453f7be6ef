"""Training in two processes: the same weights in both, those that one process with both batches comes to, and a common end."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import arr_coc
from arr_coc.errors import ArrCocError
from arr_coc.reader.model import TINY
from arr_coc.training.distributed import Team, joined
from recipes.reader.loop import train
from recipes.reader.recipe import TINY_STEP_KINDS
from recipes.reader.source import TrainingBatches, loader
from recipes.reader.trainer import Trainer
from tests.recipes import ranks

STEPS = 4


@contextmanager
def started(out: Path, *steps: str) -> Iterator[subprocess.Popen[str]]:
    """Two ranks of `ranks.py` under torchrun; ended with the block if they have not ended before."""
    source = str(Path(arr_coc.__file__).parent.parent)
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
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


def test_both_ranks_end_with_the_same_weights_and_one_speaks(finished: tuple[Path, str]) -> None:
    out, said = finished
    first, second = ended_with(out)
    for part in ("model", "head"):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)
    assert first["counts"] == second["counts"]
    assert first["counts"][0] == STEPS
    assert said.count("training for") == said.count("wrote ") == 1


def test_two_ranks_step_as_one_process_with_both_batches(finished: tuple[Path, str]) -> None:
    alone = Trainer(ranks.SETTINGS, TINY)
    library, images, streams, noise = ranks.library(), 0, [], []
    for rank in range(2):  # a rank draws its noise from where its trainer and its loader have left the dice
        Trainer(ranks.SETTINGS, TINY, team=Team(rank, 2))
        streams.append(iter(loader(TrainingBatches(library, TINY_STEP_KINDS, seed=0, rank=rank), 0, pin=False)))
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
    together = ended_with(finished[0])[0]
    assert together["counts"][2] == images
    torch.testing.assert_close(together["model"], alone.run.model.state_dict(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together["head"], alone.run.head.state_dict(), rtol=1e-5, atol=1e-6)
    untrained = Trainer(ranks.SETTINGS, TINY).run.head.state_dict()
    assert (together["head"]["out.weight"] - untrained["out.weight"]).abs().max() > 5e-3


@pytest.mark.parametrize("request_", [signal.SIGTERM, signal.SIGINT])
def test_a_run_goes_on_in_two_processes_and_ends_when_told_to(
    finished: tuple[Path, str], tmp_path: Path, request_: signal.Signals
) -> None:
    out = Path(shutil.copytree(finished[0], tmp_path / "run"))
    with started(out) as process:
        assert process.stdout
        heard = ""
        while "measured in" not in heard:
            heard = process.stdout.readline()
            assert heard, "it ended by itself"
        process.send_signal(request_)
        said = process.stdout.read()
        process.wait(60)
    first, second = ended_with(out)
    assert first["counts"] == second["counts"], said
    assert first["counts"][0] > STEPS
    torch.testing.assert_close(first["model"], second["model"], rtol=0, atol=0)
    again = Trainer(ranks.SETTINGS, TINY)
    again.run.load(out / "checkpoint.pt", "cpu")
    assert again.run.step == first["counts"][0]
    torch.testing.assert_close(again.run.model.state_dict(), first["model"])


def test_ranks_draw_the_same_kinds_and_other_documents() -> None:
    library = ranks.library()
    streams = [iter(TrainingBatches(library, TINY_STEP_KINDS, seed=0, rank=rank)) for rank in range(2)]
    pairs = [(next(streams[0]), next(streams[1])) for _ in range(6)]
    assert all(one.kind == other.kind for one, other in pairs)
    assert len({one.kind.name for one, _ in pairs}) > 1
    assert not any(torch.equal(one.tokens, other.tokens) for one, other in pairs)
    alone = TrainingBatches(library, TINY_STEP_KINDS, seed=0).make(random.Random("0/0/0"), 0.0)
    assert torch.equal(alone.images, pairs[0][0].images)


def test_a_single_process_is_a_team_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as team:
        assert team.leads
        assert team.agree((0.5, 1), (True, 3)) == ([0.5, 1], [True, 3])


def test_more_processes_than_gpus_and_a_chosen_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ArrCocError, match="2 processes, one GPU each, but this machine has 1"), joined("cuda"):
        pass
    with pytest.raises(ArrCocError, match="its own GPU"), joined("cuda:1"):
        pass


def test_a_parameter_without_gradient_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"\(3,\) has no gradient"):
        Team(0, 2).average_gradients([torch.nn.Parameter(torch.zeros(3))])


def test_ranks_that_stand_at_different_steps_do_not_train(tmp_path: Path) -> None:
    class Elsewhere(Team):
        def agree(self, decision: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
            return list(decision), [1.0 for _ in counts]  # one of the others says that it is not where rank 0 is

    trainer = Trainer(ranks.SETTINGS, TINY, team=Elsewhere())
    with pytest.raises(ArrCocError, match=r"must all see .*checkpoint\.pt"):
        train(trainer, ranks.library(), [], tmp_path, TINY_STEP_KINDS)
