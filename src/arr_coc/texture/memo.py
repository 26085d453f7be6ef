"""Values made once and kept, each with the caller's maps that went into it.

While a value is being made, everything it asks for is noted, so that new maps make exactly the right values stale, and a
channel that needs itself is caught instead of recursing for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from arr_coc.errors import ChannelError

T = TypeVar("T")


class Memo:
    """A cache that knows what its values depend on."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._needs: dict[str, frozenset[str]] = {}
        self._making: list[tuple[str, set[str]]] = []  # innermost last, each with the maps it has read so far

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The value under `key`, made on first use."""
        if key not in self._values:
            under_way = [name for name, _ in self._making]
            if key in under_way:
                raise ChannelError(f"channel {key!r} needs itself: {' -> '.join([*under_way, key])}")
            self._making.append((key, set()))
            try:
                self._values[key] = make()
                self._needs[key] = frozenset(self._making[-1][1])
            finally:
                self._making.pop()
        self.note_reading(self._needs[key])
        value: T = self._values[key]
        return value

    def note_reading(self, maps: Iterable[str]) -> None:
        """The value under way, if any, has read these maps."""
        if self._making:
            self._making[-1][1].update(maps)

    def without(self, maps: Iterable[str]) -> Memo:
        """A copy that keeps only what does not depend on any of `maps`."""
        changed = set(maps)
        kept = Memo()
        for key, needs in self._needs.items():
            if not needs & changed:
                kept._values[key], kept._needs[key] = self._values[key], needs
        return kept
