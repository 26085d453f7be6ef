"""Pages of a few drawings for the universal recipe's tests."""

from pathlib import Path

import pytest

from arr_coc.training.documents.page import bundled_fonts
from recipes.reader.data import Library
from recipes.universal.draw import draw_shards
from tests.recipes.reader.conftest import receipts, receipts_folder

__all__ = ["receipts", "receipts_folder"]


@pytest.fixture(scope="package")
def library() -> Library:
    return Library.from_receipts(bundled_fonts(), [])


@pytest.fixture(scope="package")
def shards(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Path:
    """Eight pages in two shards."""
    folder = tmp_path_factory.mktemp("pages")
    draw_shards(folder, library, shards=2, size=4)
    return folder
