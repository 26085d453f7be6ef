"""The supply: fresh batches first, old ones again while the renderers are slow, and their failures handed on."""

import random
import threading
from collections.abc import Iterator

import pytest

from arr_coc.training.batches import Batch
from arr_coc.training.recipe import TINY_STEP_KINDS
from arr_coc.training.source import Library, TrainingBatches
from arr_coc.training.supply import Supply


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


def test_a_failing_renderer_is_told(batch: Batch) -> None:
    def broken() -> Iterator[Batch]:
        yield batch
        raise OSError("no font")

    supply = Supply(broken(), "cpu", uses=1)
    supply.next()
    with pytest.raises(RuntimeError, match="renderers stopped"):
        supply.next()
