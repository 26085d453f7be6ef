"""Training on several GPUs with `torchrun`: one process for each, the same weights in all, gradients averaged.

Each process draws its own data. All begin with the weights of rank 0 and step on the same averaged gradient, so their
weights stay equal. Rank 0 makes every decision that depends on the clock and sends it before each step, so that no process
waits for a step that another does not take.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from arr_coc.errors import ArrCocError

TIMEOUT = timedelta(minutes=30)  # rank 0 may validate, and any rank compile, while the others wait


@dataclass(frozen=True)
class World:
    """All processes that train together, seen from one of them. By default there is one."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process decides, validates, saves and prints."""
        return self.rank == 0

    def sync(self, decision: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
        """Rank 0's decision, and the sums of all ranks' counts.

        The values go over the CPU: reading a number from a GPU would wait for all of its work.
        """
        if self.size == 1:
            return list(decision), list(counts)
        own = [value if self.is_main else 0.0 for value in decision]
        table = torch.tensor([*own, *counts], dtype=torch.float64)
        dist.all_reduce(table)
        reduced = table.tolist()
        return reduced[: len(own)], reduced[len(own) :]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sync((), (0.0,))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over all ranks, in one all-reduce."""
        if self.size == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # the flat vectors of the ranks would not match
                raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} has no gradient to average")
            gradients.append(parameter.grad)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(to) for part, to in zip(parts, gradients, strict=True)])

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite these tensors with rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)


def _own_gpu(processes: int) -> str:
    """The GPU of this process among those started on this machine."""
    number, available = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= available:
        raise ArrCocError(f"torchrun started {processes} processes, one GPU each, but this machine has {available}")
    torch.cuda.set_device(number)
    return f"cuda:{number}"


@contextmanager
def init_world(device: str) -> Iterator[World]:
    """The world that `torchrun` started this process in, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device=device)
        return
    if device not in ("cpu", "cuda"):
        raise ArrCocError(
            f"with torchrun every process takes its own GPU: give the device as cuda or cpu, not {device!r}"
        )
    own = _own_gpu(int(os.environ["LOCAL_WORLD_SIZE"])) if device == "cuda" else device
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
    yield World(dist.get_rank(), size, own)
    # Only after success: a process that failed must not wait for the others here. torchrun ends them.
    dist.destroy_process_group()
