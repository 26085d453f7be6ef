"""Every kind of image, good and bad, through the front door."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc import ImageError, TextureArray
from arr_coc.types.image import read_picture

RNG = np.random.default_rng(0)


def rgb(height: int = 20, width: int = 30) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_file_pil_numpy_and_torch_give_the_same_pixels(tmp_path: Path) -> None:
    array = rgb(90, 140)
    Image.fromarray(array).save(tmp_path / "a.png")
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    kinds = [str(tmp_path / "a.png"), tmp_path / "a.png", Image.fromarray(array), array, tensor]
    for max_side in (None, 50):
        pictures = [read_picture(kind, max_side=max_side).pixels for kind in kinds]
        for other in pictures[1:]:
            assert torch.equal(pictures[0], other)


def test_uint8_is_divided_by_255() -> None:
    array = rgb()
    assert np.array_equal(read_picture(array).pixels.numpy(), np.moveaxis(array.astype(np.float32) / 255, -1, 0))


@pytest.mark.parametrize(
    "make", [lambda a: a, lambda a: a[..., None], lambda a: torch.from_numpy(a), lambda a: torch.from_numpy(a)[None]]
)
def test_gray_becomes_three_equal_channels(make) -> None:
    gray = rgb()[..., 0].copy()
    pixels = read_picture(make(gray)).pixels
    assert pixels.shape == (3, 20, 30)
    assert torch.equal(pixels[0], pixels[1])
    assert torch.equal(pixels[0], torch.from_numpy(gray) / 255)


def test_transparency_is_laid_over_white_before_scaling() -> None:
    rgba = np.zeros((40, 40, 4), np.uint8)  # black, fully transparent, with one opaque red half
    rgba[:, 20:] = (255, 0, 0, 255)
    picture = read_picture(Image.fromarray(rgba), max_side=10)
    assert picture.pixels[:, :, :4].min() == 1  # no black bleeds out from under the transparent half
    assert torch.equal(picture.pixels[:, 5, 8], torch.tensor([1.0, 0.0, 0.0]))
    assert "transparency blended with white" in picture.notes
    assert torch.equal(picture.pixels, read_picture(rgba, max_side=10).pixels)


@pytest.mark.parametrize("mode", ["P", "L", "1", "CMYK", "LA", "YCbCr", "HSV", "RGBa", "La"])
def test_other_pil_modes_are_converted(mode: str) -> None:
    plain = Image.fromarray(rgb())
    image = {"RGBa": plain.convert("RGBA"), "La": plain.convert("LA")}.get(mode, plain).convert(mode)
    back = (
        image.convert("LA").convert("RGB") if mode == "La" else image.convert("RGBA" if "A" in mode.upper() else "RGB")
    )
    expected = np.asarray(back)[..., :3]
    got = read_picture(image).pixels.permute(1, 2, 0).numpy()
    assert np.abs(got - expected / 255.0).max() < 1e-6


def test_palette_with_transparency() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 30, 60])
    image.info["transparency"] = 1
    assert torch.equal(read_picture(image).pixels, torch.ones(3, 8, 8))


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bit_gray_keeps_its_depth(tmp_path: Path, suffix: str) -> None:
    values = np.linspace(0, 65535, 600).reshape(20, 30).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / f"deep.{suffix}")
    picture = read_picture(tmp_path / f"deep.{suffix}")
    assert np.abs(picture.pixels[0].numpy() - values / 65535.0).max() < 1e-6
    assert any("16-bit" in note for note in picture.notes)
    assert torch.equal(read_picture(values).pixels, picture.pixels)


def test_float_tiff_in_range_is_taken_as_it_is() -> None:
    values = RNG.random((12, 9), dtype=np.float32)
    assert np.array_equal(read_picture(Image.fromarray(values)).pixels[0].numpy(), values)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    array = rgb(20, 30)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees clockwise
    Image.fromarray(array).save(tmp_path / "turned.png", exif=exif)
    picture = read_picture(tmp_path / "turned.png")
    assert picture.original_size == (30, 20)
    assert torch.equal(picture.pixels, read_picture(np.rot90(array, -1).copy()).pixels)
    assert any("EXIF" in note for note in picture.notes)


def test_an_animation_gives_its_first_frame_and_says_so(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (12, 10), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    picture = read_picture(tmp_path / "a.gif")
    assert picture.pixels[0].min() > 0.9
    assert picture.pixels[1:].max() < 0.1
    assert "animated: frame 1 of 3 is used" in picture.notes


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 20000), (20000, 3), (1, 700), (1024, 1024)])
def test_extreme_shapes_work(height: int, width: int) -> None:
    texture = TextureArray.from_image(np.full((height, width, 3), 128, np.uint8))
    assert max(texture.size) <= 1024
    assert min(texture.size) >= 1
    assert texture.original_size == (height, width)
    assert texture.grid(4, 4).isfinite().all()


def test_float_images_within_rounding_of_the_range_are_clamped() -> None:
    image = torch.rand(3, 8, 8)
    image[0, 0, 0], image[0, 0, 1] = 1.0005, -0.0005
    pixels = read_picture(image).pixels
    assert pixels.max() <= 1
    assert pixels.min() >= 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_float_dtypes(dtype: torch.dtype) -> None:
    image = torch.rand(3, 8, 8).to(dtype)
    assert torch.equal(read_picture(image).pixels, image.float())


def test_other_layouts_in_memory() -> None:
    array = RNG.random((8, 9, 3))
    expected = read_picture(array.astype(np.float32)).pixels
    for same in (
        array.astype(">f4"),
        array.astype(np.float32)[::-1][::-1],
        np.asfortranarray(array.astype(np.float32)),
    ):
        assert torch.equal(read_picture(same).pixels, expected)
    deep = torch.arange(60, dtype=torch.int32).view(6, 10).mul(1000).to(torch.uint16)
    assert torch.equal(read_picture(deep).pixels, read_picture(deep.numpy()).pixels)


@pytest.mark.parametrize("orientation", [0, 1, 9, 65535])
def test_an_orientation_that_turns_nothing_is_not_noted(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(rgb()).save(tmp_path / "plain.png", exif=exif)
    assert read_picture(tmp_path / "plain.png").notes == ()


def test_bool_image() -> None:
    mask = RNG.random((8, 9)) > 0.5
    assert np.array_equal(read_picture(mask).pixels[0].numpy(), mask.astype(np.float32))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((3, 40, 50), np.uint8), "channels-first"),
        (torch.zeros(40, 50, 3), "channels-last"),
        (np.zeros((5, 5, 2), np.uint8), r"got \[5, 5, 2\]"),
        (np.zeros(7, np.uint8), r"got \[7\]"),
        (torch.zeros(2, 5, 5), r"got \[2, 5, 5\]"),
        (np.zeros((5, 5, 3), np.int64), "got int64"),
        (torch.zeros(3, 5, 5, dtype=torch.int32), "got torch.int32"),
        (np.full((5, 5, 3), np.nan, np.float32), "NaN"),
        (torch.full((3, 5, 5), float("inf")), "infinite"),
        (np.full((5, 5, 3), 17.0), "divide by 255"),
        (torch.full((3, 5, 5), -0.5), "undo the normalisation"),
        (np.zeros((0, 5, 3), np.uint8), "no pixels"),
        (torch.zeros(3, 0, 4), "no pixels"),
        ("", "empty string"),
        ("a\0b", "cannot read"),
        (17, "got int"),
        (None, "got NoneType"),
    ],
)
def test_what_is_not_an_image_is_refused_in_one_sentence(image: object, words: str) -> None:
    with pytest.raises(ImageError, match=words) as caught:
        read_picture(image)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_image_of_mode_f_out_of_range_is_refused() -> None:
    with pytest.raises(ImageError, match="divide by 255"):
        read_picture(Image.fromarray(np.full((4, 4), 300.0, np.float32)))


@pytest.mark.parametrize("max_side", [np.int16(512), np.uint8(200), torch.tensor(300)])
def test_max_side_of_any_integer_type(max_side: object) -> None:
    picture = read_picture(np.zeros((4000, 300, 3), np.uint8), max_side=max_side)  # type: ignore[arg-type]
    assert picture.size == (int(max_side), round(300 * int(max_side) / 4000))  # type: ignore[call-overload]


@pytest.mark.parametrize("max_side", [0, -5, 2.5, True, "1024", np.array(2.5), torch.tensor(2.5)])
def test_max_side_must_be_a_count(max_side: object) -> None:
    with pytest.raises(ImageError, match="max_side"):
        read_picture(rgb(), max_side=max_side)  # type: ignore[arg-type]


def broken_files(folder: Path) -> dict[str, tuple[Path, str]]:
    whole = io.BytesIO()
    Image.fromarray(rgb(200, 200)).save(whole, "JPEG")
    data = whole.getvalue()
    noisy = bytearray(data)
    noisy[2:200] = RNG.integers(0, 256, 198, dtype=np.uint8).tobytes()
    cases = {
        "truncated": (data[: len(data) // 2], "truncated"),
        "corrupt": (bytes(noisy), "corrupt|not an image"),
        "empty": (b"", "empty"),
        "prose": (b"Dear reader, this is a text file.\n" * 20, "not an image"),
        "header": (b"\x89PNG\r\n\x1a\n", "not an image|corrupt"),
    }
    found = {}
    for name, (content, words) in cases.items():
        (folder / f"{name}.jpg").write_bytes(content)
        found[name] = (folder / f"{name}.jpg", words)
    return found


@pytest.mark.parametrize("name", ["truncated", "corrupt", "empty", "prose", "header"])
def test_a_broken_file_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    path, words = broken_files(tmp_path)[name]
    with pytest.raises(ImageError, match=words) as caught:
        read_picture(path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "JPEG2000", "AVIF"])
def test_a_file_cut_or_scrambled_anywhere_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow cannot write {kind}")
    whole = io.BytesIO()
    Image.fromarray(rgb(48, 48)).save(whole, kind)
    data, path = whole.getvalue(), tmp_path / "cut"
    cuts = [data[: int(len(data) * share)] for share in np.linspace(0.002, 0.99, 40)]
    scrambled = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        broken = bytearray(data)
        for place in rng.integers(0, len(broken), 12):
            broken[place] = int(rng.integers(0, 256))
        scrambled.append(bytes(broken))
    for content in cuts + scrambled:
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow may remark on what it could still read
            with contextlib.suppress(ImageError):  # any other error fails the test
                read_picture(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="there is no file"):
        read_picture(tmp_path / "nothing.png")
    with pytest.raises(ImageError, match="is a folder"):
        read_picture(tmp_path)


def test_an_image_over_the_decompression_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (100, 100)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4000)
    with pytest.raises(ImageError, match="decompression limit"):
        read_picture(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8000)  # between the limit and twice it: a large scan, not a bomb
    assert read_picture(tmp_path / "bomb.png").original_size == (100, 100)
