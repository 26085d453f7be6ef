"""Fonts and the canvas: fonts without letters are left out, and a line's box holds its ink."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from arr_coc.errors import ArrCocError
from arr_coc.training.documents import page as page_module
from arr_coc.training.documents.page import (
    BUNDLED_FONTS,
    FontSet,
    Page,
    bundled_fonts,
    has_letters,
    load_font,
    machine_fonts,
)

MATPLOTLIB = Path(matplotlib.get_data_path(), "fonts", "ttf")


def test_bundled_fonts_are_small_free_and_have_every_character() -> None:
    fonts = bundled_fonts()
    assert len(fonts.paths) == len(list(BUNDLED_FONTS.glob("*.ttf"))) == 12
    assert {Path(path).stem for path in fonts.monospaced} == {"Cousine-Regular", "Cousine-Bold"}
    assert sum(Path(path).stat().st_size for path in fonts.paths) < 200_000
    assert "SIL OPEN FONT LICENSE" in (BUNDLED_FONTS / "OFL.txt").read_text()
    assert Path(fonts.heavier(str(BUNDLED_FONTS / "Tinos-Regular.ttf"))).stem == "Tinos-Bold"


def test_fonts_without_letters_are_left_out(tmp_path: Path) -> None:
    symbols, letters = str(MATPLOTLIB / "DejaVuSansDisplay.ttf"), str(MATPLOTLIB / "DejaVuSans.ttf")
    assert FontSet.from_paths([symbols, letters]).paths == (letters,)
    with pytest.raises(
        ArrCocError, match=r"expected a font with Latin letters and digits, got .*DejaVuSansDisplay.ttf"
    ):
        FontSet.from_paths([symbols])
    broken = tmp_path / "broken.ttf"
    broken.write_text("no font")
    assert not has_letters(str(broken))


def test_fonts_of_the_machine_are_added_once_for_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf", "DejaVuSansDisplay.ttf"):
        (tmp_path / name).write_bytes((MATPLOTLIB / name).read_bytes())
    (tmp_path / "Arimo-Regular.ttf").write_bytes((MATPLOTLIB / "DejaVuSans.ttf").read_bytes())  # a family that ships
    (tmp_path / "notes.ttf").write_text("no font")
    monkeypatch.setattr(page_module, "_font_folders", lambda: [tmp_path, tmp_path / "none"])
    machine_fonts.cache_clear()
    try:
        found = machine_fonts().paths
    finally:
        machine_fonts.cache_clear()
    assert found[:12] == bundled_fonts().paths
    assert [Path(path).name for path in found[12:]] == ["DejaVuSans-Bold.ttf", "DejaVuSans.ttf"]


@pytest.mark.parametrize("path", bundled_fonts().paths, ids=lambda path: Path(path).stem)
def test_a_box_holds_the_ink_of_letters_and_digits(path: str) -> None:
    """Up to a pixel, which antialiasing may take; brackets and slashes reach lower in some fonts."""
    words = "Total 48.20 EUR, GmbH & Q7 jpgqy WMif"
    for size in (9, 14, 32):
        page = Page(1400, 200, 255)
        line = page.lines[page.write(40, 60, words, load_font(path, size), 0)]
        rows, columns = np.nonzero(np.asarray(page.image) < 128)
        left, top, right, bottom = line.box
        assert left - 1 <= columns.min()
        assert columns.max() <= right + 1
        assert top - 1 - 0.12 * size <= rows.min()  # ascenders of small letters
        assert rows.max() <= bottom + 1
        assert (np.diff(line.middles) > 0).all()


def test_lines_that_run_off_the_page_are_not_asked_for() -> None:
    from arr_coc.training.documents.page import PageQuestion

    page = Page(200, 100, 255)
    font = load_font(bundled_fonts().paths[0], 20)
    inside, outside = page.write(5, 5, "in", font, 0), page.write(180, 40, "far outside", font, 0)
    document = page.document([PageQuestion("sign", "a?", "in", (inside,)), PageQuestion("sign", "b?", "x", (outside,))])
    assert [question.text for question in document.questions] == ["a?"]
