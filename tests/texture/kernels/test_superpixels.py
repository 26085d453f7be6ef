"""Superpixels by kernels are those of `slic`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc import TextureArray
from arr_coc.texture import slic
from arr_coc.texture.kernels import connecting, filling, superpixels, using
from arr_coc.texture.kernels.connecting import Connecting, Weights
from arr_coc.texture.kernels.regions import NAMES, Regions
from arr_coc.texture.kernels.segmenting import Segmenting
from arr_coc.texture.kernels.superpixels import Superpixels

SIZE = (14, 19)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rounds, segments and programs than there are: the interpreter takes its time."""
    for module in (superpixels, slic):
        monkeypatch.setattr(module, "ROUNDS", 2)
        monkeypatch.setattr(module, "SEGMENTS", 9)


@pytest.mark.usefixtures("few")
def test_labels_are_those_of_k_means(image: torch.Tensor) -> None:
    pictures = image[:, :, : SIZE[0], : SIZE[1]]
    found, after = Superpixels(2, SIZE, image.device), Connecting(2, SIZE, image.device)
    found.labels.fill_(-7)
    found.sums.fill_(-7)
    found.look(pictures)
    labels = found.assign(Weights(0, 3), after).cpu().numpy()
    for number, lab in enumerate(found.lab.cpu().numpy()):
        for variant, compactness in enumerate(slic.COMPACTNESS):
            expected = slic._k_means(lab, compactness)
            # Sums in another order: a pixel as near to two centres may fall to either.
            assert (labels[3 * number + variant] == expected).mean() > 0.99


@pytest.mark.usefixtures("few")
def test_weights_that_are_not_needed_are_not_tried(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise falls to dust by colour alone; what is calm holds together by the first weight."""
    monkeypatch.setattr(superpixels, "COMPACTNESS", (0.01, 64.0, 256.0))
    monkeypatch.setattr(connecting, "SEGMENTS", 9)
    calm = torch.linspace(0, 1, SIZE[1], device=device).expand(3, *SIZE)
    noise = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(0)).to(device)
    pictures = torch.stack([calm, noise, calm.flip(2), calm / 2])
    apart, together = (Segmenting(4, SIZE, device) for _ in range(2))
    apart.found.labels.fill_(-7)
    together.portions = [Weights(0, 3)]
    assert torch.equal(apart.write(pictures), together.write(pictures))
    for weight, expected in enumerate([[True] * 4, [False, True, False, False], [False, True, False, False]]):
        written = apart.found.labels.view(4, 3, -1)[:, weight]
        assert [bool((one != -7).all()) for one in written] == expected
        assert [bool((one != -7).any()) for one in written] == expected


@pytest.mark.parametrize(
    ("labels", "at_once", "size"),
    [(1, 64, (15, 22)), (2, 64, (15, 22)), (2, 4096, (15, 22)), (5, 4096, (15, 22)), (5, 4096, (26, 40))],
)
def test_connected_ids_are_exactly_the_same(
    labels: int, at_once: int, size: tuple[int, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not every lane can keep its own gap, and whether it has one or several."""
    monkeypatch.setattr(filling, "FEW", at_once)
    torch.manual_seed(5)
    given = torch.randint(0, labels, (2, *size), dtype=torch.int32, device=device)
    given[1, 3:9, 4:15] = 0
    found = Connecting(2, size, device, variants=1)
    for buffer in (found.parent, found.zeros, found.tall, found.grown, found.holes, found.offer, found.ids):
        buffer.fill_(-77)
    ids = found.write(given)
    for number in range(2):
        expected = slic.connect(given[number].cpu().numpy().astype(np.int64))
        assert np.array_equal(ids[number].cpu().numpy(), expected)
        assert int(found.count[number]) == expected.max() + 1


def test_the_first_map_that_holds_together_is_taken(device: torch.device) -> None:
    dust = torch.arange(300, dtype=torch.int32).view(12, 25)  # every pixel its own segment: none is large enough
    halves = torch.zeros(12, 25, dtype=torch.int32)
    halves[:, 10:] = 1
    thirds = torch.zeros(12, 25, dtype=torch.int32)
    thirds[4:] = 1
    found = Connecting(1, (12, 25), device)
    assert torch.equal(found.write(torch.stack([dust, halves, thirds]).to(device))[0].cpu(), halves)
    assert torch.equal(found.write(torch.stack([thirds, halves, dust]).to(device))[0].cpu(), thirds)


def test_regions_are_measured_and_spread_like_the_channels(image: torch.Tensor) -> None:
    picture = image[0]
    size = (int(picture.shape[1]), int(picture.shape[2]))
    ids = torch.randint(0, 7, (9, 13), dtype=torch.int32, device=image.device)
    ids[0] = torch.arange(13, device=image.device) % 7  # all of them are there
    found = Regions(1, (9, 13), size, image.device)
    out = torch.full((1, 4, *size), float("nan"), device=image.device)
    found.measure(ids[None])
    found.write(ids[None], out, {name: number for number, name in enumerate(NAMES)})
    with using("torch"):
        texture = TextureArray.from_image(picture, max_side=None, segmenter=lambda pixels: ids.long())
        for name, made in zip(NAMES, out[0], strict=True):
            assert torch.allclose(made, texture[name], atol=1e-5), name
