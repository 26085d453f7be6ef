"""Arithmetic on an accelerator that can be compared with a CPU's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 as it is: no TF32 in convolutions, no attention kernel that rounds on the way."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
