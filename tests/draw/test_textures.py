"""Generated textures: the same on every machine, of any size, and without content."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc import pictures
from arr_coc.draw.textures import TEXTURES, draw_texture, scramble
from arr_coc.errors import ArrCocError


@pytest.mark.parametrize("kind", sorted(TEXTURES))
def test_a_texture_is_reproducible_and_its_variants_differ(kind: str) -> None:
    first, again, other = (np.asarray(draw_texture(kind, variant, (90, 60))) for variant in (3, 3, 4))
    assert first.shape == (60, 90, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_scrambling_keeps_colours_and_contrast_and_moves_everything() -> None:
    picture = pictures.scene()
    before, after = np.asarray(picture, np.float64), np.asarray(scramble(picture), np.float64)
    assert after.shape == before.shape
    np.testing.assert_allclose(after.mean((0, 1)), before.mean((0, 1)), atol=12)
    assert after.std() == pytest.approx(before.std(), rel=0.3)
    assert abs(np.corrcoef(before.mean(-1).ravel(), after.mean(-1).ravel())[0, 1]) < 0.3


def test_an_unknown_texture_is_named() -> None:
    with pytest.raises(ArrCocError, match="expected a texture among noise"):
        draw_texture("lace")
