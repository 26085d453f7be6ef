"""A wrapped tiny model of each Qwen family."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters import families
from tests.adapters.tiny_vlm import wrapped


@pytest.fixture(params=families.QWEN)
def vlm(request: Any) -> Any:
    return wrapped(request.param)
