"""Progress on stderr: a bar in a terminal, otherwise one line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_SECONDS = 5.0  # between two lines where stderr is not a terminal; shorter work prints none


class ProgressReport(Progress):
    """rich's progress. The bar disappears when it is done; lines printed in the meantime appear above it."""

    def __init__(self, shown: bool = True) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        terminal = console.is_terminal
        super().__init__(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            disable=not (shown and terminal),
        )
        self._ended = threading.Event()
        # A thread prints the lines: a long step reports nothing itself.
        self._printer = threading.Thread(target=self._print_lines, daemon=True) if shown and not terminal else None

    def start(self) -> None:
        super().start()
        if self._printer is not None:
            self._printer.start()

    def stop(self) -> None:
        self._ended.set()
        super().stop()

    def update(self, task_id: TaskID, *, completed: float | None = None, **values: Any) -> None:
        """A count that falls starts the next phase: its remaining time is estimated from its own speed."""
        if completed is not None and completed < self._tasks[task_id].completed:
            self.reset(task_id, total=values.get("total", self._tasks[task_id].total))
        super().update(task_id, completed=completed, **values)

    def _print_lines(self) -> None:
        begun = time.monotonic()
        while not self._ended.wait(LINE_SECONDS):
            for task in self.tasks:
                share = "" if not task.total else f", {task.completed / task.total:.0%}"
                seconds = time.monotonic() - begun
                print(f"arr-coc: {task.description}{share} ({seconds:.0f} s)", file=sys.stderr, flush=True)
