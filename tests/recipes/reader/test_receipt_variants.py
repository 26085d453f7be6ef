"""Variants of scanned receipts: fields and lines stay consistent, and the words change."""

import random
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageDraw

from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.receipt_variants import (
    FieldPieces,
    Replacements,
    WordPieces,
    common_words,
    find_blanks,
    reprint,
    rerender,
    split_words,
    swap_fields,
    swap_words,
)
from recipes.reader.receipts import Receipt

WORD_SHOPS = ("BLUE DOOR CAFE SDN BHD", "OLD MILL BAKERY SDN BHD", "NORTH STAR MART SDN BHD")
TOWNS = ("1 LONG ROAD, RIVER TOWN", "22 HILL LANE, OLD PORT", "3 PARK STREET, NEW FIELD")


def test_a_rerendered_receipt_agrees_with_its_fields(fonts, receipts: list[Receipt]) -> None:
    common = frozenset({"DATE", "TOTAL"})
    for seed in range(10):
        document = rerender(random.Random(seed), fonts, receipts[1], common, 560, 1260)
        for question in document.questions:
            shown = " ".join(document.lines[index].text for index in question.evidence).upper()
            assert question.answer == NOT_FOUND or question.answer in shown
    words = Replacements(random.Random(0), common, "02/02/2018")
    assert words("TOTAL 27.50") == words("TOTAL 27.50") != "TOTAL 27.50"


def test_words_that_many_shops_print_are_common(receipts: list[Receipt]) -> None:
    many = [Receipt(str(n), receipts[0].image, {"company": str(n)}, receipts[0].lines) for n in range(6)]
    assert {"DATE", "TOTAL"} <= common_words(many)
    assert not common_words(receipts)


def test_swapped_fields_are_those_of_another_receipt(receipts: list[Receipt]) -> None:
    pieces, totals = FieldPieces(receipts), set()
    for seed in range(20):
        changed = swap_fields(random.Random(seed), receipts[0], pieces, chance=1.0)
        texts = [text for text, _ in changed.lines]
        for kind in ("total", "date", "company"):
            assert any(changed.fields[kind] in text for text in texts)
        assert len(texts) == 4
        totals.add(changed.fields["total"])
    assert totals == {"17.50", "27.50", "37.50"}
    assert swap_fields(random.Random(0), receipts[0], pieces, chance=0.0) is receipts[0]


@pytest.fixture(scope="module")
def word_receipts() -> list[Receipt]:
    made = []
    for number, (shop, town) in enumerate(zip(WORD_SHOPS, TOWNS, strict=True)):
        picture, lines = Image.new("L", (500, 200), 240), []
        for y, text in ((30, shop), (80, town)):
            draw = ImageDraw.Draw(picture)
            draw.text((20, y), text, fill=20, font_size=24)
            lines.append((text, draw.textbbox((20, y), text, font_size=24)))
        made.append(Receipt(str(number), picture, {"company": shop, "address": town}, tuple(lines)))
    return made


def test_words_are_cut_at_the_find_blanks(word_receipts: list[Receipt]) -> None:
    words = split_words(word_receipts[0], 0)
    assert words is not None
    assert [word.text for word in words] == WORD_SHOPS[0].split()
    for left, right in pairwise(words):
        assert left.box[2] < right.box[0]
        assert left.print[:, -1].min() < 200  # ink reaches the word's end


def test_a_line_with_uncertain_blanks_is_not_split() -> None:
    assert find_blanks(np.full((20, 200), 240, np.uint8), "TWO WORDS") is None
    even = np.full((20, 200), 240, np.uint8)
    even[:, ::10] = 0  # every gap is as wide as any other
    assert find_blanks(even, "TWO WORDS") is None


def test_fields_agree_with_lines_and_firms_stay_firms(word_receipts: list[Receipt]) -> None:
    pieces, seen = WordPieces(word_receipts), set()
    for seed in range(20):
        changed, kinds = swap_words(random.Random(seed), word_receipts[0], pieces, chance=1.0)
        assert kinds == {"company", "address"}
        assert [text for text, _ in changed.lines] == [changed.fields["company"], changed.fields["address"]]
        assert changed.fields["company"].endswith("SDN BHD")
        assert set(changed.fields["company"].split()) <= {word for shop in WORD_SHOPS for word in shop.split()}
        seen.add(changed.fields["company"])
    assert len(seen) > 8
    same, none = swap_words(random.Random(0), word_receipts[0], pieces, chance=0.0)
    assert same is word_receipts[0]
    assert not none


def test_reprinted_names_agree_with_their_lines_and_the_rest_stays(fonts, receipts: list[Receipt]) -> None:
    seen = set()
    for seed in range(10):
        changed = reprint(random.Random(seed), fonts, receipts[0], frozenset({"DATE", "TOTAL"}))
        seen.add(changed.fields["company"])
        assert changed.lines[0][0] == changed.fields["company"]
        assert changed.lines[1:] == receipts[0].lines[1:]
        assert {kind: changed.fields[kind] for kind in ("date", "total")} == {
            kind: receipts[0].fields[kind] for kind in ("date", "total")
        }
        before, after = np.asarray(receipts[0].image), np.asarray(changed.image)
        left, top, right, bottom = (round(side) for side in changed.lines[0][1])
        assert after[top:bottom, left:right].min() < 100  # printed
        assert (after[90:] == before[90:]).all()
    assert len(seen) > 5
