"""Compressed features in files, one each, that several processes may share.

A file is believed only if it says the key it was asked by and the checksum of what it holds. The folder is kept below a
number of bytes, which several processes at once may pass for a moment: the files that were longest not asked for go first,
whoever wrote them.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from arr_coc.embedding import storage

ENDING = ".safetensors"
OURS = re.compile(rf"[0-9a-f]{{64}}{re.escape(ENDING)}({re.escape(storage.SPARE)}.*)?")  # whole files, and halves
ROOM = 0.9  # of the bytes allowed are left after tidying up
OFTEN = 0.05  # of the bytes allowed may be written before the folder is looked through again
ABANDONED = 3600.0  # seconds after which a half-written file is nobody's


class Disk:
    """Files under `folder`, `limit` bytes at most. Raises `OSError` where the disk does not do what it should."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._start()

    def _start(self) -> None:
        self._since = float("inf")  # bytes written since the folder was last looked through; the first time: now
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{ENDING}"

    def read(self, key: str) -> tuple[torch.Tensor | None, str]:
        """The features under `key`, or None; and the name of a damaged file that was thrown away."""
        path = self.path(key)
        try:
            tensors, note = storage.read(path)
            features = tensors["features"]
            if note.get("key") != key:
                raise storage.Damaged("it is another picture's")
        except FileNotFoundError:
            return None, ""
        except (storage.Damaged, KeyError):
            with suppress(FileNotFoundError):
                path.unlink()
            return None, str(path)
        with suppress(OSError):  # asked for just now; on a disk for reading only that cannot be noted
            os.utime(path)
        return features, ""

    def write(self, key: str, features: torch.Tensor) -> None:
        plain = features.cpu()
        if plain.nelement() * plain.element_size() > self.limit * ROOM:
            return
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        size = storage.write(path, {"features": plain}, {"key": key})
        with self._lock:
            self._since += size
            if self._since > OFTEN * self.limit:
                self._since = 0
                self._tidy(spare=path)

    def _tidy(self, spare: Path) -> None:
        """Throw the oldest files away until the rest fits; others may be doing the same."""
        files = []
        now = time.time()
        for path in self.folder.glob("??/*"):
            if not OURS.fullmatch(path.name) or path.name[:2] != path.parent.name:
                continue  # somebody else's, whatever it does here
            with suppress(FileNotFoundError):
                found = path.stat()
                if path.suffix == ENDING:
                    files.append((found.st_mtime_ns, found.st_size, path))
                elif now - found.st_mtime > ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        if total <= (1 - OFTEN) * self.limit:
            return
        for _, size, path in sorted(files):
            if total <= ROOM * self.limit:
                break
            if path != spare:
                with suppress(FileNotFoundError):
                    path.unlink()
                total -= size

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()
