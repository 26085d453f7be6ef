"""Devices: checking them, moving tensors to them, and timing work on them without synchronising.

On CUDA, a `Stopwatch` records events in the stream and reads them when the times are requested. Synchronising at every stage
would leave the device idle between stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from arr_coc.errors import ArrCocError, first_line

STAGES = (
    "views",
    "preprocess",
    "texture",
    "embed",
    "glance",
    "encode",
    "layer",
    "probe",
    "gaze",
    "assemble",
    "prefill",
    "decode",
    "judge",
)


KEPT_BLOCK = 31 << 20  # bytes; glibc adapts to freed blocks of up to 32 MiB


def keep_freed_memory() -> None:
    """Let glibc keep up to 62 MiB of freed memory for what comes next, instead of returning it to the system.

    A picture's channels are tens of megabytes. Fresh memory comes page by page, and a page's first write costs so much that all
    of them are an eighth of the time that choosing cells takes. glibc raises its thresholds when a large block is freed, as
    most programs with a model have done anyway. It takes no memory, and other C libraries ignore it.
    """
    torch.empty(KEPT_BLOCK, dtype=torch.uint8)


def check_device(device: torch.device | str | None) -> torch.device | None:
    """The device, if torch can allocate on it; None stays None."""
    if device is None:
        return None
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArrCocError(f"there is no device {str(device)!r} here ({first_line(error)}); use 'cpu'") from None
    return place


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`, copied asynchronously where possible."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def fetch(found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on the CPU. Those of one device come in one transfer, so the host waits for each device once."""
    made: list[torch.Tensor] = list(found)
    places: dict[torch.device, list[int]] = {}
    for number, one in enumerate(found):
        if one.device.type != "cpu" and one.numel():
            places.setdefault(one.device, []).append(number)
        else:
            made[number] = one.cpu()
    for numbers in places.values():
        numbers.sort(key=lambda number: -found[number].itemsize)  # so that each part starts at a multiple of its size
        parts = [found[number].detach().contiguous().flatten().view(torch.uint8) for number in numbers]
        read = torch.split(torch.cat(parts).cpu(), [len(part) for part in parts])
        for number, part in zip(numbers, read, strict=True):
            made[number] = part.view(found[number].dtype).view(found[number].shape)
    return made


def fetch_later(value: torch.Tensor) -> Callable[[], bool]:
    """A function that returns a boolean `[]` of a device. The copy starts now, and only the function waits for it."""
    if value.device.type != "cuda":
        return lambda: bool(value)
    copied = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(value, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(value.device))

    def read() -> bool:
        event.synchronize()
        return bool(copied)

    return read


def tensors(held: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, mappings and dataclasses."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        yield from tensors(list(held.values()))
    elif isinstance(held, list | tuple):
        for one in held:
            yield from tensors(one)
    elif is_dataclass(held) and not isinstance(held, type):
        yield from tensors([getattr(held, one.name) for one in fields(held)])


class Stopwatch(Mapping[str, float]):
    """Collects stages; as a mapping, milliseconds by stage. A nested stage is not counted twice."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: list[tuple[str, Any, Any, int | None]] = []  # name, start, end, enclosing span
        self._open: list[int] = []
        self._known: dict[str, float] | None = None

    def mark(self) -> Any:
        """A time stamp."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        number = len(self._spans)
        self._spans.append((name, self.mark(), None, self._open[-1] if self._open else None))
        self._open.append(number)
        try:
            yield
        finally:
            self._open.pop()
            name, start, _, around = self._spans[number]
            self._spans[number] = (name, start, self.mark(), around)
            self._known = None

    def add(self, name: str, start: Any, end: Any) -> None:
        """Add a stage between two time stamps."""
        self._spans.append((name, start, end, None))
        self._known = None

    def _times(self) -> dict[str, float]:
        if self._known is None:
            spent = [self._between(start, end) for _, start, end, _ in self._spans]
            own = list(spent)
            for number, (_, _, _, around) in enumerate(self._spans):
                if around is not None:
                    own[around] -= spent[number]
            self._known = {}
            for (name, _, _, _), milliseconds in zip(self._spans, own, strict=True):
                self._known[name] = self._known.get(name, 0.0) + milliseconds
            self._known = {name: self._known[name] for name in sorted(self._known, key=STAGES.index)}
        return self._known

    def _between(self, start: Any, end: Any) -> float:
        if self.device.type != "cuda":
            return float(end - start) * 1e3
        end.synchronize()
        return float(start.elapsed_time(end))

    def __getitem__(self, name: str) -> float:
        return self._times()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times())

    def __len__(self) -> int:
        return len(self._times())


def merge_timings(*watches: Mapping[str, float]) -> dict[str, float]:
    """The summed stages of several stopwatches, in pipeline order."""
    names = {name for watch in watches for name in watch}
    return {name: sum(watch[name] for watch in watches if name in watch) for name in sorted(names, key=STAGES.index)}
