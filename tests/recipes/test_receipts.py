"""Scanned receipts: read from a folder, split by name, put on a canvas, and changed so that answers cannot be learned by heart."""

import json
import random
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader import export_exam as papers
from recipes.reader import rerender as retold
from recipes.reader.receipts import Placement, Receipt, find_evidence, read_receipts, scan, split
from recipes.reader.recipe import PAGE_GRIDS, STEP_KINDS, pixels
from recipes.reader.source import Library, TrainingBatches
from recipes.reader.swap_fields import PieceShelf, transplanted
from recipes.reader.validation import receipt_sheets

SHOPS = ("BLUE DOOR CAFE", "OLD MILL BAKERY", "NORTH STAR MART")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.fixture(scope="module")
def receipts(folder: Path) -> list[Receipt]:
    return read_receipts(folder)


def test_a_folder_is_read(receipts: list[Receipt]) -> None:
    assert [receipt.fields["company"] for receipt in receipts] == list(SHOPS)
    assert receipts[0].lines[2] == ("TOTAL", (40, 300, 120, 330))
    assert receipts[0].text_box() == (40, 30, 340, 330)


def test_a_folder_without_labels_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"recs\.json"):
        read_receipts(tmp_path)


def test_the_split_depends_on_the_name_alone(receipts: list[Receipt]) -> None:
    training, validation = split(receipts, 2)
    assert {receipt.name for receipt in training} | {receipt.name for receipt in validation} == {"0", "1", "2"}
    for receipt in receipts:
        assert ([receipt], []) == split([receipt], 2) if receipt in training else split([receipt], 2) == ([], [receipt])


@pytest.mark.parametrize("seed", range(8))
def test_boxes_follow_the_picture_onto_the_canvas(receipts: list[Receipt], seed: int) -> None:
    rng = random.Random(seed)
    document = scan(rng, receipts[0], 560, 1260, Placement.varied(rng, receipts[0], 560, 1260))
    for line in document.lines:
        left, top, right, bottom = (round(edge) for edge in line.box)
        assert document.image[max(0, top) : bottom, max(0, left) : right].min() < 120
    asked = {question.kind: question for question in document.questions}
    assert asked["address"].answer == NOT_FOUND
    assert [document.lines[index].text for index in asked["total"].evidence] == ["17.50"]


def test_a_field_that_no_line_shows_may_stand_anywhere() -> None:
    assert find_evidence("total", "9.00", ["TOTAL", "9.OO"]) == (0, 1)
    assert find_evidence("address", "1 LONG ROAD, TOWN", ["SHOP", "1 LONG ROAD,", "TOWN"]) == (1, 2)


def test_transplanted_fields_are_those_of_another_receipt(receipts: list[Receipt]) -> None:
    shelf, hosts = PieceShelf(receipts), set()
    for seed in range(20):
        changed = transplanted(random.Random(seed), receipts[0], shelf, chance=1.0)
        texts = [text for text, _ in changed.lines]
        for kind in ("total", "date", "company"):
            assert any(changed.fields[kind] in text for text in texts)
        assert len(texts) == 4
        hosts.add(changed.fields["total"])
    assert hosts == {"17.50", "27.50", "37.50"}
    assert transplanted(random.Random(0), receipts[0], shelf, chance=0.0) is receipts[0]


def test_a_retelling_agrees_with_itself(fonts, receipts: list[Receipt]) -> None:
    common = frozenset({"DATE", "TOTAL"})
    for seed in range(10):
        document = retold.render(random.Random(seed), fonts, receipts[1], common, 560, 1260)
        for question in document.questions:
            shown = " ".join(document.lines[index].text for index in question.evidence).upper()
            assert question.answer == NOT_FOUND or question.answer in shown
    words = retold.Retelling(random.Random(0), common, "02/02/2018")
    assert words("TOTAL 27.50") == words("TOTAL 27.50") != "TOTAL 27.50"


def test_words_that_many_shops_print_are_common(receipts: list[Receipt]) -> None:
    many = [Receipt(str(n), receipts[0].image, {"company": str(n)}, receipts[0].lines) for n in range(6)]
    assert {"DATE", "TOTAL"} <= retold.common_words(many)
    assert not retold.common_words(receipts)


def test_pages_of_training_hold_scans_and_validation_asks_in_two_ways(fonts, receipts: list[Receipt]) -> None:
    batches = TrainingBatches(Library.of(fonts, receipts), STEP_KINDS, seed=0)
    scans = sum(
        batches.library.document(random.Random(n), PAGE_GRIDS[0], 1.0, coloured=False).caseless for n in range(30)
    )
    assert 5 < scans < 25
    plain, new = receipt_sheets(receipts), receipt_sheets(receipts, held_out=True)
    assert pixels(plain[0].grid) == plain[0].documents[0].image.shape[::-1]
    assert plain[0].questions[0][0].answer == new[0].questions[0][0].answer == "17.50"
    assert plain[0].questions[0][0].text != new[0].questions[0][0].text


def test_scans_kept_for_validation_are_papers_with_their_evidence(receipts: list[Receipt], tmp_path: Path) -> None:
    counts = papers.write_scans(receipts, tmp_path)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == counts.total() == 4 * len(receipts)
    assert len({sample["image"] for sample in samples}) == len(receipts)
    asked = {sample["kind"]: sample["question"] for sample in samples}
    papers.write_scans(receipts, tmp_path / "new", held_out=True)
    for line in (tmp_path / "new" / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert sample["question"] != asked[sample["kind"]]
    shown = [sample for sample in samples if "evidence" in sample]
    assert shown
    for sample in shown:
        for left, top, right, bottom in sample["evidence"][0]:
            assert 0 <= left < right <= sample["width"]
            assert 0 <= top < bottom <= sample["height"]
