"""Finished pictures of a run in a file, so that an interrupted run can continue.

The first line of the file identifies the run. A file of another run (other settings, data or code) is neither continued
nor overwritten, unless that is requested. A lock keeps other processes out of the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from arr_coc.errors import DataError
from arr_coc.files import replacing

try:
    import fcntl
except ImportError:  # pragma: no cover - not a Unix: no lock there
    fcntl = None  # type: ignore[assignment]

FILE, LOCK = "records.jsonl", "records.lock"


def cache_folder() -> Path:
    """The default place of unfinished runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arr-coc" / "eval"


def fingerprint(settings: Mapping[str, Any], sources: Iterable[str | Path] = ()) -> str:
    """A short hash of the settings and of all code: of the package and of `sources`."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    package = Path(__file__).parent.parent
    for path in [*sorted(package.rglob("*.py")), *map(Path, sorted({str(s) for s in sources if s}))]:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Records:
    """The finished pictures of one run; in memory only if there is no folder."""

    def __init__(self, folder: Path | None, mark: str, fresh: bool = False) -> None:
        self.path = None if folder is None else folder / FILE
        self.done: dict[str, list[dict[str, Any]]] = {}  # picture -> its rows
        self.resumed = 0
        self._made_folder = False
        self._lock: int | None = None
        if self.path is None:
            return
        with self._writing(self.path.parent):
            self._made_folder = not self.path.parent.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire(self.path.parent)
            if not fresh and self.path.is_file():
                self._read(self.path, mark)
            lines = [{"run": mark}, *({"picture": name, "rows": rows} for name, rows in self.done.items())]
            with replacing(self.path, only_writer=True) as temporary:  # without lines that could not be parsed
                temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.resumed = len(self.done)

    def add(self, picture: str, rows: list[dict[str, Any]]) -> None:
        self.done[picture] = rows
        if self.path is not None:
            with self._writing(self.path.parent), self.path.open("a") as file:
                file.write(json.dumps({"picture": picture, "rows": rows}) + "\n")

    def forget(self) -> None:
        """The run is complete: `close` deletes its file."""
        self.done = {}

    def close(self) -> None:
        """Unlock the folder. Without finished pictures, remove what this run created in it."""
        if self.path is None:
            return
        if not self.done:
            self.path.unlink(missing_ok=True)
            (self.path.parent / LOCK).unlink(missing_ok=True)
            if self._made_folder:
                with suppress(OSError):  # other files are in it by now
                    self.path.parent.rmdir()
        self._release()

    def _acquire(self, folder: Path) -> None:
        """Lock the folder until this process ends."""
        if fcntl is None:
            return
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another run is writing to {str(folder)!r}: wait for it, or name another folder with --run"
            ) from None

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self, path: Path, mark: str) -> None:
        lines: list[Any] = []
        for line in path.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # the run was killed while writing: that picture is measured again
                break
        valid = [line for line in lines[1:] if isinstance(line, dict) and line.keys() >= {"picture", "rows"}]
        if lines and lines[0] == {"run": mark}:
            self.done = {line["picture"]: line["rows"] for line in valid}
        elif valid:
            raise DataError(
                f"{str(path)!r} holds {len(valid)} pictures of a run with other settings, data or code: "
                "start again with --fresh (fresh=True), or name another folder with --run"
            )

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        """Unlock the folder if something in the block fails."""
        try:
            yield
        except OSError as error:
            self._release()
            raise DataError(f"cannot keep the run in {str(folder)!r}: {error.strerror or error}") from None
        except DataError:
            self._release()
            raise
