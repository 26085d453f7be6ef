"""The log of a training run: lines on stdout, `log.jsonl`, TensorBoard event files, and a progress callback."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Tick = Callable[[float, str], None]  # share of this call that is done, and what is going on


def writer_class() -> "type[SummaryWriter]":
    """TensorBoard's writer, or an error that says how to install it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ArrCocError(
            "logs for TensorBoard need the package tensorboard, which is not installed: pip install 'arr-coc[training]'"
        ) from None
    return SummaryWriter


class Journal:
    """The log of a run in the folder `out`. Later calls append to it.

    `events`: also write event files to `out/tensorboard`. `lines`: print a line for every logged step. `tick`: receives this
    call's progress, for a progress bar.
    """

    def __init__(self, out: Path, events: bool = False, lines: bool = True, tick: Tick | None = None) -> None:
        self._log, self._lines = out / "log.jsonl", lines
        self._events = out / "tensorboard" if events else None
        self._writer: SummaryWriter | None = None
        self.tick: Tick = tick or (lambda share, what: None)

    def open(self, step: int) -> None:
        """Continue at `step`. Events beyond it belong to steps that were lost when an earlier call was killed."""
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArrCocError(f"cannot make {str(self._log.parent)!r}: {error.strerror or error}") from None
        if self._events is not None:
            self._writer = writer_class()(str(self._events), purge_step=step)

    def log_step(self, progress: float, entry: Mapping[str, float], scalars: Mapping[str, float]) -> None:
        """Log one step: `entry` goes to the log and to stdout, `scalars` go to TensorBoard."""
        self.write(entry)
        self.add_scalars(scalars, int(entry["step"]))
        if self._lines:
            print(f"{progress:4.0%} " + "  ".join(f"{name} {value}" for name, value in entry.items()), flush=True)

    def write(self, entry: Mapping[str, Any]) -> None:
        """One line of `log.jsonl`."""
        try:
            with self._log.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise ArrCocError(f"cannot write {str(self._log)!r}: {error.strerror or error}") from None

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Points of TensorBoard curves, by tag."""
        if self._writer is None:
            return
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()  # visible at once, and a killed call loses nothing

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
