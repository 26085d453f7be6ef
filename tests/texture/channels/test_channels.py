"""All channels: for images of any size and kind, by torch instead of OpenCV, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arr_coc
from arr_coc import TextureArray, all_channels
from arr_coc.texture import filters
from arr_coc.texture.channels import edges
from arr_coc.texture.kernels import using

sizes = st.tuples(st.integers(1, 97), st.integers(1, 513))
kinds = st.sampled_from(["noise", "constant", "black", "white", "gradient", "single pixel", "stripes"])
NAMES = [channel.name for channel in all_channels()]
REGIONS = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def draw(kind: str, height: int, width: int) -> torch.Tensor:
    image = torch.full((3, height, width), {"constant": 0.37, "white": 1.0}.get(kind, 0.0))
    if kind == "noise":
        return torch.rand(3, height, width, generator=torch.Generator().manual_seed(height * 1000 + width))
    if kind == "gradient":
        return torch.linspace(0, 1, width).expand(3, height, width).clone()
    if kind == "single pixel":
        image[:, height // 2, width // 2] = 1
    if kind == "stripes":
        image[:, :, ::2] = 1
    return image


@given(sizes, kinds)
@settings(max_examples=40, deadline=None)
def test_all_channels_are_finite_in_range_and_of_the_images_size(size: tuple[int, int], kind: str) -> None:
    texture = TextureArray.from_image(draw(kind, *size), layout=NAMES)
    for channel in texture.channels:
        plane = texture[channel.name]
        assert tuple(plane.shape) == size
        assert plane.isfinite().all(), channel.name
        assert plane.min() >= channel.range[0] - 1e-5, channel.name
        assert plane.max() <= channel.range[1] + 1e-5, channel.name


@given(sizes, kinds, st.integers(1, 9), st.integers(1, 9), st.floats(0, 10))
@settings(max_examples=25, deadline=None)
def test_cells_and_samples_stay_within_the_channels_values(
    size: tuple[int, int], kind: str, rows: int, columns: int, level: float
) -> None:
    texture = TextureArray.from_image(draw(kind, *size))
    cells = texture.grid(rows, columns)
    read = texture.sample(torch.rand(6, 2, generator=torch.Generator().manual_seed(1)), level)
    for i, name in enumerate(texture.names):
        low, high = texture[name].min() - 1e-5, texture[name].max() + 1e-5
        for values in (cells[i], read[:, i]):
            assert values.min() >= low, name
            assert values.max() <= high, name


@given(sizes)
@settings(max_examples=15, deadline=None)
def test_a_constant_image_has_no_edges(size: tuple[int, int]) -> None:
    texture = TextureArray.from_image(draw("constant", *size))
    for name in ("edges", "edges_inverted", "highpass", "saliency"):
        assert texture[name].abs().max() < 1e-6, name
    assert texture["distance"].min() == 1
    assert (texture["lowpass"] - 0.37).abs().max() < 1e-5


@pytest.mark.parametrize("picture", ["receipt", "scene"])
def test_torch_and_opencv_agree_on_channels_levels_and_cells(picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU runs torch's implementation of every filter: here on the CPU."""
    image = getattr(arr_coc.pictures, picture)().resize((300, 411))
    layout = [*arr_coc.FULL40, "sobel_x", "sobel_y", "edge_magnitude"]
    by_opencv = TextureArray.from_image(image, layout=layout)
    expected = {name: by_opencv[name] for name in layout}
    cells, coarse = by_opencv.grid(31, 17), by_opencv.tensor(2)
    monkeypatch.setattr(filters, "_on_cpu", lambda plane: False)
    monkeypatch.setattr(filters, "_opencv_serves", lambda plane, size: False)
    monkeypatch.setattr(edges, "distance_to", edges.jump_flooding)
    by_torch = TextureArray.from_image(image, layout=layout)
    for name in layout:
        difference = (by_torch[name] - expected[name]).abs()
        # A pixel whose luma equals its surroundings' may fall to either polarity; jump flooding errs in rare corners.
        assert (difference < 1e-4).float().mean() > 0.995, name
    assert ((by_torch.grid(31, 17) - cells).abs() < 1e-3).float().mean() > 0.995
    assert ((by_torch.tensor(2) - coarse).abs() < 1e-3).float().mean() > 0.995
    assert torch.equal(by_torch["cluster_id"], expected["cluster_id"])


@gpu
@pytest.mark.parametrize("picture", ["receipt", "scene"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gpu_equals_the_cpu(picture: str, dtype: torch.dtype) -> None:
    image = getattr(arr_coc.pictures, picture)()
    cpu = TextureArray.from_image(image, layout=[*arr_coc.FULL40, "sobel_x", "sobel_y"])
    gpu = TextureArray.from_image(image, layout=cpu.names, device="cuda", dtype=dtype)
    rounding = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    same = [name for name in cpu.names if name not in REGIONS]  # one pixel can move a border: see below
    for name in same:
        assert gpu[name].device.type == "cuda"
        difference = (gpu[name].cpu().float() - cpu[name]).abs()
        # A pixel whose luma equals its surroundings' may fall to either polarity, and so may a swing of the text channel.
        assert (difference <= rounding * cpu[name].abs().clamp(min=1)).float().mean() > 0.995, name
    wanted, read = cpu.grid(44, 20, same), gpu.grid(44, 20, same).cpu().float()
    assert ((read - wanted).abs() <= 2 * rounding * wanted.abs().clamp(min=1)).float().mean() > 0.99
    xy = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    wanted, read = cpu.sample(xy, 1.7, same), gpu.sample(xy.cuda(), 1.7, same).cpu().float()
    assert ((read - wanted).abs() <= 2 * rounding * wanted.abs().clamp(min=1)).float().mean() > 0.99


@gpu
def test_cluster_ids_equal_the_cpus_by_torch_and_nearly_by_kernels() -> None:
    image = arr_coc.pictures.scene()
    expected = TextureArray.from_image(image)["cluster_id"]
    with using("torch"):
        assert torch.equal(TextureArray.from_image(image, device="cuda")["cluster_id"].cpu(), expected)
    made = TextureArray.from_image(image, device="cuda")["cluster_id"].cpu()
    assert abs(int(made.max()) - int(expected.max())) <= 2
    assert torch.equal(made, TextureArray.from_image(image, device="cuda")["cluster_id"].cpu())  # from run to run


@gpu
def test_an_image_on_the_gpu_stays_there() -> None:
    pixels = torch.rand(3, 300, 400, device="cuda")
    texture = TextureArray.from_image(
        pixels, max_side=100, supplied={"gaze": torch.rand(4, 4), "previous_frame": pixels}
    )
    assert texture.tensor().device.type == "cuda"
    assert texture["motion"].max() == 0
    assert TextureArray.from_image((pixels * 255).to(torch.uint8), max_side=100).tensor().device.type == "cuda"
