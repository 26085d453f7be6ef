"""The exam: calibration errors by hand, and a whole exam with a tiny layer."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from arr_coc.layer.universal import UniversalLayer, universal_config
from recipes.universal.exam import Reliability, main, validation_receipts


def test_calibration_error_is_the_mean_distance_of_the_bins() -> None:
    perfect = Reliability([0.25] * 4 + [0.95] * 20, [1, 0, 0, 0] + [1] * 19 + [0])
    assert perfect.error == pytest.approx(0, abs=1e-9)
    wrong = Reliability([0.9, 0.9, 0.1, 0.1], [0, 0, 1, 1])
    assert wrong.error == pytest.approx(0.9)
    mixed = Reliability([0.05, 0.05, 1.0], [0, 1, 1])
    assert mixed.error == pytest.approx((2 * 0.45 + 0) / 3)
    assert [count for *_, count in mixed.bins()] == [2, 1]
    assert Reliability().error == 0


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    UniversalLayer(universal_config(width=16, heads=2, seeing=1, asking=1)).save_pretrained(tmp_path / "layer")
    return tmp_path / "layer"


def test_an_exam_on_drawings_and_scans(layer: Path, receipts_folder: Path, tmp_path: Path) -> None:
    records = json.loads((receipts_folder / "recs.json").read_text())
    packed = tmp_path / "receipts.zip"
    with zipfile.ZipFile(packed, "w") as archive:  # names of which some are for validation
        archive.writestr("scans/recs.json", json.dumps({f"{number:03d}": records["0"] for number in range(12)}))
        for number in range(12):
            archive.write(receipts_folder / "0.jpg", f"scans/{number:03d}.jpg")
    count = len(validation_receipts(packed))
    assert 0 < count < 12
    out = tmp_path / "out"
    main(["--layer", str(layer), "--drawn", "3", "--receipts", str(packed), "--out", str(out)])
    report = json.loads((out / "exam.json").read_text())
    assert set(report) == {"drawings", "scans"}
    assert report["scans"]["questions"] == {"scan": 3 * count, "all": 3 * count}
    for part in report.values():
        quarter, eighth, sixteenth = part["recall"]["all"]
        assert 1 >= quarter >= eighth >= sixteenth >= 0
        assert all(have <= most for have, most in zip(part["recall"]["all"], part["ceiling"]["all"], strict=True))
        assert set(part["calibration error"]) == {"found", "absent", "whole"}
        for doubt, bins in part["bins"].items():
            counted = sum(number for *_, number in bins)
            assert counted == part["questions"]["all"] if doubt == "found" else counted > part["questions"]["all"]
    with Image.open(out / "reliability.png") as picture:
        assert picture.size[0] > 600


@pytest.mark.parametrize("option", ["--layer", "--receipts", "--fonts"])
def test_what_is_missing_is_named(option: str, layer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--layer", str(layer), "--out", str(tmp_path / "out"), option, "/no/where"])
    assert stopped.value.code == 2
    assert "/no/where" in capsys.readouterr().err.splitlines()[-1]
