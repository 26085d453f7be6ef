"""Training on several GPUs: one process for each, the same weights in all of them, gradients averaged.

`torchrun` starts the processes. Each renders documents of its own. Since all of them begin with the weights of rank 0 and
step on the same averaged gradient, their weights stay the same. Whatever depends on the clock is decided by rank 0 and told
to the others before every step, so that no process waits for a step that another does not take.
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

PATIENCE = timedelta(minutes=30)  # rank 0 may measure, and any rank compile, while the others wait


@dataclass(frozen=True)
class Team:
    """The processes that train together, seen from one of them. By default it is alone."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def leads(self) -> bool:
        """Whether this process decides, measures, saves and speaks."""
        return self.rank == 0

    def agree(self, decision: Sequence[float], counts: Sequence[float]) -> tuple[list[float], list[float]]:
        """Rank 0's decision, and the sums of everybody's counts.

        It goes over the processors: asking a GPU for a number would make it finish all of its work first.
        """
        if self.size == 1:
            return list(decision), list(counts)
        mine = [value if self.leads else 0.0 for value in decision]
        table = torch.tensor([*mine, *counts], dtype=torch.float64)
        dist.all_reduce(table)
        found = table.tolist()
        return found[: len(mine)], found[len(mine) :]

    def wait(self) -> None:
        """Until everybody has come here."""
        self.agree((), (0.0,))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every process the mean of all gradients, in one go."""
        if self.size == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # the pieces of the joint vector would no longer match
                raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} has no gradient to average")
            gradients.append(parameter.grad)
        joint = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joint)
        joint /= self.size
        parts = joint.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(to) for part, to in zip(parts, gradients, strict=True)])

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite these with rank 0's."""
        if self.size == 1:
            return
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def _own_gpu(processes: int) -> str:
    """The GPU of this process among those that were started on this machine."""
    number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= there:
        raise ArrCocError(f"torchrun started {processes} processes, one GPU each, but this machine has {there}")
    torch.cuda.set_device(number)
    return f"cuda:{number}"


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """This process's team: those that `torchrun` started with it, or itself alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Team(device=device)
        return
    if device not in ("cpu", "cuda"):
        raise ArrCocError(
            f"with torchrun every process takes its own GPU: give the device as cuda or cpu, not {device!r}"
        )
    own = _own_gpu(int(os.environ["LOCAL_WORLD_SIZE"])) if device == "cuda" else device
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    yield Team(dist.get_rank(), size, own)
    # Only after a good end: a process that failed must not wait for the others here, torchrun ends them.
    dist.destroy_process_group()
