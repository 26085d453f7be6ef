"""Whole textures of one shape, and textures that go to kernels by themselves, hold what plain textures hold."""

from __future__ import annotations

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture import filters, slic
from arr_coc.texture.kernels import connecting, superpixels, used, using
from arr_coc.texture.kernels.enlarging import write_enlarged
from arr_coc.texture.kernels.whole import NoRoom, Whole, in_portions

SIZE = (24, 32)
WITHOUT = tuple(
    name
    for name in arr_coc.FULL40
    if name not in ("text", "cluster_id", "cluster_distance", "cluster_size", "boundaries")
)  # superpixels take the interpreter too long here


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (superpixels, connecting, slic):
        monkeypatch.setattr(module, "ROUNDS", 1, raising=False)
        monkeypatch.setattr(module, "SEGMENTS", 4)
        monkeypatch.setattr(module, "WORK_SIDE", 10, raising=False)


def test_a_batch_equals_the_textures_one_by_one(image: torch.Tensor) -> None:
    pictures = image[:, :, : SIZE[0], : SIZE[1]]
    features = torch.randn(2, 16, 4, 5, device=image.device)
    made = Whole(
        2, SIZE, layout=WITHOUT, dtype=torch.float32, device=image.device, levels=2, moving=True, embeddings=(4, 5)
    )
    made.update(pictures, pictures.flip(0), features)
    with using("torch"):
        for number, picture in enumerate(pictures):
            plain = TextureArray.from_image(
                picture, layout=WITHOUT, max_side=None, supplied={"previous_frame": pictures[1 - number]},
                embeddings=features[number],
            )  # fmt: skip
            for level, planes in enumerate((made.block, *made.levels)):
                different = (planes[number] - plain.tensor(level)).abs() > 1e-5
                assert float(different.float().mean()) < 1e-3, level  # a polarity here and there
            xy = torch.rand(5, 2, device=image.device)
            from_block = made.texture(number).sample(xy)
            assert torch.allclose(from_block, plain.sample(xy), atol=1e-4)


@pytest.mark.usefixtures("few")
def test_a_texture_goes_to_kernels_by_itself(image: torch.Tensor) -> None:
    picture = image[0, :, :16, :24].contiguous()
    layout = [name for name in arr_coc.FULL40 if name != "text"] + ["sobel_x", "edge_magnitude"]
    made = TextureArray.from_image(picture, layout=layout, max_side=None, supplied={"previous_frame": picture})
    with using("torch"):
        plain = TextureArray.from_image(picture, layout=layout, max_side=None, supplied={"previous_frame": picture})
        expected = plain.tensor(), plain.grid(8, 12), plain.sample([[0.3, 0.8], [0.9, 0.1]], [0.5, 1.5])
    found = made.tensor(), made.grid(8, 12), made.sample([[0.3, 0.8], [0.9, 0.1]], [0.5, 1.5])
    for one, other in zip(found, expected, strict=True):
        assert float(((one - other).abs() > 1e-5).float().mean()) < 0.01
    kernels = ("cheap channels", "motion", "saliency", "superpixels", "regions", "distance", "cells", "samples")
    assert [used()[name] for name in kernels] == ["triton"] * len(kernels)


def test_gradients_go_to_torch_and_are_the_same(device: torch.device) -> None:
    plane = torch.rand(8, 8, device=device, requires_grad=True)
    texture = TextureArray.from_planes({"red": plane})
    texture.sample([[0.2, 0.7]], 0.5).sum().backward()
    assert plane.grad is not None
    assert float(plane.grad.sum()) == pytest.approx(1.0)
    assert used()["samples"] == "torch"


def test_points_that_are_no_numbers_are_refused_where_they_can_be_seen(device: torch.device) -> None:
    texture = TextureArray.from_planes({"red": torch.rand(8, 8, device=device)})
    with pytest.raises(ArrCocError, match="finite"):
        texture.sample([[float("nan"), 0.5]])


def test_maps_are_enlarged_like_resize(device: torch.device) -> None:
    maps = torch.rand(2, 9, 3, 4, device=device).transpose(2, 3)
    out = torch.full((2, 11, 7, 13), float("nan"), device=device)
    write_enlarged(maps, out, 2)
    assert bool(out[:, :2].isnan().all())
    for number in range(2):
        for channel in range(9):
            expected = filters.resize(maps[number, channel].contiguous(), (7, 13))
            assert torch.allclose(out[number, 2 + channel], expected, atol=1e-6)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    made = Whole(1, (8, 8), layout=["red", "motion"], device=device, levels=1, moving=True)
    with pytest.raises(ArrCocError, match=r"expected pixels \[1, 3, 8, 8\], got \[1, 3, 8, 9\]"):
        made.update(torch.zeros(1, 3, 8, 9, device=device))
    with pytest.raises(ArrCocError, match="expected before"):
        made.update(torch.zeros(1, 3, 8, 8, device=device))
    with pytest.raises(ArrCocError, match="embeddings of at most 8 x 8"):
        Whole(1, (8, 8), device=device, embeddings=(9, 2))
    if device.type != "cuda":
        with pytest.raises(ArrCocError, match="expected a CUDA device for a graph"):
            made.capture()


def test_out_of_memory_says_what_to_do(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    def full(*size: int, **options: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(ArrCocError, match="make the batch of 64 smaller"):
        Whole(64, (4096, 4096), device=device)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(device: torch.device) -> None:
    pixels = torch.rand(7, 3, 8, 8, device=device)
    tried = []

    def make(batch: int) -> Whole:
        tried.append(batch)
        if batch > 2:
            raise NoRoom("expected room")
        return Whole(batch, (8, 8), layout=["red"], dtype=torch.float32, device=device, levels=0)

    seen = torch.full((7, 8, 8), float("nan"), device=device)
    for which, made in in_portions(pixels, make):
        seen[which] = made.block[:, 0]
    assert torch.equal(seen, pixels[:, 0])
    assert tried == [7, 3, 1]


def test_a_single_image_that_does_not_fit_is_refused(device: torch.device) -> None:
    def make(batch: int) -> Whole:
        raise NoRoom("expected room for 9 GB")

    with pytest.raises(ArrCocError, match="expected room for 9 GB"):
        list(in_portions(torch.rand(2, 3, 8, 8, device=device), make))
