"""Textures of one shape in one block equal plain textures."""

from __future__ import annotations

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.errors import ArrCocError
from arr_coc.texture import filters
from arr_coc.texture.kernels import using
from arr_coc.texture.kernels.sampling import sample_mips
from gpu_graphs.texture_graph import OutOfDeviceMemory, TextureGraph, in_chunks, write_enlarged
from tests.waiting import no_waits

SIZE = (16, 20)
WITHOUT = tuple(
    name
    for name in arr_coc.FULL40
    if name not in ("text", "cluster_id", "cluster_distance", "cluster_size", "boundaries")
)  # superpixels are too slow in the interpreter here


def test_a_batch_equals_the_textures_one_by_one(image: torch.Tensor) -> None:
    pictures = image[:, :, : SIZE[0], : SIZE[1]]
    features = torch.randn(2, 16, 4, 5, device=image.device)
    made = TextureGraph(
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
                assert float(different.float().mean()) < 1e-3, level  # a few pixels may change polarity
            xy = torch.rand(5, 2, device=image.device)
            from_block = made.texture(number).sample(xy)
            assert torch.allclose(from_block, plain.sample(xy), atol=1e-4)


def test_maps_are_enlarged_like_resize(device: torch.device) -> None:
    maps = torch.rand(2, 9, 3, 4, device=device).transpose(2, 3)
    out = torch.full((2, 11, 7, 13), float("nan"), device=device)
    write_enlarged(maps, out, 2)
    assert bool(out[:, :2].isnan().all())
    for number in range(2):
        for channel in range(9):
            expected = filters.resize(maps[number, channel].contiguous(), (7, 13))
            assert torch.allclose(out[number, 2 + channel], expected, atol=1e-6)


def test_inputs_of_another_shape_are_refused(device: torch.device) -> None:
    made = TextureGraph(1, (8, 8), layout=["red", "motion"], device=device, levels=1, moving=True)
    with pytest.raises(ArrCocError, match=r"expected pixels \[1, 3, 8, 8\], got \[1, 3, 8, 9\]"):
        made.update(torch.zeros(1, 3, 8, 9, device=device))
    with pytest.raises(ArrCocError, match="expected before"):
        made.update(torch.zeros(1, 3, 8, 8, device=device))
    with pytest.raises(ArrCocError, match="embeddings of at most 8 x 8"):
        TextureGraph(1, (8, 8), device=device, embeddings=(9, 2))
    if device.type != "cuda":
        with pytest.raises(ArrCocError, match="expected a CUDA device for a graph"):
            made.capture()


def test_the_error_out_of_memory(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    def full(*size: int, **options: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(ArrCocError, match="make the batch of 64 smaller"):
        TextureGraph(64, (4096, 4096), device=device)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(device: torch.device) -> None:
    pixels = torch.rand(7, 3, 8, 8, device=device)
    tried = []

    def make(batch: int) -> TextureGraph:
        tried.append(batch)
        if batch > 2:
            raise OutOfDeviceMemory("expected memory")
        return TextureGraph(batch, (8, 8), layout=["red"], dtype=torch.float32, device=device, levels=0)

    seen = torch.full((7, 8, 8), float("nan"), device=device)
    for which, made in in_chunks(pixels, make):
        seen[which] = made.block[:, 0]
    assert torch.equal(seen, pixels[:, 0])
    assert tried == [7, 3, 1]


def test_a_single_image_that_does_not_fit_is_refused(device: torch.device) -> None:
    def make(batch: int) -> TextureGraph:
        raise OutOfDeviceMemory("expected 9 GB of memory")

    with pytest.raises(ArrCocError, match="expected 9 GB of memory"):
        list(in_chunks(torch.rand(2, 3, 8, 8, device=device), make))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_writes_what_launches_write() -> None:
    pixels = torch.rand(1, 3, 256, 320, device="cuda")
    plain = TextureGraph(1, (256, 320), dtype=torch.float32)
    plain.update(pixels)
    expected = plain.block.clone()
    recorded = TextureGraph(1, (256, 320), dtype=torch.float32).capture()
    recorded.update(pixels.flip(0) * 0)
    recorded.update(pixels)
    assert torch.allclose(recorded.block, expected, atol=1e-6)
    for level, other in zip(recorded.levels, plain.levels, strict=True):
        assert torch.allclose(level, other, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_texture_and_its_samples_wait_for_nothing() -> None:
    pixels = torch.rand(1, 3, 256, 320, device="cuda")
    made = TextureGraph(1, (256, 320)).capture()
    mips = made.mips(0)
    points, levels = torch.rand(273, 2, device="cuda"), torch.zeros(273, device="cuda")
    sample_mips(mips, points, levels)
    with no_waits():
        made.update(pixels)
        sample_mips(mips, points, levels)
