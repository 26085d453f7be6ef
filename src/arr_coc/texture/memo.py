"""Values made once and kept, each with the caller's maps that went into it.

While a value is being made, everything it asks for is noted, so that new maps make exactly the right values stale, and a
channel that needs itself is caught instead of recursing for ever. One thread makes values at a time; the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from arr_coc.devices import tensors
from arr_coc.errors import ChannelError
from arr_coc.texture.pyramid import Pyramid

T = TypeVar("T")
Key = tuple[str, str]  # what kind of value, and its name


class Memo:
    """A cache that knows what its values depend on."""

    def __init__(self) -> None:
        self._values: dict[Key, Any] = {}
        self._needs: dict[Key, frozenset[str]] = {}
        self._making: list[tuple[Key, set[str]]] = []  # innermost last, each with the maps it has read so far
        self._lock = threading.RLock()

    def once(self, key: Key, make: Callable[[], T]) -> T:
        """The value under `key`, made on first use."""
        with self._lock:
            if key not in self._values:
                under_way = [waiting for waiting, _ in self._making]
                if key in under_way:
                    chain = " -> ".join(name for _, name in [*under_way, key])
                    raise ChannelError(f"channel {key[1]!r} needs itself: {chain}")
                self._making.append((key, set()))
                try:
                    self._values[key] = make()
                    self._needs[key] = frozenset(self._making[-1][1])
                finally:
                    self._making.pop()
            self.note_reading(self._needs[key])
            value: T = self._values[key]
            return value

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that lie here, each counted once."""
        with self._lock:
            held = [one.levels if isinstance(one, Pyramid) else one for one in self._values.values()]
        return sum({one.data_ptr(): one.nbytes for one in tensors(held)}.values())

    def note_reading(self, maps: Iterable[str]) -> None:
        """The value under way, if any, has read these maps."""
        if self._making:
            self._making[-1][1].update(maps)

    def without(self, maps: Iterable[str]) -> Memo:
        """A copy that keeps only what does not depend on any of `maps`."""
        changed = set(maps)
        kept = Memo()
        with self._lock:
            for key, needs in self._needs.items():
                if not needs & changed:
                    kept._values[key], kept._needs[key] = self._values[key], needs
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Locks can be neither pickled nor copied; a copy gets its own."""
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
