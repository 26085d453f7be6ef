"""Uploads are checked before they are decoded; folders are opened below the root only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arr_coc.demo.inputs import bundled_examples, find_reports, read_examples, read_upload, resolve_folder
from arr_coc.demo.limits import Limits
from arr_coc.errors import ArrCocError, ImageError


def write(folder: Path, name: str, data: bytes | Image.Image, **options: object) -> Path:
    path = folder / name
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        data.save(path, **options)
    return path


def test_an_upload_is_turned_upright_and_laid_over_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = read_upload(
        write(tmp_path, "a.jpg", Image.new("RGB", (30, 20)), exif=exif), "photo.jpg", tmp_path, Limits()
    )
    assert (turned.name, turned.image.size, turned.image.mode) == ("photo.jpg", (20, 30), "RGB")
    clear = read_upload(write(tmp_path, "b.png", Image.new("RGBA", (4, 4))), "b.png", tmp_path, Limits())
    assert clear.image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"Dear reader", "not an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 60, "is corrupt or truncated|not an image"),
        (Image.new("1", (10_000, 10_000)), "at most 40 megapixels, got .* with 10000 x 10000 pixels"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    ],
)
def test_an_unusable_upload_raises(tmp_path: Path, data: bytes | Image.Image, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_upload(write(tmp_path, "a.png", data), "a.png", tmp_path, Limits())


def test_a_truncated_image_raises(tmp_path: Path) -> None:
    whole = write(tmp_path, "a.png", Image.effect_noise((200, 200), 50)).read_bytes()
    with pytest.raises(ImageError, match="truncated"):
        read_upload(write(tmp_path, "a.png", whole[: len(whole) // 2]), "a.png", tmp_path, Limits())


def test_a_file_over_the_limit_raises(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"at most 0\.1 MB, got 'a.png' with 0\.2 MB"):
        read_upload(write(tmp_path, "a.png", b"x" * 200_000), "a.png", tmp_path, Limits(megabytes=0.1))


def test_only_files_of_the_upload_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    outside = write(tmp_path, "a.png", Image.new("RGB", (4, 4)))
    (tmp_path / "in" / "link.png").symlink_to(outside)
    for path in (outside, tmp_path / "in" / ".." / "a.png", tmp_path / "in" / "link.png"):
        with pytest.raises(ImageError, match="from another folder"):
            read_upload(path, "a.png", tmp_path / "in", Limits())
    with pytest.raises(ImageError, match="did not arrive"):
        read_upload(tmp_path / "in" / "gone.png", "a.png", tmp_path / "in", Limits())


def test_limits_must_be_positive_and_finite() -> None:
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ArrCocError, match="megabytes above 0"):
            Limits(megabytes=wrong)


def test_16_bit_images_keep_their_tones(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    read = np.asarray(read_upload(tmp_path / "deep.png", "deep.png", tmp_path, Limits()).image)[..., 0]
    assert abs(int(read[32, 0]) - 128) <= 2


def test_postscript_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(ImageError, match="not an image that can be read"):
        read_upload(tmp_path / "page.eps", "page.eps", tmp_path, Limits())


def test_an_upload_does_not_need_its_file_any_more(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jpg", Image.new("RGB", (30, 20), "red"))
    image = read_upload(path, "a.jpg", tmp_path, Limits()).image
    path.unlink()
    assert image.getpixel((3, 3))[0] > 250


def test_annotated_images_become_examples(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "white").save(tmp_path / "a.png")
    lines = [
        {"image": "a.png", "question": "Who?", "evidence": [[[1, 2, 9, 9]]]},
        {"image": "gone.png", "question": "What?"},
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, problems = read_examples(tmp_path)
    (example,) = found.values()
    assert example.name == f"{tmp_path.name}/a.png"
    assert example.load().size == (40, 30)
    assert example.evidence("Who?") == (((1, 2, 9, 9),),)
    assert example.evidence("What?") == ()
    assert any("gone.png" in line for line in problems)
    assert [one.load().mode for one in bundled_examples().values()] == ["RGB", "RGB"]


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "runs/none", "a" * 5000, "a\0b"])
def test_only_folders_below_the_root_are_opened(files: Path, name: str) -> None:
    with pytest.raises(ArrCocError, match="below the folder that --files names"):
        resolve_folder(files, name, "a folder")


def test_reports_are_found(files: Path) -> None:
    assert find_reports(files) == ["runs/first", "runs/second"]
