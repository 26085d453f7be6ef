"""`Workers`: long runs (`arr-coc eval`, `fit-embeddings`) on the worker processes of a Ray cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from arr_coc.errors import ArrCocError
from arr_coc.types.workers import Result, State, Task

STORE = 512 * 2**20  # bytes of the object store of a local cluster: results are small


def import_ray() -> Any:
    """Import ray with its usage statistics switched off, which must happen before the import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ArrCocError("this needs ray, which is not installed: pip install 'arr-coc[ray]'") from None
    return ray


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """The cluster that this process is connected to, that RAY_ADDRESS names, or a local one until the end of the block."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
    else:
        # Ray's own tasks need CPUs, too: with as many CPUs as workers they would wait forever.
        cpus = max(workers + 2, os.cpu_count() or 1)
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=STORE, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()


class _Worker:
    """The state of a run in a worker process."""

    def __init__(self, make: Callable[[], Any], run: Callable[[Any, Any], Any], threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._make, self._run = make, run

    @cached_property
    def _state(self) -> Any:
        return self._make()

    def work(self, task: Any) -> tuple[Any, ArrCocError | None]:
        try:
            return self._run(self._state, task), None
        except ArrCocError as error:  # Ray would put a traceback into its message
            return None, error


@dataclass(frozen=True)
class Workers:
    """`count` worker processes. A `WorkerMap`: `arr_coc.evaluate(..., workers=Workers(2))`.

    Results come in the order of the tasks. A process that dies is replaced and its task runs again, at most `retries` times.
    """

    count: int = 2
    gpus: float = 0.0  # for each worker
    retries: int = 2

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArrCocError(f"expected at least 1 worker, got {self.count}")

    def __call__(
        self, make: Callable[[], State], run: Callable[[State, Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        count = min(self.count, len(tasks))
        if not count:
            return
        with cluster(count) as ray:
            threads = None if self.gpus else max(1, (os.cpu_count() or 1) // count)
            actor = ray.remote(
                num_cpus=1, num_gpus=self.gpus, max_restarts=self.retries * count, max_task_retries=self.retries
            )(_Worker)
            actors = [actor.remote(make, run, threads) for _ in range(count)]
            load = dict.fromkeys(range(count), 0)
            pending: deque[tuple[int, Any]] = deque()
            rest = iter(tasks)
            try:
                while True:
                    while len(pending) < 2 * count and (task := next(rest, None)) is not None:
                        least = min(load, key=lambda number: load[number])
                        load[least] += 1
                        pending.append((least, actors[least].work.remote(task)))
                    if not pending:
                        return
                    number, reference = pending.popleft()
                    result, error = self._get(ray, reference)
                    load[number] -= 1
                    if error is not None:
                        raise error
                    yield result
            finally:
                for one in actors:
                    ray.kill(one)

    def _get(self, ray: Any, reference: Any) -> tuple[Any, ArrCocError | None]:
        try:
            found: tuple[Any, ArrCocError | None] = ray.get(reference)
            return found
        except ray.exceptions.RayActorError:
            raise ArrCocError(
                f"a worker process died {self.retries + 1} times on the same task, perhaps for lack of memory: try fewer "
                "workers; what was done is kept"
            ) from None
