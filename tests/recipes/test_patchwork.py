"""Names and addresses of scans, put together anew from words of many scans."""

import random
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageDraw

from recipes.reader.receipts import Receipt
from recipes.reader.swap_words import WordShelf, blanks, patched, words_of

SHOPS = ("BLUE DOOR CAFE SDN BHD", "OLD MILL BAKERY SDN BHD", "NORTH STAR MART SDN BHD")
TOWNS = ("1 LONG ROAD, RIVER TOWN", "22 HILL LANE, OLD PORT", "3 PARK STREET, NEW FIELD")


@pytest.fixture(scope="module")
def receipts() -> list[Receipt]:
    made = []
    for number, (shop, town) in enumerate(zip(SHOPS, TOWNS, strict=True)):
        picture, lines = Image.new("L", (500, 200), 240), []
        for y, text in ((30, shop), (80, town)):
            draw = ImageDraw.Draw(picture)
            draw.text((20, y), text, fill=20, font_size=24)
            lines.append((text, draw.textbbox((20, y), text, font_size=24)))
        made.append(Receipt(str(number), picture, {"company": shop, "address": town}, tuple(lines)))
    return made


def test_words_are_cut_at_the_blanks(receipts: list[Receipt]) -> None:
    words = words_of(receipts[0], 0)
    assert words is not None
    assert [word.text for word in words] == SHOPS[0].split()
    for left, right in pairwise(words):
        assert left.box[2] < right.box[0]
        assert left.print[:, -1].min() < 200  # ink reaches the word's end


def test_a_line_whose_blanks_are_doubtful_is_left_alone() -> None:
    assert blanks(np.full((20, 200), 240, np.uint8), "TWO WORDS") is None
    even = np.full((20, 200), 240, np.uint8)
    even[:, ::10] = 0  # every gap is as wide as any other
    assert blanks(even, "TWO WORDS") is None


def test_fields_agree_with_lines_and_firms_stay_firms(receipts: list[Receipt]) -> None:
    shelf, seen = WordShelf(receipts), set()
    for seed in range(20):
        changed, kinds = patched(random.Random(seed), receipts[0], shelf, chance=1.0)
        assert kinds == {"company", "address"}
        assert [text for text, _ in changed.lines] == [changed.fields["company"], changed.fields["address"]]
        assert changed.fields["company"].endswith("SDN BHD")
        assert set(changed.fields["company"].split()) <= {word for shop in SHOPS for word in shop.split()}
        seen.add(changed.fields["company"])
    assert len(seen) > 8
    same, none = patched(random.Random(0), receipts[0], shelf, chance=0.0)
    assert same is receipts[0]
    assert not none
