"""A layer in half precision: half the size, the same layer up to rounding, and read in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from arr_coc.layer.model import WEIGHTS, ArrCocLayer
from arr_coc.layer.universal import UniversalLayer, universal_config
from arr_coc.reader import WEIGHTS as READER
from recipes.halve import main


def test_parameters_are_rounded_and_statistics_are_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = UniversalLayer(universal_config(width=16, heads=2, seeing=1, asking=1))
    layer.unusual.fill_(1e6)  # beyond half precision
    layer.save_pretrained(tmp_path / "layer")
    before = (tmp_path / "layer" / WEIGHTS).stat().st_size
    main([str(tmp_path)])  # the folder of a model
    assert (tmp_path / "layer" / WEIGHTS).stat().st_size < 0.7 * before
    found = UniversalLayer.from_pretrained(tmp_path)
    assert torch.equal(found.unusual, layer.unusual)
    for one, other in zip(found.parameters(), layer.parameters(), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other.half().float())


def test_a_folder_without_a_layer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path)])
    assert stopped.value.code == 2
    assert "expected the folder of a layer" in capsys.readouterr().err


def test_the_layers_that_ship_are_in_half_precision() -> None:
    shipped = ArrCocLayer.from_pretrained(READER)
    assert all(torch.equal(one, one.half().float()) for one in shipped.parameters())
