"""What a run has found so far, picture by picture, in a file that the next start goes on from.

The first line says what was asked; a file that was made by another question, other data or other code is not gone on from,
nor is it written over unless that is asked for. One run at a time has the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError

try:
    import fcntl
except ImportError:  # pragma: no cover - not a Unix: runs in one folder are not kept apart there
    fcntl = None  # type: ignore[assignment]

FILE, LOCK = "records.jsonl", "records.lock"


def cache_folder() -> Path:
    """Where runs are kept until they are done, unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arr-coc" / "eval"


def fingerprint(settings: Mapping[str, Any], sources: Iterable[str | Path] = ()) -> str:
    """A short name for a run: the same settings with the same code have the same one."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    package = Path(__file__).parent.parent
    for path in [*sorted(package.rglob("*.py")), *map(Path, sorted({str(s) for s in sources if s}))]:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Records:
    """The finished pictures of one run; in memory alone where there is no folder."""

    def __init__(self, folder: Path | None, print_: str, fresh: bool = False) -> None:
        self.path = None if folder is None else folder / FILE
        self.done: dict[str, list[dict[str, Any]]] = {}  # picture -> its rows
        self.resumed = 0
        self.made = False  # the folder
        self._lock: int | None = None
        self._closed = False
        if self.path is None:
            return
        try:
            self.made = not self.path.parent.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take()
            if not fresh and self.path.is_file():
                self._read(print_)
            self._rewrite(print_)
        except OSError as error:
            raise self._unwritable(error) from None
        self.resumed = len(self.done)

    def add(self, picture: str, rows: list[dict[str, Any]]) -> None:
        self.done[picture] = rows
        if self.path is None:
            return
        try:
            with self.path.open("a") as file:
                file.write(_line({"picture": picture, "rows": rows}))
        except OSError as error:
            raise self._unwritable(error) from None

    def forget(self) -> None:
        """The run is complete: the next one starts anew."""
        self.done = {}
        self.close()

    def close(self) -> None:
        """Leave the folder to others, with what is done; without a trace where nothing is."""
        if self.path is None or self._closed:
            return
        self._closed = True
        if not self.done:
            self.path.unlink(missing_ok=True)
            (self.path.parent / LOCK).unlink(missing_ok=True)
            if self.made:
                with suppress(OSError):  # something else lies there by now
                    self.path.parent.rmdir()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        """Nobody else may write here until this process is done, however it ends."""
        assert self.path is not None
        if fcntl is None:
            return
        handle = os.open(self.path.parent / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise DataError(
                f"another run is writing to {str(self.path.parent)!r}: wait for it, or name another folder with --run"
            ) from None
        self._lock = handle

    def _read(self, print_: str) -> None:
        assert self.path is not None
        lines: list[Any] = []
        for line in self.path.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # the run was ended in the middle of writing: that picture is measured again
                break
        found = {line["picture"]: line["rows"] for line in lines[1:] if isinstance(line, dict) and line.keys() >= _KEYS}
        if lines and lines[0] == {"run": print_}:
            self.done = found
        elif found:
            self._release()
            raise DataError(
                f"{str(self.path)!r} holds {len(found)} pictures of a run with other settings, data or code: "
                "start anew with --fresh (fresh=True), or name another folder with --run"
            )

    def _rewrite(self, print_: str) -> None:
        """The file without what could not be read, put in place at once."""
        assert self.path is not None
        spare = self.path.with_suffix(".new")
        with spare.open("w") as file:
            file.write(_line({"run": print_}))
            for picture, rows in self.done.items():
                file.write(_line({"picture": picture, "rows": rows}))
        spare.replace(self.path)

    def _unwritable(self, error: OSError) -> DataError:
        self._release()
        assert self.path is not None
        return DataError(f"cannot keep the run in {str(self.path.parent)!r}: {error.strerror or error}")


_KEYS = {"picture", "rows"}


def _line(value: Any) -> str:
    return json.dumps(value) + "\n"
