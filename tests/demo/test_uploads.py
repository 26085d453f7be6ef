"""What is sent is looked at before it is taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.demo.limits import Limits
from arr_coc.demo.uploads import read_upload
from arr_coc.errors import ArrCocError, ImageError


def sent(folder: Path, name: str, data: bytes | Image.Image, **options: object) -> Path:
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        data.save(path, **options)
    return path


def test_a_picture_is_taken_upright_and_over_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = read_upload(
        sent(tmp_path, "a.jpg", Image.new("RGB", (30, 20)), exif=exif), "photo.jpg", tmp_path, Limits()
    )
    assert (turned.name, turned.image.size, turned.image.mode) == ("photo.jpg", (20, 30), "RGB")
    clear = read_upload(sent(tmp_path, "b.png", Image.new("RGBA", (4, 4))), "b.png", tmp_path, Limits())
    assert clear.image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"Dear reader", "not an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 60, "is corrupt or truncated|not an image"),
        (Image.new("1", (10_000, 10_000)), "10000 x 10000 pixels, and at most 40 megapixels"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    ],
)
def test_what_is_not_taken(tmp_path: Path, data: bytes | Image.Image, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        read_upload(sent(tmp_path, "a.png", data), "a.png", tmp_path, Limits())


def test_a_truncated_picture(tmp_path: Path) -> None:
    whole = sent(tmp_path, "a.png", Image.effect_noise((200, 200), 50)).read_bytes()
    with pytest.raises(ImageError, match="truncated"):
        read_upload(sent(tmp_path, "a.png", whole[: len(whole) // 2]), "a.png", tmp_path, Limits())


def test_too_large_a_file(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"has 0\.2 MB, and at most 0\.1 MB"):
        read_upload(sent(tmp_path, "a.png", b"x" * 200_000), "a.png", tmp_path, Limits(megabytes=0.1))


def test_only_files_of_the_upload_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    outside = sent(tmp_path, "a.png", Image.new("RGB", (4, 4)))
    (tmp_path / "in" / "link.png").symlink_to(outside)
    for path in (outside, tmp_path / "in" / ".." / "a.png", tmp_path / "in" / "link.png"):
        with pytest.raises(ImageError, match="from elsewhere"):
            read_upload(path, "a.png", tmp_path / "in", Limits())
    with pytest.raises(ImageError, match="did not arrive"):
        read_upload(tmp_path / "in" / "gone.png", "a.png", tmp_path / "in", Limits())


def test_limits_are_above_nothing() -> None:
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ArrCocError, match="megabytes above 0"):
            Limits(megabytes=wrong)


def test_deep_pictures_keep_their_tones(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    read = np.asarray(read_upload(tmp_path / "deep.png", "deep.png", tmp_path, Limits()).image)[..., 0]
    assert abs(int(read[32, 0]) - 128) <= 2


def test_programs_are_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "page.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(ImageError, match="not an image that can be read"):
        read_upload(tmp_path / "page.eps", "page.eps", tmp_path, Limits())


def test_a_picture_outlives_its_file(tmp_path: Path) -> None:
    path = sent(tmp_path, "a.jpg", Image.new("RGB", (30, 20), "red"))
    image = read_upload(path, "a.jpg", tmp_path, Limits()).image
    path.unlink()
    assert image.getpixel((3, 3))[0] > 250
