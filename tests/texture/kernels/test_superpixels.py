"""Superpixels and their channels by kernels equal those by torch."""

from __future__ import annotations

import pytest
import torch

from arr_coc import TextureArray
from arr_coc.texture.channels import clusters
from arr_coc.texture.kernels import connected_components, superpixels, using
from arr_coc.texture.kernels.connected_components import ConnectedComponents, Variants
from arr_coc.texture.kernels.superpixels import REGION_CHANNELS, RegionStats, SlicKMeans, SlicSegmenter

SIZE = (14, 19)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rounds and segments: the interpreter is slow."""
    for module in (superpixels, clusters):
        monkeypatch.setattr(module, "ROUNDS", 2)
        monkeypatch.setattr(module, "SEGMENTS", 9)


@pytest.mark.usefixtures("few")
def test_labels_equal_those_of_k_means(image: torch.Tensor) -> None:
    pictures = image[:, :, : SIZE[0], : SIZE[1]]
    found, components = SlicKMeans(2, SIZE, image.device), ConnectedComponents(2, SIZE, image.device)
    found.labels.fill_(-7)
    found.sums.fill_(-7)
    found.set_images(pictures)
    labels = found.assign(Variants(0, 3), components).cpu().numpy()
    for number, lab in enumerate(found.lab.cpu().numpy()):
        for variant, compactness in enumerate(clusters.COMPACTNESS):
            expected = clusters._k_means(lab, compactness)
            # Sums in another order: a pixel equally near to two centres may go to either.
            assert (labels[3 * number + variant] == expected).mean() > 0.99


@pytest.mark.usefixtures("few")
def test_variants_that_are_not_needed_are_skipped(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise breaks into tiny parts with the first compactness; smooth images are connected enough."""
    monkeypatch.setattr(superpixels, "COMPACTNESS", (0.01, 64.0, 256.0))
    monkeypatch.setattr(connected_components, "SEGMENTS", 9)
    smooth = torch.linspace(0, 1, SIZE[1], device=device).expand(3, *SIZE)
    noise = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(0)).to(device)
    pictures = torch.stack([smooth, noise, smooth.flip(2), smooth / 2])
    apart, together = (SlicSegmenter(4, SIZE, device) for _ in range(2))
    apart.kmeans.labels.fill_(-7)
    together.variants = [Variants(0, 3)]
    assert torch.equal(apart.write(pictures), together.write(pictures))
    for variant, expected in enumerate([[True] * 4, [False, True, False, False], [False, True, False, False]]):
        written = apart.kmeans.labels.view(4, 3, -1)[:, variant]
        assert [bool((one != -7).all()) for one in written] == expected
        assert [bool((one != -7).any()) for one in written] == expected


def test_region_channels_equal_torchs(image: torch.Tensor) -> None:
    picture = image[0]
    size = (int(picture.shape[1]), int(picture.shape[2]))
    ids = torch.randint(0, 7, (9, 13), dtype=torch.int32, device=image.device)
    ids[0] = torch.arange(13, device=image.device) % 7  # all regions occur
    found = RegionStats(1, (9, 13), size, image.device)
    out = torch.full((1, 4, *size), float("nan"), device=image.device)
    found.measure(ids[None])
    found.write(ids[None], out, {name: number for number, name in enumerate(REGION_CHANNELS)})
    with using("torch"):
        texture = TextureArray.from_image(picture, max_side=None, segmenter=lambda pixels: ids.long())
        for name, made in zip(REGION_CHANNELS, out[0], strict=True):
            assert torch.allclose(made, texture[name], atol=1e-5), name
