"""Fonts for rendering in tests: a folder named by ARR_COC_FONTS, else those that Pillow or the system brings."""

import os
from pathlib import Path

import pytest

from arr_coc.training.documents.fonts import FontShelf

_FOLDERS = ("/usr/share/fonts/truetype/dejavu", "/usr/share/fonts/truetype/liberation", "/usr/share/fonts/TTF")


@pytest.fixture(scope="session")
def fonts() -> FontShelf:
    for folder in (os.environ.get("ARR_COC_FONTS"), *_FOLDERS):
        if folder and any(Path(folder).glob("*.ttf")):
            return FontShelf.open(folder)
    pytest.skip("no fonts here: set ARR_COC_FONTS to a folder of .ttf files")
