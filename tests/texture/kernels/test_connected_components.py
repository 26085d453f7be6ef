"""Connected parts by kernels equal those of `connect`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.texture.channels import clusters
from arr_coc.texture.kernels import connected_components
from arr_coc.texture.kernels.connected_components import ConnectedComponents


@pytest.mark.parametrize(
    ("labels", "at_once", "size"),
    [(1, 64, (15, 22)), (2, 64, (15, 22)), (2, 4096, (15, 22)), (5, 4096, (15, 22)), (5, 4096, (26, 40))],
)
def test_connected_ids_are_equal(
    labels: int, at_once: int, size: tuple[int, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few and many holes per lane, and with holes scanned in chunks."""
    monkeypatch.setattr(connected_components, "LANE_HOLES", at_once)
    torch.manual_seed(5)
    given = torch.randint(0, labels, (2, *size), dtype=torch.int32, device=device)
    given[1, 3:9, 4:15] = 0
    found = ConnectedComponents(2, size, device, variants=1)
    for buffer in (found.parent, found.zeros, found.tall, found.grown, found.holes, found.offer, found.ids):
        buffer.fill_(-77)
    ids = found.write(given)
    for number in range(2):
        expected = clusters.connect(given[number].cpu().numpy().astype(np.int64))
        assert np.array_equal(ids[number].cpu().numpy(), expected)
        assert int(found.count[number]) == expected.max() + 1


def test_the_first_map_that_is_connected_enough_is_taken(device: torch.device) -> None:
    dust = torch.arange(300, dtype=torch.int32).view(12, 25)  # every pixel is a segment: none is large enough
    halves = torch.zeros(12, 25, dtype=torch.int32)
    halves[:, 10:] = 1
    thirds = torch.zeros(12, 25, dtype=torch.int32)
    thirds[4:] = 1
    found = ConnectedComponents(1, (12, 25), device)
    assert torch.equal(found.write(torch.stack([dust, halves, thirds]).to(device))[0].cpu(), halves)
    assert torch.equal(found.write(torch.stack([thirds, halves, dust]).to(device))[0].cpu(), thirds)
