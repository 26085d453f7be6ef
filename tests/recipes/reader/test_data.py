"""The supply reuses batches while rendering is slow; training pages include scans; ranks draw different documents."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from arr_coc.training.documents.questions import NOT_FOUND
from recipes.reader.batches import Batch
from recipes.reader.data import BatchSupply, Library, TrainingBatches
from recipes.reader.receipts import Receipt
from recipes.reader.recipe import MEDIUM_GRIDS, PAGE_GRIDS, STEP_KINDS, TINY_STEP_KINDS, Mix, pixels
from recipes.reader.validation import receipt_sheets
from tests.recipes.reader import ranks


@pytest.fixture(scope="module")
def batch(fonts) -> Batch:
    return TrainingBatches(Library(fonts), TINY_STEP_KINDS, seed=0).make(random.Random(0), 0.0)


def test_a_batch_is_used_again_while_none_is_fresh(batch: Batch) -> None:
    more = threading.Event()

    def slow() -> Iterator[Batch]:
        yield batch
        more.wait(10)
        yield batch

    supply = BatchSupply(slow(), "cpu", uses=2)
    first, again = supply.next(), supply.next()
    assert again is first
    more.set()
    assert supply.next() is not first
    assert supply.fresh_count == 2
    supply.stop()


def test_the_kind_that_others_train_on_is_preferred_and_never_waited_for(batch: Batch) -> None:
    small, half, part = (replace(batch, kind=kind) for kind in TINY_STEP_KINDS)
    supply = BatchSupply([small, half, small], "cpu", uses=2)
    supply._thread.join(10)
    assert supply.next().kind == small.kind
    assert supply.next(like=half.kind).kind == half.kind  # fresh
    assert supply.fresh_count == 2
    assert supply.next(like=half.kind).kind == half.kind  # the same once more, though another kind is fresh
    assert supply.fresh_count == 2
    assert supply.next(like=part.kind).kind == small.kind  # there is none of it
    assert supply.fresh_count == 3


def test_fresh_batches_of_other_kinds_do_not_pile_up(batch: Batch) -> None:
    small, half, _ = (replace(batch, kind=kind) for kind in TINY_STEP_KINDS)
    supply = BatchSupply([half, *[small] * 60], "cpu", uses=3)
    assert [supply.next(like=half.kind).kind for _ in range(5)] == [half.kind] * 3 + [small.kind] * 2
    assert len(supply._aside) <= 16
    supply.stop()


def test_a_failing_renderer_is_an_error(batch: Batch) -> None:
    def broken() -> Iterator[Batch]:
        yield batch
        raise OSError("no font")

    supply = BatchSupply(broken(), "cpu", uses=1)
    supply.next()
    with pytest.raises(RuntimeError, match="renderers stopped"):
        supply.next()


def test_training_pages_include_scans_and_validation_has_two_phrasings(fonts, receipts: list[Receipt]) -> None:
    batches = TrainingBatches(Library.from_receipts(fonts, receipts), STEP_KINDS, seed=0)
    scans = sum(
        batches.library.document(random.Random(n), PAGE_GRIDS[0], 1.0, coloured=False).caseless for n in range(30)
    )
    assert 5 < scans < 25
    plain, held_out = receipt_sheets(receipts), receipt_sheets(receipts, held_out=True)
    assert pixels(plain[0].grid) == plain[0].documents[0].image.shape[::-1]
    assert plain[0].questions[0][0].answer == held_out[0].questions[0][0].answer == "17.50"
    assert plain[0].questions[0][0].text != held_out[0].questions[0][0].text


def test_ranks_draw_the_same_kinds_and_other_documents() -> None:
    library = ranks.library()
    streams = [iter(TrainingBatches(library, TINY_STEP_KINDS, seed=0, rank=rank)) for rank in range(2)]
    pairs = [(next(streams[0]), next(streams[1])) for _ in range(6)]
    assert all(one.kind == other.kind for one, other in pairs)
    assert len({one.kind.name for one, _ in pairs}) > 1
    assert not any(torch.equal(one.tokens, other.tokens) for one, other in pairs)
    alone = TrainingBatches(library, TINY_STEP_KINDS, seed=0).make(random.Random("0/0/0"), 0.0)
    assert torch.equal(alone.images, pairs[0][0].images)


def test_pages_hold_all_kinds_of_drawings_and_pictures_without_documents(fonts, tmp_path: Path) -> None:
    Image.new("RGB", (90, 60), (200, 40, 40)).save(tmp_path / "red.jpg")
    library = Library(fonts, photos=(tmp_path / "red.jpg",), mix=Mix(papers=(0.5, 0.5), empty=(0.3, 0.3)))
    drawn = [library.document(random.Random(n), grid, 1.0, False) for n in range(12) for grid in MEDIUM_GRIDS[:4]]
    empty = [document for document in drawn if not document.lines]
    assert 5 < len(empty) < 30
    asked = [q for document in empty for q in document.questions if not q.whole]
    assert {q.answer for q in asked} <= {NOT_FOUND, "no", "0"}
    assert all(q.absent for q in asked)
    red = [document for document in empty if document.image[0, 0].tolist() == [200, 40, 40]]
    assert not {"is there", "count", "where"} & {q.kind for document in red for q in document.questions}
    kinds = {q.kind for document in drawn for q in document.questions}
    assert len(kinds) > 40  # the first four families alone ask 13


def test_sparse_steps_ask_nothing_about_all_of_a_page(fonts) -> None:
    library = Library(fonts, mix=Mix(papers=(1.0, 1.0), empty=(0.0, 0.0)))
    dense, sparse = TINY_STEP_KINDS[0], replace(TINY_STEP_KINDS[0], kept=8)
    batches = TrainingBatches(library, (dense, sparse), seed=0)
    pages = [
        [batches.document(random.Random(seed), kind, MEDIUM_GRIDS[2], 1.0, False) for seed in range(3)]
        for kind in (dense, sparse)
    ]
    for whole, part in zip(*pages, strict=True):
        assert part.questions == tuple(question for question in whole.questions if not question.whole)
        assert len(part.questions) < len(whole.questions)
