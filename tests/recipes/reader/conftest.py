"""Scanned receipts and font folders for the reader recipe's tests."""

import json
from pathlib import Path

import matplotlib
import pytest
from PIL import Image, ImageDraw

from recipes.reader.receipts import Receipt, read_receipts

SHOPS = ("BLUE DOOR CAFE", "OLD MILL BAKERY", "NORTH STAR MART")


@pytest.fixture(scope="package")
def receipts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three receipts with a shop, a date and a total each; none shows an address."""
    path, records = tmp_path_factory.mktemp("receipts"), {}
    for number, shop in enumerate(SHOPS):
        fields = {"company": shop, "date": f"0{number + 1}/02/2018", "total": f"{number + 1}7.50"}
        lines = [
            (shop, [60, 30, 300, 60]),
            (f"DATE: {fields['date']}", [40, 100, 280, 124]),
            ("TOTAL", [40, 300, 120, 330]),
            (fields["total"], [260, 300, 340, 330]),
        ]
        picture = Image.new("L", (400, 700), 240)
        for text, box in lines:
            ImageDraw.Draw(picture).text(box[:2], text, fill=20, font_size=24)
        picture.save(path / f"{number}.jpg")
        records[str(number)] = {"fields": fields, "lines": lines}
    (path / "recs.json").write_text(json.dumps(records))
    return path


@pytest.fixture(scope="package")
def receipts(receipts_folder: Path) -> list[Receipt]:
    return read_receipts(receipts_folder)


@pytest.fixture(scope="package")
def some_fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the fonts that matplotlib brings."""
    place = tmp_path_factory.mktemp("fonts")
    for name in ("DejaVuSans.ttf", "DejaVuSansMono.ttf"):
        (place / name).symlink_to(Path(matplotlib.get_data_path(), "fonts", "ttf", name))
    return place
