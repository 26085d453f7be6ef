"""A supply of batches on the accelerator that never makes it wait for the renderers."""

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from recipes.reader.batches import Batch
from recipes.reader.recipe import StepKind

_ASIDE = 16  # fresh batches that may lie aside while another kind is wanted


@dataclass
class _Used:
    batch: Batch
    times: int = 1


class Supply:
    """Fresh batches when there are any, else the one that was used least, at most `uses` times each.

    Every use looks different, since noise, light and missing cells are drawn anew on the accelerator. Without worker
    processes behind it, `background` must be False: rendering in a thread beside training slows both down.
    """

    def __init__(
        self, source: Iterable[Batch], device: str, uses: int = 3, remembered: int = 64, background: bool = True
    ):
        self.uses, self.remembered = uses, remembered
        self.fresh_count = 0
        self._recent: list[_Used] = []
        self._aside: list[Batch] = []
        self._fresh: queue.Queue[Batch] = queue.Queue(maxsize=8)
        self._failure: BaseException | None = None
        self._stopped = False
        # Worker processes start here, in the calling thread: a fork beside busy threads may inherit a lock for ever.
        batches = iter(source)
        self._direct = None if background else (batch.to(device) for batch in batches)
        self._thread = threading.Thread(target=self._fetch, args=(batches, device), daemon=True)
        if background:
            self._thread.start()

    def _fetch(self, batches: Iterator[Batch], device: str) -> None:
        try:
            for batch in batches:
                if not self._stopped:
                    self._fresh.put(batch.to(device))
        except BaseException as failure:  # handed on to the training thread, which must not wait for ever
            self._failure = failure

    def _take_fresh(self, wait: bool) -> Batch | None:
        """The next fresh batch of any kind; None where there is none and nobody waits."""
        if self._aside:
            return self._aside.pop(0)
        while True:
            try:
                return self._fresh.get(block=wait, timeout=1.0 if wait else None)
            except queue.Empty:
                if self._failure is not None:
                    raise RuntimeError("the renderers stopped") from self._failure
                if not wait:
                    return None

    def _take_fresh_like(self, kind: StepKind) -> Batch | None:
        """The first fresh batch of this kind among those that are ready."""
        with contextlib.suppress(queue.Empty):
            while len(self._aside) < _ASIDE:
                self._aside.append(self._fresh.get_nowait())
        found = next((number for number, batch in enumerate(self._aside) if batch.kind == kind), None)
        return None if found is None else self._aside.pop(found)

    def next(self, like: StepKind | None = None) -> Batch:
        """The next batch to train on.

        `like`: the kind that the other processes train on in this step. Steps of one kind take equally long, and all wait
        for the slowest; but gradients of any kinds can be averaged, so where none of it is ready another kind is given.
        """
        if self._direct is not None:  # in order, so that the kinds are the same everywhere
            self.fresh_count += 1
            return next(self._direct)
        candidates = [entry for entry in self._recent if entry.times < self.uses]
        alike = [entry for entry in candidates if entry.batch.kind == like]
        batch = None if like is None else self._take_fresh_like(like)
        if batch is None and not alike:
            batch = self._take_fresh(wait=not candidates)
        if batch is None:
            entry = min(alike or candidates, key=lambda entry: entry.times)
            entry.times += 1
            return entry.batch
        self.fresh_count += 1
        self._recent.append(_Used(batch))
        del self._recent[: -self.remembered]
        return batch

    def stop(self) -> None:
        """Take in what still comes from a stream that has been ended, so that its processes can leave."""
        self._stopped = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._fresh.get(timeout=0.2)
