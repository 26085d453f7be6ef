"""Memory that is free goes back to the machine: many threads that each handle megabytes of pictures would keep it otherwise.

The C library is asked for that where it is glibc; elsewhere there is nothing to ask for.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any

M_ARENA_MAX, POOLS = -8, 2  # mallopt's name for how many pools of memory there may be, and how many there are to be
EVERY = 16  # requests between two times that free memory is given back

_count = itertools.count(1)


def few_pools() -> None:
    """Before threads start: each would have a pool of its own."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(M_ARENA_MAX, POOLS)


def give_back() -> bool:
    """After a request: every so often, what is free is given back; says whether it was."""
    libc = _glibc()
    if libc is None or next(_count) % EVERY:
        return False
    libc.malloc_trim(0)
    return True


def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
