"""Large images: decoded at reduced scale, regions cut out upright, and boxes mapped back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from arr_coc.errors import ImageError
from arr_coc.types.image import image_size
from arr_coc.types.pyramid import Pyramid, Region, View
from tests.vlm.page import printed, scenery


def mean_difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, float) - np.asarray(other, float)).mean())


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_jpeg_file_is_the_same_image_at_every_scale(tmp_path: Path, level: int) -> None:
    image = scenery(601, 803)
    image.save(tmp_path / "photo.jpg", quality=95)
    image.save(tmp_path / "photo.png")
    jpeg, plain = Pyramid(tmp_path / "photo.jpg"), Pyramid(tmp_path / "photo.png")
    assert jpeg.size == plain.size == (601, 803)
    assert jpeg.level(level).size == plain.level(level).size
    assert mean_difference(jpeg.level(level), plain.level(level)) < 2


def test_a_reduced_scale_does_not_decode_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenery(1600, 1200).save(tmp_path / "photo.jpg")
    decoded = []
    load = JpegImageFile.load
    monkeypatch.setattr(JpegImageFile, "load", lambda self: decoded.append(self.size) or load(self))
    Pyramid(tmp_path / "photo.jpg").level(2)
    assert set(decoded) == {(400, 300)}


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_orientation_is_applied_at_every_scale(tmp_path: Path, orientation: int) -> None:
    image, exif = scenery(640, 480), Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    pyramid = Pyramid(tmp_path / "photo.jpg")
    assert pyramid.size == ((480, 640) if orientation in (6, 8) else (640, 480))
    assert image_size(tmp_path / "photo.jpg") == pyramid.size
    upright = pyramid.level(0)
    assert mean_difference(pyramid.level(1), upright.reduce(2)) < 2


def test_sizes_without_decoding() -> None:
    assert image_size(np.zeros((4, 9, 3), np.uint8)) == image_size(torch.zeros(3, 4, 9)) == (9, 4)
    assert image_size(Image.new("L", (9, 4))) == (9, 4)
    assert image_size(torch.zeros(4, 9)) == (9, 4)
    assert image_size([1, 2]) is None


def test_a_broken_file_is_one_sentence(tmp_path: Path) -> None:
    scenery(300, 300).save(tmp_path / "photo.jpg")
    whole = (tmp_path / "photo.jpg").read_bytes()
    (tmp_path / "photo.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ImageError, match="corrupt or truncated"):
        Pyramid(tmp_path / "photo.jpg").level(1)
    with pytest.raises(ImageError, match="photo2"):
        Pyramid(tmp_path / "photo2.jpg")


QUAD = np.array([[220.0, 280.0], [430.0, 260.0], [460.0, 560.0], [190.0, 540.0]])


@pytest.mark.parametrize("angle", [0.0, -7.0, 12.5, 100.0, 180.0, "quad"])
def test_a_crop_shows_what_its_region_covers(angle: float | str) -> None:
    """Pixels of the crop, mapped back by the region, have the image's own colours."""
    image = scenery(600, 800)
    if isinstance(angle, str):
        region = Region.in_perspective(QUAD, image.size, (200.0, 280.0))
    else:
        region = Region((320.0, 410.0), (200.0, 280.0), angle, image.size)
    crop = np.asarray(Pyramid(image).crop(region, (100, 140)), float)
    for x, y in [(10, 12), (50, 70), (91, 130)]:
        box = torch.tensor([[2.0 * x, 2.0 * y, 2.0 * x + 2, 2.0 * y + 2]])
        at = region.corners(box)[0].mean(0)
        expected = np.asarray(image, float)[int(at[1]), int(at[0])]
        assert np.abs(crop[y, x] - expected).max() < 8
    back = region.place(region.corners(torch.tensor([[0.0, 0.0, 200.0, 280.0]]))[0])
    assert torch.allclose(back, torch.tensor([[0.0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64), atol=1e-5)


def test_a_part_of_a_region_lies_inside_it() -> None:
    whole = Region((300.0, 400.0), (200.0, 100.0), 10.0, (600, 800))
    part = whole.part(50, 20, 90, 80)
    assert part.size == (40, 60)
    assert part.angle == 10.0
    inside = whole.place(part.corners(torch.tensor([[0.0, 0.0, 40.0, 60.0]]))[0])
    assert torch.allclose(inside[0], torch.tensor([0.25, 0.2], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(inside[2], torch.tensor([0.45, 0.8], dtype=torch.float64), atol=1e-6)


def test_a_part_of_a_region_in_perspective_is_seen_from_the_same_place() -> None:
    whole = Region.in_perspective(QUAD, (600, 800), (200.0, 280.0))
    part = whole.part(50, 140, 150, 280)
    assert np.allclose(part.quad, whole.corners(torch.tensor([[50.0, 140, 150, 280]]))[0], atol=1e-3)
    middle = torch.tensor([[50.0, 70.0, 50.0, 70.0]])
    assert torch.allclose(part.corners(middle), whole.corners(middle + torch.tensor([50.0, 140, 50, 140])), atol=1e-3)
    larger = whole.resized((220.0, 300.0))
    assert torch.allclose(larger.corners(middle), whole.corners(middle - 10), atol=1e-3)
    assert "taken out of perspective" in whole.done


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_all_of_an_image_turned_is_exactly_that(angle: int) -> None:
    image = scenery(60, 80)
    region = Region.whole(image.size, angle)
    crop = Pyramid(image).crop(region, (round(region.size[0]), round(region.size[1])))
    assert np.array_equal(np.asarray(crop), np.rot90(np.asarray(image), angle // 90))
    corner = region.corners(torch.tensor([[0.0, 0.0, 1.0, 1.0]]))[0, 0].tolist()
    assert corner == pytest.approx({0: [0, 0], 90: [60, 0], 180: [60, 80], 270: [0, 80]}[angle], abs=1e-4)


def test_boxes_are_cut_at_the_image() -> None:
    region = Region((5.0, 5.0), (40.0, 40.0), 0.0, (30, 20))
    assert region.boxes(torch.tensor([[0.0, 0, 40, 40]])).tolist() == [[0, 0, 25, 20]]


def test_a_view_says_where_it_is_and_at_which_scale() -> None:
    image, _ = printed()
    view = View(Region((750.0, 1000.0), (500.0, 800.0), 3.0, image.size), (250, 400), "region", 0)
    assert view.scale == 0.5
    assert str(view) == "region: 500 x 800 px, turned by 3.0 degrees, shown at scale 0.50"


@pytest.mark.parametrize("quad", [False, True])
def test_a_rectangle_inside_a_turned_region_lies_where_it_is_shown(quad: bool) -> None:
    outer = Region((300.0, 200.0), (200.0, 100.0), 90.0, (600, 400))
    if quad:
        corners = outer.corners(torch.tensor([[0.0, 0.0, *outer.size]]))[0].numpy()
        outer = Region.in_perspective(corners, outer.original, outer.size)
    own = Region((120.0, 40.0), (60.0, 30.0), 20.0, (200, 100))
    found = outer.inside(own)
    box = torch.tensor([[0.0, 0.0, 60.0, 30.0]])
    through = torch.from_numpy(outer._to_image(own.corners(box)[0].numpy()))
    assert torch.allclose(found.corners(box)[0].double(), through, atol=1e-2)
    assert found.size == own.size
    assert found.angle == pytest.approx(110)
