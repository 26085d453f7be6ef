"""Fixtures for training tests: fonts, and one thread."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
import torch

from arr_coc.training.documents.page import FontSet


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Tiny networks do not gain from threads, and on a busy machine they lose a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fonts() -> FontSet:
    """The DejaVu fonts that matplotlib brings: the same on every machine."""
    return FontSet.from_paths(sorted(map(str, Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf"))))
