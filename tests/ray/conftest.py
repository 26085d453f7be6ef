"""A local cluster with room for two workers. Without ray these tests are skipped: `make test-ray` installs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arr_coc.ray.workers import STORE


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed: make test-ray")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=STORE, log_to_driver=False)
    yield ray
    ray.shutdown()
