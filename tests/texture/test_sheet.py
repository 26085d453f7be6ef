"""The contact sheet: every channel is drawn and named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import ImageDraw

import arr_coc
from arr_coc import ArrCocError, TextureArray
from arr_coc.texture.sheet import FAMILY_COLOURS, paint

from ..conftest import noise


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All text that is drawn."""
    lines: list[str] = []
    real = ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, xy, text, *a, **k: (lines.append(text), real(self, xy, text, *a, **k))[1],
    )
    return lines


def test_every_channel_is_named_and_the_ranges_are_there(written: list[str]) -> None:
    texture = TextureArray.from_image(arr_coc.pictures.scene().resize((240, 160)))
    sheet = texture.sheet(title="A street")
    assert sheet.mode == "RGB"
    everything = "\n".join(written)
    assert "A street" in everything
    for name in texture.names:
        assert name in everything or (name.startswith("embedding_") and "embedding_00 .. 15" in everything)
    assert f"edges   0 .. {float(texture['edges'].max()):.3g}" in everything


def test_supplied_channels_get_a_tile(written: list[str]) -> None:
    texture = TextureArray.from_image(noise(40, 60)).supply(gaze=torch.rand(4, 6))
    texture.sheet()
    assert "gaze" in written


@pytest.mark.parametrize("size", [(1, 1), (3, 700), (700, 3), (64, 64)])
def test_a_sheet_of_any_shape_has_a_reasonable_size(size: tuple[int, int]) -> None:
    sheet = TextureArray.from_image(noise(*size)).sheet()
    assert 400 < sheet.width < 4000
    assert 400 < sheet.height < 4000


def test_every_family_has_its_colours() -> None:
    families = {channel.family for channel in arr_coc.all_channels()}
    assert families == set(FAMILY_COLOURS)


def test_zero_is_neutral_in_signed_channels() -> None:
    texture = TextureArray.from_image(noise(20, 20), layout=["sobel_x"])
    painted = paint(texture.channels[0], torch.tensor([[-0.5, 0.0, 0.2]]))
    assert np.abs(painted[0, 1].astype(int) - [244, 242, 238]).max() <= 2


def test_a_sheet_of_absent_channels_only(written: list[str]) -> None:
    TextureArray.from_image(noise(20, 20), layout=["gaze"]).sheet()
    assert any("gaze" in line for line in written)


def test_a_long_title_is_shrunk_to_the_page(written: list[str]) -> None:
    sheet = TextureArray.from_image(noise(20, 20), layout=["red"]).sheet(title="a rather long title " * 4)
    assert sheet.width < 700
    assert "a rather long title " * 4 in written


def test_options_are_checked() -> None:
    texture = TextureArray.from_image(noise(20, 20))
    with pytest.raises(ArrCocError, match="at least 32"):
        texture.sheet(tile=4)
    for columns in (0, 2.5):
        with pytest.raises(ArrCocError, match="one column"):
            texture.sheet(columns=columns)
    assert texture.sheet(columns=2).width < texture.sheet(columns=6).width
