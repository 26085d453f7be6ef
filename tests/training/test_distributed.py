"""The world of one process, and what is refused. Two real processes train in test_layer.py and in the reader recipe's tests."""

import pytest
import torch

from arr_coc.errors import ArrCocError
from arr_coc.training.distributed import World, init_world


def test_a_single_process_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with init_world("cpu") as world:
        assert world.is_main
        assert world.sync((0.5, 1), (True, 3)) == ([0.5, 1], [True, 3])


def test_more_processes_than_gpus_and_a_chosen_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ArrCocError, match="2 processes, one GPU each, but this machine has 1"), init_world("cuda"):
        pass
    with pytest.raises(ArrCocError, match="its own GPU"), init_world("cuda:1"):
        pass


def test_a_parameter_without_gradient_cannot_be_averaged() -> None:
    with pytest.raises(RuntimeError, match=r"\(3,\) has no gradient"):
        World(0, 2).average_gradients([torch.nn.Parameter(torch.zeros(3))])
