"""On a GPU the channels are the CPU's, up to rounding. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch

import arr_coc
from arr_coc import TextureArray
from arr_coc.texture.kernels import using

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("picture", ["receipt", "scene"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_the_cpu(picture: str, dtype: torch.dtype) -> None:
    image = getattr(arr_coc.pictures, picture)()
    cpu = TextureArray.from_image(image, layout=[*arr_coc.FULL40, "sobel_x", "sobel_y"])
    gpu = TextureArray.from_image(image, layout=cpu.names, device="cuda", dtype=dtype)
    rounding = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    regions = ("cluster_id", "cluster_distance", "cluster_size", "boundaries")  # one pixel can move a border: see below
    for name in (name for name in cpu.names if name not in regions):
        assert gpu[name].device.type == "cuda"
        difference = (gpu[name].cpu().float() - cpu[name]).abs()
        # A pixel whose luma equals its surroundings' may fall to either polarity, and so may a swing of the text channel.
        assert (difference <= rounding * cpu[name].abs().clamp(min=1)).float().mean() > 0.995, name
    same = [name for name in cpu.names if name not in regions]
    wanted, read = cpu.grid(44, 20, same), gpu.grid(44, 20, same).cpu().float()
    assert ((read - wanted).abs() <= 2 * rounding * wanted.abs().clamp(min=1)).float().mean() > 0.99
    xy = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    wanted, read = cpu.sample(xy, 1.7, same), gpu.sample(xy.cuda(), 1.7, same).cpu().float()
    assert ((read - wanted).abs() <= 2 * rounding * wanted.abs().clamp(min=1)).float().mean() > 0.99


def test_cluster_ids_are_exactly_the_cpus_by_torch_and_nearly_by_kernels() -> None:
    image = arr_coc.pictures.scene()
    expected = TextureArray.from_image(image)["cluster_id"]
    with using("torch"):
        assert torch.equal(TextureArray.from_image(image, device="cuda")["cluster_id"].cpu(), expected)
    made = TextureArray.from_image(image, device="cuda")["cluster_id"].cpu()
    assert abs(int(made.max()) - int(expected.max())) <= 2
    assert torch.equal(made, TextureArray.from_image(image, device="cuda")["cluster_id"].cpu())  # from run to run


def test_an_image_that_lies_on_the_gpu_stays_there() -> None:
    pixels = torch.rand(3, 300, 400, device="cuda")
    texture = TextureArray.from_image(
        pixels, max_side=100, supplied={"gaze": torch.rand(4, 4), "previous_frame": pixels}
    )
    assert texture.tensor().device.type == "cuda"
    assert texture["motion"].max() == 0
    assert TextureArray.from_image((pixels * 255).to(torch.uint8), max_side=100).tensor().device.type == "cuda"
