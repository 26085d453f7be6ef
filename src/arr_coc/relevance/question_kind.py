"""The kind of a question: find, read, count, compare, describe, or what is odd. It moves the weights (`strategy.py`).

A linear classifier over hashed character n-grams, trained by `python -m recipes.question_kinds` on drawn questions of each kind.
Its weights are a few kilobytes, and it takes a fraction of a millisecond.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

KINDS = ("find", "read", "count", "compare", "describe", "odd")
WEIGHTS = Path(__file__).with_name("question_kinds.safetensors")
BUCKETS = 1024
LENGTHS = (2, 3, 4, 5)  # letters of an n-gram
MOST_LETTERS = 400  # of the question's end: instructions come first in long prompts
LEAST = 0.4  # probability below which a question counts as one to read, which changes nothing


def question_kind(question: str) -> str:
    """One of `KINDS`; "read" where the classifier is not sure.

    >>> question_kind("How many dogs are there?"), question_kind("What is the total amount?"), question_kind("Describe it.")
    ('count', 'read', 'describe')
    """
    found = probabilities(question)
    best = int(found.argmax())
    return KINDS[best] if found[best] >= LEAST else "read"


@lru_cache(maxsize=256)
def _probabilities(question: str) -> tuple[float, ...]:
    scale, weights, bias = _weights()
    logits = scale * (weights.astype(np.float64) @ ngrams(question)) + bias
    chances = np.exp(logits - logits.max())
    return tuple((chances / chances.sum()).tolist())


def probabilities(question: str) -> np.ndarray:
    """The probability of each of `KINDS`."""
    return np.array(_probabilities(question))


def ngrams(question: str) -> np.ndarray:
    """How often each bucket of n-grams occurs in a question, as a vector `[BUCKETS]` of length 1."""
    words = " ".join("".join(letter if letter.isalnum() else " " for letter in question.lower()).split())
    text = f"  {words[-MOST_LETTERS:]}  "
    found = np.zeros(BUCKETS)
    for length in LENGTHS:
        for start in range(len(text) - length + 1):
            found[zlib.crc32(text[start : start + length].encode()) % BUCKETS] += 1
    return np.sqrt(found) / max(1e-9, float(np.sqrt(found.sum())))


@lru_cache(maxsize=1)
def _weights() -> tuple[float, np.ndarray, np.ndarray]:
    """Scale, weights as whole numbers `[KINDS, BUCKETS]`, and bias `[KINDS]`."""
    stored = load_file(WEIGHTS)
    return float(stored["scale"][0]), stored["weights"], stored["bias"]
