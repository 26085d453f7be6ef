"""`WorkerMap`: how a long run hands its work to other processes, without knowing which library starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

State = TypeVar("State")
Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkerMap(Protocol):
    """Results of `run(state, task)` in the order of the tasks. Each worker calls `make` once, for its state.

    An `ArrCocError` of a task is raised here. A worker that dies is replaced, and its task runs again.
    """

    def __call__(
        self, make: Callable[[], State], run: Callable[[State, Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]: ...
