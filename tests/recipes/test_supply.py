"""The supply: fresh batches first, old ones again while the renderers are slow, and their failures handed on."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from recipes.reader.batches import Batch
from recipes.reader.recipe import TINY_STEP_KINDS
from recipes.reader.source import Library, TrainingBatches
from recipes.reader.supply import Supply


@pytest.fixture(scope="module")
def batch(fonts) -> Batch:
    return TrainingBatches(Library(fonts), TINY_STEP_KINDS, seed=0).make(random.Random(0), 0.0)


def test_a_batch_is_used_again_while_none_is_fresh(batch: Batch) -> None:
    more = threading.Event()

    def slow() -> Iterator[Batch]:
        yield batch
        more.wait(10)
        yield batch

    supply = Supply(slow(), "cpu", uses=2)
    first, again = supply.next(), supply.next()
    assert again is first
    more.set()
    assert supply.next() is not first
    assert supply.fresh_count == 2
    supply.stop()


def test_the_kind_that_others_train_on_is_preferred_and_never_waited_for(batch: Batch) -> None:
    small, half, part = (replace(batch, kind=kind) for kind in TINY_STEP_KINDS)
    supply = Supply([small, half, small], "cpu", uses=2)
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
    supply = Supply([half, *[small] * 60], "cpu", uses=3)
    assert [supply.next(like=half.kind).kind for _ in range(5)] == [half.kind] * 3 + [small.kind] * 2
    assert len(supply._aside) <= 16
    supply.stop()


def test_a_failing_renderer_is_told(batch: Batch) -> None:
    def broken() -> Iterator[Batch]:
        yield batch
        raise OSError("no font")

    supply = Supply(broken(), "cpu", uses=1)
    supply.next()
    with pytest.raises(RuntimeError, match="renderers stopped"):
        supply.next()
