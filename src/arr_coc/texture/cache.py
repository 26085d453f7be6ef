"""A cache of computed values that tracks which supplied maps each value depends on.

While a value is computed, every map it reads is recorded. A new map then invalidates exactly the values that depend on it,
and a channel that needs itself raises an error instead of recursing. One thread computes at a time; the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from arr_coc.devices import tensors
from arr_coc.errors import ChannelError
from arr_coc.texture.pooling import Pyramid

T = TypeVar("T")
Key = tuple[str, str]  # kind of value, name


class ChannelCache:
    """Values by key, each with the supplied maps it depends on."""

    def __init__(self) -> None:
        self._values: dict[Key, Any] = {}
        self._needs: dict[Key, frozenset[str]] = {}
        self._stack: list[
            tuple[Key, set[str]]
        ] = []  # values being computed, innermost last, each with the maps it has read so far
        self._lock = threading.RLock()

    def once(self, key: Key, make: Callable[[], T]) -> T:
        """The value under `key`, computed on first use."""
        with self._lock:
            if key not in self._values:
                pending = [key for key, _ in self._stack]
                if key in pending:
                    chain = " -> ".join(name for _, name in [*pending, key])
                    raise ChannelError(f"channel {key[1]!r} needs itself: {chain}")
                self._stack.append((key, set()))
                try:
                    self._values[key] = make()
                    self._needs[key] = frozenset(self._stack[-1][1])
                finally:
                    self._stack.pop()
            self.add_dependency(self._needs[key])
            value: T = self._values[key]
            return value

    @property
    def nbytes(self) -> int:
        """Bytes of all cached tensors, each counted once."""
        with self._lock:
            held = [one.levels if isinstance(one, Pyramid) else one for one in self._values.values()]
        return sum({one.data_ptr(): one.nbytes for one in tensors(held)}.values())

    def add_dependency(self, maps: Iterable[str]) -> None:
        """Record that the value being computed, if any, depends on these maps."""
        if self._stack:
            self._stack[-1][1].update(maps)

    def without(self, maps: Iterable[str]) -> ChannelCache:
        """A copy with only the values that do not depend on any of `maps`."""
        changed = set(maps)
        kept = ChannelCache()
        with self._lock:
            for key, needs in self._needs.items():
                if not needs & changed:
                    kept._values[key], kept._needs[key] = self._values[key], needs
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """A lock cannot be pickled or copied; the copy gets its own."""
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
