"""Recalibration: a fit corrects what is too sure, and the command writes a file that a layer reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from arr_coc.layer.universal import CALIBRATION, DOUBTS, Calibration, UniversalLayer, universal_config
from recipes.universal.calibrate import fit, main


def test_a_fit_corrects_a_layer_that_is_too_sure() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2000, generator=generator) * 3
    true = (torch.rand(2000, generator=generator) < (logits / 3 - 1).sigmoid()).float()
    rows = [([float(one), 0.0, 0.0, 0.0], float(y), 1.0) for one, y in zip(logits, true, strict=True)]
    found = fit(rows)
    assert found[0] == pytest.approx(1 / 3, abs=0.06)
    assert found[-1] == pytest.approx(-1, abs=0.15)


def test_the_command_writes_what_a_layer_reads(receipts_folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tmp_path / "layer"
    UniversalLayer(universal_config(width=16, heads=2, seeing=1, asking=1)).save_pretrained(folder)
    main(
        [
            "--layer",
            str(folder),
            "--drawn",
            "2",
            "--scans",
            "1",
            "--receipts",
            str(receipts_folder),
            "--out",
            str(folder),
        ]
    )
    assert set(json.loads((folder / CALIBRATION).read_text())) == set(DOUBTS)
    layer = UniversalLayer.from_pretrained(folder)
    assert isinstance(layer, UniversalLayer)
    assert layer.calibration.weights == Calibration.read(folder).weights != {}
