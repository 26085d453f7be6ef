"""Compressed features, kept by the content of the picture: in memory, and on disk where wished.

Notable:
- the key is the picture's pixels with their size, the encoder, the projection and the mode: the same picture from a file, PIL
  or a tensor has the same key, and nothing that would change the features can be mistaken for something else;
- the least recently used go first, by bytes;
- a value is made once, however many threads ask for it at the same time;
- files are shared between processes: written aside and put in place at once, and believed only if their checksum is right;
- a disk that is full or cannot be written is said once, and then left alone: answers do not depend on it.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.embedding.disk import Disk
from arr_coc.errors import ArrCocError, whole_number

MEMORY = 256 << 20  # bytes
DISK = 4 << 30
PIXELS_AT_ONCE = 1 << 16
ROUNDING = 1e-7  # a GPU divides by 255 through a multiplication, which is not the CPU's to the last bit


class CacheWarning(UserWarning):
    """Something about the cache on disk that costs time but no answers."""


@dataclass(frozen=True)
class Counts:
    """How often a cache was asked, and what it could say."""

    memory: int = 0  # found in memory, or made by another thread at that moment
    disk: int = 0  # found on disk
    made: int = 0  # had to be made
    damaged: int = 0  # files that were wrong and thrown away


class EmbeddingCache:
    """Features by key, least recently used first to go; `folder` keeps them on disk as well.

    >>> cache = EmbeddingCache(memory=1 << 20)
    >>> cache.get("key", lambda: torch.zeros(16, 14, 14)).shape
    torch.Size([16, 14, 14])
    >>> cache.get("key", lambda: 1 / 0).shape, cache.counts.memory
    (torch.Size([16, 14, 14]), 1)
    """

    def __init__(self, memory: int = MEMORY, folder: str | Path | None = None, disk: int = DISK) -> None:
        """`memory` and `disk`: bytes, at most; 0 keeps nothing there."""
        for name, value in (("memory", memory), ("disk", disk)):
            if whole_number(value, least=0) is None:
                raise ArrCocError(f"expected {name} as a number of bytes, at least 0, got {value!r}")
        self.memory = memory
        self._disk = None if folder is None or disk == 0 else Disk(Path(folder), disk)
        self._start()

    def _start(self) -> None:
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._bytes = 0
        self._counts = Counts()
        self._lock = threading.Lock()
        self._making: dict[str, Future[torch.Tensor]] = {}

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def bytes(self) -> int:
        """Held in memory now."""
        return self._bytes

    @property
    def on_disk(self) -> bool:
        """Whether features are (still) kept on disk."""
        return self._disk is not None

    def __len__(self) -> int:
        """Entries in memory."""
        return len(self._kept)

    def get(self, key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The features under `key`, a copy of one's own; made if they are nowhere."""
        with self._lock:
            found = self._kept.get(key)
            under_way = self._making.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            elif under_way is None:
                mine = self._making[key] = Future()
            if found is not None or under_way is not None:
                self._counts = replace(self._counts, memory=self._counts.memory + 1)
        if found is not None:
            return found.clone()
        if under_way is not None:  # another thread is at it
            return under_way.result().clone()
        try:
            found = self._find(key, make)
            mine.set_result(found)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                self._making.pop(key, None)
        return found.clone()

    def _find(self, key: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """From disk or made; remembered."""
        found = self._from_disk(key)
        if found is None:
            found = make().detach().cpu().clone()  # not a view that keeps something larger alive
            self._count("made")
            self._to_disk(key, found)
        self._remember(key, found)
        return found

    def clear(self) -> None:
        """Forget what is in memory; files stay."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _remember(self, key: str, value: torch.Tensor) -> None:
        size = value.nelement() * value.element_size()
        with self._lock:
            if size > self.memory:
                return
            old = self._kept.pop(key, None)
            self._bytes += size - (0 if old is None else old.nelement() * old.element_size())
            self._kept[key] = value
            while self._bytes > self.memory:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.nelement() * gone.element_size()

    def _from_disk(self, key: str) -> torch.Tensor | None:
        disk = self._disk
        if disk is None:
            return None
        try:
            found, damage = disk.read(key)
        except OSError as error:
            self._leave(error)
            return None
        if damage:
            self._count("damaged")
            warnings.warn(
                f"the cache file {damage!r} was damaged: it is thrown away and made anew", CacheWarning, stacklevel=4
            )
        if found is not None:
            self._count("disk")
        return found

    def _to_disk(self, key: str, value: torch.Tensor) -> None:
        disk = self._disk
        if disk is not None:
            try:
                disk.write(key, value)
            except OSError as error:
                self._leave(error)

    def _leave(self, error: OSError) -> None:
        """The disk cannot be used: say so once, go on without."""
        with self._lock:
            disk, self._disk = self._disk, None
        if disk is not None:
            warnings.warn(
                f"features are not kept on disk any more: {str(disk.folder)!r}: {error.strerror or error}",
                CacheWarning,
                stacklevel=5,
            )

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{what: getattr(self._counts, what) + 1})

    def __getstate__(self) -> dict[str, Any]:
        """Another process gets the same bounds and folder, and an empty memory."""
        return {"memory": self.memory, "_disk": self._disk}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


def content_key(pixels: torch.Tensor, *settings: str) -> str:
    """A picture `[3, H, W]` in [0, 1] and settings as 64 hexadecimal digits.

    Pixels that are whole 255ths to rounding, as in every 8-bit image, are taken as such: four times fewer bytes, and the
    same key on every device.
    """
    plain = pixels.detach().to(device="cpu", dtype=torch.float32).contiguous().view(-1).numpy()
    head = repr((tuple(pixels.shape), *settings)).encode()
    digest = hashlib.sha256(b"bytes" + head)
    scaled, back, whole = (
        np.empty(min(PIXELS_AT_ONCE, len(plain)), kind) for kind in (np.float32, np.float32, np.uint8)
    )
    for start in range(0, len(plain), PIXELS_AT_ONCE):  # in portions that stay near the processor
        part = plain[start : start + PIXELS_AT_ONCE]
        count = len(part)
        np.rint(np.multiply(part, np.float32(255), out=scaled[:count]), out=scaled[:count])
        np.subtract(np.divide(scaled[:count], np.float32(255), out=back[:count]), part, out=back[:count])
        if np.abs(back[:count], out=back[:count]).max() > ROUNDING:
            return hashlib.sha256(b"floats" + head + plain.tobytes()).hexdigest()
        whole[:count] = scaled[:count]
        digest.update(whole[:count].data)
    return digest.hexdigest()
