"""Confidence intervals over pictures, and paired tests.

Questions about one picture are correlated, so pictures are resampled, never questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

DRAWS = 2000
FLIPS = 9999
MAX_NUMBERS = 4_000_000  # in memory at once: data sets have up to 100,000 pictures

Scores = Mapping[str, Sequence[float]]  # picture -> one score per question


def mean(scores: Scores) -> float | None:
    """The mean over all questions."""
    values = [value for picture in scores.values() for value in picture]
    return float(np.mean(values)) if values else None


def interval(scores: Scores, seed: int = 0, draws: int = DRAWS) -> tuple[float, float] | None:
    """The 95% bootstrap interval of the mean; pictures are drawn with replacement."""
    sums, counts = _by_picture(scores)
    if not len(sums):
        return None
    rng = np.random.default_rng(seed)
    equal = np.full(len(sums), 1 / len(sums))
    means = []
    for size in _chunks(draws, len(sums)):
        drawn = rng.multinomial(len(sums), equal, size=size)  # [size, pictures]
        means.append((drawn @ sums) / np.maximum(drawn @ counts, 1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def difference(ours: Scores, theirs: Scores, seed: int = 0) -> tuple[float, tuple[float, float], float] | None:
    """Mean difference on the pictures that both have, its 95% interval, and the p-value of a paired permutation test.

    Under the null hypothesis each picture's difference could have either sign.
    """
    both = [name for name in ours if name in theirs and len(ours[name]) == len(theirs[name]) and len(ours[name])]
    if not both:
        return None
    deltas = {name: [a - b for a, b in zip(ours[name], theirs[name], strict=True)] for name in both}
    found, bounds = mean(deltas), interval(deltas, seed)
    assert found is not None
    assert bounds is not None
    sums, _ = _by_picture(deltas)
    rng = np.random.default_rng(seed)
    as_large = 1
    for size in _chunks(FLIPS, len(sums)):
        signs = rng.choice((-1.0, 1.0), size=(size, len(sums)))
        # Sums in another order differ in their last bits, which must not count as smaller.
        as_large += int((np.abs(signs @ sums) >= abs(sums.sum()) - 1e-9).sum())
    return found, bounds, as_large / (FLIPS + 1)


def _by_picture(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    known = [values for values in scores.values() if len(values)]
    return np.array([sum(values) for values in known], np.float64), np.array([len(v) for v in known], np.float64)


def _chunks(draws: int, pictures: int) -> list[int]:
    """`draws` in chunks that fit into memory."""
    size = max(1, MAX_NUMBERS // pictures)
    return [min(size, draws - start) for start in range(0, draws, size)]
