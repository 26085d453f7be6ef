"""A block in which the host may not wait for the GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_waits() -> Iterator[None]:
    """Inside, a synchronisation raises. The mode ends with the block, whatever happens: it is one for the whole process."""
    torch.cuda.synchronize()
    try:
        _set_mode("error")
        yield
    finally:
        _set_mode("default")


def _set_mode(mode: str) -> None:
    """Torch warns that the mode is a prototype, after it was set: an error where warnings are errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
