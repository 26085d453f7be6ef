"""An LRU cache of compressed features, in memory and optionally on disk, keyed by image content.

- The key covers the pixels, their size, the encoder, the projection and the mode, so a file, a PIL image and a tensor
  of the same image share an entry, and anything that changes the features changes the key.
- A value is computed once, however many threads request it at the same time.
- Files may be shared between processes. A file is used only if its key and its checksum are right; nothing is pickled.
- If the disk is full or read-only, the cache warns once and stops using it. Answers do not depend on it.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.embedding import storage
from arr_coc.errors import ArrCocError, whole_number
from arr_coc.files import TEMPORARY

MEMORY = 256 << 20  # bytes
DISK = 4 << 30
SUFFIX = ".safetensors"
OWN_FILES = re.compile(rf"[0-9a-f]{{64}}{re.escape(SUFFIX)}({re.escape(TEMPORARY)}.*)?")
EVICT_TO = 0.9  # share of the disk limit that remains in use after evicting
EVICT_EVERY = 0.05  # share of the disk limit that may be written between two scans of the folder
ABANDONED = 3600.0  # seconds after which a temporary file is deleted
PIXELS_PER_CHUNK = 1 << 16  # stays in the CPU's cache
ROUNDING = 1e-7  # a GPU divides by 255 with a multiplication, which differs from the CPU in the last bit


class CacheWarning(UserWarning):
    """A problem with the disk cache that costs time but changes no answer."""


@dataclass(frozen=True)
class CacheCounts:
    """Where requested values came from."""

    memory: int = 0  # in memory, or computed by another thread at that moment
    disk: int = 0
    made: int = 0  # computed
    damaged: int = 0  # files that were deleted because they were not valid


class EmbeddingCache:
    """Features by key; the least recently used are evicted first. With `folder`, they are kept on disk as well.

    >>> cache = EmbeddingCache(memory=1 << 20)
    >>> cache.get("key", lambda: torch.zeros(16, 14, 14)).shape
    torch.Size([16, 14, 14])
    >>> cache.get("key", lambda: 1 / 0).shape, cache.counts.memory
    (torch.Size([16, 14, 14]), 1)
    """

    def __init__(self, memory: int = MEMORY, folder: str | Path | None = None, disk: int = DISK) -> None:
        """`memory` and `disk` are limits in bytes; 0 keeps nothing there."""
        for name, value in (("memory", memory), ("disk", disk)):
            if whole_number(value, least=0) is None:
                raise ArrCocError(f"expected {name} as a number of bytes, at least 0, got {value!r}")
        self.memory = memory
        self._disk = None if folder is None or disk == 0 else DiskCache(Path(folder), disk)
        self._entries: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pending: dict[str, Future[torch.Tensor]] = {}

    @property
    def counts(self) -> CacheCounts:
        return CacheCounts(**self._counts)

    @property
    def bytes(self) -> int:
        """Bytes in memory now."""
        return self._bytes

    @property
    def on_disk(self) -> bool:
        """Whether features are (still) kept on disk."""
        return self._disk is not None

    def __len__(self) -> int:
        """Entries in memory."""
        return len(self._entries)

    def get(self, key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A copy of the features under `key`; `make` computes them if they are not cached."""
        with self._lock:
            value, pending = self._entries.get(key), self._pending.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            elif pending is None:
                own = self._pending[key] = Future()
            self._counts["memory"] += value is not None or pending is not None
        if value is None and pending is not None:  # another thread computes it
            value = pending.result()
        if value is None:
            try:
                value = self._load_or_make(key, make)
                own.set_result(value)
            except BaseException as error:
                own.set_exception(error)
                raise
            finally:
                with self._lock:
                    self._pending.pop(key, None)
        return value.clone()

    def clear(self) -> None:
        """Empty the memory; files stay."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def _load_or_make(self, key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        value, damaged = self._use_disk(lambda disk: disk.read(key)) or (None, "")
        if damaged:
            warnings.warn(f"the cache file {damaged!r} was damaged: it is computed again", CacheWarning, stacklevel=4)
        source = "made" if value is None else "disk"
        if value is None:
            value = made = make().detach().cpu().clone()  # a view would keep its base alive
            self._use_disk(lambda disk: disk.write(key, made))
        with self._lock:
            self._counts.update({source: 1, "damaged": int(bool(damaged))})
            if value.nbytes <= self.memory:
                self._entries[key] = value
                self._bytes += value.nbytes
                while self._bytes > self.memory:
                    self._bytes -= self._entries.popitem(last=False)[1].nbytes
        return value

    def _use_disk(self, action: Callable[[DiskCache], Any]) -> Any:
        """The action's result; None without a disk. An unusable disk is reported once and not used again."""
        disk = self._disk
        if disk is None:
            return None
        try:
            return action(disk)
        except OSError as error:
            with self._lock:
                first, self._disk = self._disk is not None, None
            if first:
                why = f"features are not kept on disk any more: {str(disk.folder)!r}: {error.strerror or error}"
                warnings.warn(why, CacheWarning, stacklevel=5)
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the same limits and folder, and an empty memory."""
        disk = self._disk
        return type(self), (self.memory, *((None, 0) if disk is None else (disk.folder, disk.limit)))


class DiskCache:
    """One file per entry under `folder`, at most `limit` bytes. Raises `OSError` if the disk fails.

    The least recently used files are evicted first, whichever process wrote them. Several processes that write at the
    same time may exceed the limit for a moment.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._written = float("inf")  # bytes since the last scan; the first write scans
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{SUFFIX}"

    def read(self, key: str) -> tuple[torch.Tensor | None, str]:
        """The features under `key`, or None; and the name of a damaged file that was deleted."""
        path = self.path(key)
        try:
            tensors, note = storage.read(path)
            if note.get("key") != key:
                raise storage.DamagedFileError("it has another key")
            features = tensors["features"]
        except FileNotFoundError:
            return None, ""
        except (storage.DamagedFileError, KeyError):
            path.unlink(missing_ok=True)
            return None, str(path)
        with suppress(OSError):  # on a read-only disk the time of use cannot be updated
            os.utime(path)
        return features, ""

    def write(self, key: str, features: torch.Tensor) -> None:
        if features.nbytes > self.limit * EVICT_TO:
            return
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        size = storage.write(path, {"features": features}, {"key": key})
        with self._lock:
            self._written += size
            if self._written > EVICT_EVERY * self.limit:
                self._written = 0
                self._evict(keep=path)

    def _evict(self, keep: Path) -> None:
        """Delete the oldest files until the rest fits. Other processes may do the same; other files are not touched."""
        files = []
        for path in self.folder.glob("??/*"):
            if not OWN_FILES.fullmatch(path.name) or path.name[:2] != path.parent.name:
                continue
            with suppress(FileNotFoundError):
                found = path.stat()
                if path.suffix == SUFFIX:
                    files.append((found.st_mtime_ns, found.st_size, path))
                elif time.time() - found.st_mtime > ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        if total <= (1 - EVICT_EVERY) * self.limit:
            return
        for _, size, path in sorted(files):
            if total <= EVICT_TO * self.limit:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size


def content_key(pixels: torch.Tensor, *settings: str) -> str:
    """64 hexadecimal digits over an image `[3, H, W]` in [0, 1] and settings.

    Pixels that are multiples of 1/255 up to rounding, as in every 8-bit image, are hashed as bytes: a quarter of the
    data, and the same key on every device.
    """
    plain = pixels.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1).numpy()
    head = repr((tuple(pixels.shape), *settings)).encode()
    digest = hashlib.sha256(b"bytes" + head)
    for start in range(0, len(plain), PIXELS_PER_CHUNK):
        chunk = plain[start : start + PIXELS_PER_CHUNK]
        scaled = np.rint(chunk * np.float32(255))
        if np.abs(scaled / np.float32(255) - chunk).max() > ROUNDING:
            return hashlib.sha256(b"floats" + head + plain.tobytes()).hexdigest()
        digest.update(scaled.astype(np.uint8).data)
    return digest.hexdigest()
