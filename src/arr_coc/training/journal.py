"""What a run tells: lines on stdout, `log.jsonl`, and event files for TensorBoard where they are asked for."""

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Tick = Callable[[float, float, str], None]  # seconds trained in this call, of how many, what is going on
Wrong = list[tuple[str, str, str]]  # question, expected, said

_TAGS = {
    "answer_loss": "loss/answer",
    "cell_loss": "loss/cell",
    "colour_loss": "loss/colour",
    "cell_accuracy": "training/cell accuracy",
    "learning_rate": "training/learning rate",
    "images_per_second": "training/images per second",
    "fresh_share": "training/fresh share",
}


def writer_class() -> "type[SummaryWriter]":
    """TensorBoard's writer, or one sentence."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ArrCocError(
            "logs for TensorBoard need the package tensorboard, which is not installed: pip install 'arr-coc[training]'"
        ) from None
    return SummaryWriter


class Journal:
    """The log of a run in the folder `out`, which later calls go on with.

    `events`: also write event files to `out/tensorboard`. `lines`: print a line at every telling; measurements are always
    printed. `tick`: is told how far this call has come, for a progress bar.
    """

    def __init__(self, out: Path, events: bool = False, lines: bool = True, tick: Tick | None = None) -> None:
        self._log, self._lines = out / "log.jsonl", lines
        self._events = out / "tensorboard" if events else None
        self._writer: SummaryWriter | None = None
        self.tick: Tick = tick or (lambda done, total, what: None)

    def open(self, step: int) -> None:
        """Go on at `step`: what was drawn beyond it belongs to steps that were lost with a call that broke off."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._events is not None:
            self._writer = writer_class()(str(self._events), purge_step=step)

    def told(self, progress: float, entry: dict[str, float]) -> None:
        """Losses and pace at one step."""
        self.note(entry)
        self.draw({tag: entry[name] for name, tag in _TAGS.items() if name in entry}, int(entry["step"]))
        if self._lines:
            print(f"{progress:4.0%} " + "  ".join(f"{name} {value}" for name, value in entry.items()), flush=True)

    def measured(self, minutes: float, step: int, report: dict[str, dict[str, float]], wrong: Wrong) -> None:
        """Accuracy at one step, and a few of the answers that were wrong."""
        self.note({"minutes": minutes, "step": step, "measured": report})
        measures = ("exact", "similarity")
        self.draw({f"{measure}/{name}": row[measure] for measure in measures for name, row in report.items()}, step)
        for name, row in report.items():
            numbers = f"exact {row['exact']:.3f}  similarity {row['similarity']:.3f}  of {row['count']}"
            print(f"  {name:42s} {numbers}", flush=True)
        for question, expected, said in wrong:
            print(f"  {question!r}: expected {expected!r}, got {said!r}", flush=True)

    def note(self, entry: dict[str, Any]) -> None:
        """One line of the log."""
        with self._log.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def draw(self, values: dict[str, float], step: int) -> None:
        """Curves for TensorBoard, where they are asked for."""
        if self._writer is None:
            return
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
        self._writer.flush()  # whoever watches wants to see it now, and a killed call loses nothing

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
