"""Settings of the reader recipe and the mix of documents."""

import pytest

from recipes.reader.recipe import SCHEDULE_SECONDS, STEP_KINDS, Settings, StepKind, step_shares, without_dropped_cells


def test_the_clock_leaves_the_reserve_and_ends_with_the_schedule() -> None:
    started = 900.0
    limited = Settings(seconds=600, schedule_seconds=1200, reserve=25).clock(0.0, started, now=lambda: 1000.0)
    assert limited.total == limited.left() == 600 - 100 - 25
    assert Settings().clock(0.0, started, now=lambda: 1000.0).left() == SCHEDULE_SECONDS
    with pytest.raises(ValueError, match="finish"):
        Settings(finish=True)


def test_the_mix_may_start_later_than_the_learning_rate() -> None:
    later = Settings(mix_from=0.4)
    assert [round(later.mix_at(progress), 3) for progress in (0.0, 0.5, 1.0)] == [0.4, 0.7, 1.0]


def test_shares_of_steps_sum_to_one_with_and_without_dropped_cells() -> None:
    for kinds in (STEP_KINDS, without_dropped_cells(STEP_KINDS)):
        for progress in (0.0, 0.4, 1.0):
            assert sum(step_shares(kinds, progress)) == pytest.approx(1)
    assert all(kind.kept == kind.cells for kind in without_dropped_cells(STEP_KINDS))


def test_bad_kinds_of_steps() -> None:
    with pytest.raises(ValueError, match="same number of cells"):
        StepKind("bad", ((2, 3), (2, 2)), (0.5, 0.5), 1, 4, 4, 9, 0.5, 0.5)
    with pytest.raises(ValueError, match="kept <= encoded <= cells, got 5, 4, 6"):
        StepKind("bad", ((2, 3),), (1.0,), 1, 4, 5, 9, 0.5, 0.5)
