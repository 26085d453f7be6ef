"""How sure the numbers are: intervals over pictures, and paired tests.

Questions about one picture succeed and fail together, so pictures are drawn, never questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

DRAWS = 2000
FLIPS = 9999
AT_ONCE = 4_000_000  # numbers held while drawing: data sets have up to 100,000 pictures

Scores = Mapping[str, Sequence[float]]  # picture -> its questions' scores


def mean(scores: Scores) -> float | None:
    """Over all questions."""
    values = [value for picture in scores.values() for value in picture]
    return float(np.mean(values)) if values else None


def interval(scores: Scores, seed: int = 0, draws: int = DRAWS) -> tuple[float, float] | None:
    """The bootstrap's 95% interval of the mean: pictures drawn with replacement."""
    sums, counts = _by_picture(scores)
    if not len(sums):
        return None
    dice = np.random.default_rng(seed)
    even = np.full(len(sums), 1 / len(sums))
    means = []
    for size in _slices(draws, len(sums)):
        drawn = dice.multinomial(len(sums), even, size=size)  # [size, pictures]
        means.append((drawn @ sums) / np.maximum(drawn @ counts, 1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def difference(ours: Scores, theirs: Scores, seed: int = 0) -> tuple[float, tuple[float, float], float] | None:
    """Mean difference on the questions of the pictures that both have, its 95% interval, and a p-value.

    The p-value is that of a paired permutation test: were both equal, each picture's difference could as well have the
    other sign.
    """
    both = [name for name in ours if name in theirs and len(ours[name]) == len(theirs[name]) and len(ours[name])]
    if not both:
        return None
    deltas = {name: [a - b for a, b in zip(ours[name], theirs[name], strict=True)] for name in both}
    found, bounds = mean(deltas), interval(deltas, seed)
    assert found is not None
    assert bounds is not None
    sums, _ = _by_picture(deltas)
    dice = np.random.default_rng(seed)
    as_far = 1
    for size in _slices(FLIPS, len(sums)):
        signs = dice.choice((-1.0, 1.0), size=(size, len(sums)))
        # Sums of the same numbers in another order differ in their last bits, and must not count as less.
        as_far += int((np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9).sum())
    return found, bounds, as_far / (FLIPS + 1)


def _by_picture(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    some = [values for values in scores.values() if len(values)]
    return np.array([sum(values) for values in some], np.float64), np.array([len(v) for v in some], np.float64)


def _slices(draws: int, pictures: int) -> list[int]:
    """`draws` in parts that fit into memory."""
    size = max(1, AT_ONCE // pictures)
    return [min(size, draws - start) for start in range(0, draws, size)]
