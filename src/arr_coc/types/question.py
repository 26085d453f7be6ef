"""A question: its check, which every way in uses (Python, command line, page, evaluation, video), its words, and its kind.

The kind (find, read, count, compare, describe, or what is odd) moves the weights (`arr_coc.relevance.strategy`). A linear
classifier over hashed letters and words, trained by `python -m recipes.question_kinds` on drawn questions of each kind, tells
them apart. Its weights are 50 KB, and it takes a fraction of a millisecond.
"""

from __future__ import annotations

import itertools
import re
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from arr_coc.errors import PromptError

MAX_CHARACTERS = 20_000  # of a question; a model's own limit, in tokens, is usually lower
WORDS_THAT_ASK = """
a an the this that these those there here some any
is are was were be been being do does did has have had can could will would shall should may might must
what which who whom whose where when why how many much
i me my we us our you your he him his she her it its they them their
of in on at to from by for with about as into onto and or
see seen show shown tell describe find point locate please look
picture image photo photograph
"""
STOP_WORDS = frozenset(WORDS_THAT_ASK.split())
KINDS = ("find", "read", "count", "compare", "describe", "odd")
WEIGHTS = Path(__file__).with_name("question_kinds.safetensors")
BUCKETS = 8192
LENGTHS = (2, 3, 4, 5)  # letters of an n-gram
MOST_LETTERS = 400  # of the question's end: instructions come first in long prompts
LEAST = 0.4  # probability below which a question counts as one to read, which changes nothing


def check_question(question: object, limit: int = MAX_CHARACTERS) -> str:
    """The question, if it is valid text, not empty, and at most `limit` characters long."""
    if not isinstance(question, str):
        raise PromptError(f"expected a question as text, got {type(question).__name__}")
    if not question.strip():
        raise PromptError("expected a question, got an empty one: write one, such as 'What is the total amount?'")
    if len(question) > limit:
        raise PromptError(f"expected a question of at most {limit:,} characters, got {len(question):,}: shorten it")
    return check_text(question)


def check_text(text: str) -> str:
    """The text, if it is valid Unicode without NUL characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[error.start : error.start + 1].encode("unicode_escape").decode()
        raise PromptError(
            f"expected a question in valid Unicode, got {shown} at character {error.start + 1}: save or type it as UTF-8"
        ) from None
    if "\x00" in text:
        raise PromptError("expected a question without NUL characters, got one: remove it")
    return text


def check_question_tokens(count: int, limit: int | None) -> None:
    """Raise where a question of `count` tokens is longer than a model reads."""
    if limit is not None and count > limit:
        raise PromptError(
            f"expected a question of at most {limit:,} tokens, which this model reads, got {count:,}: shorten it"
        )


def subject(question: str) -> str:
    """The words that a question is about, in lower case; the whole question if it has none but stop words.

    Image-text encoders are trained on captions, so the words that only ask are removed.

    >>> subject("Where is the stop sign?"), subject("What is this?")
    ('stop sign', 'what is this')
    """
    words = re.findall(r"[^\W_]+(?:['’.,-][^\W_]+)*", question.lower())
    kept = [word for word in words if word not in STOP_WORDS]
    return " ".join(kept or words) or question.strip()


def names_something(question: str) -> bool:
    """Whether the question contains a word that names a thing."""
    return any(word not in STOP_WORDS for word in subject(question).split())


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
    logits = scale * (weights.astype(np.float64) @ features(question)) + bias
    chances = np.exp(logits - logits.max())
    return tuple((chances / chances.sum()).tolist())


def probabilities(question: str) -> np.ndarray:
    """The probability of each of `KINDS`."""
    return np.array(_probabilities(question))


def features(question: str) -> np.ndarray:
    """How often each bucket of n-grams, words and pairs of words occurs in a question, as a vector `[BUCKETS]` of length 1."""
    plain = " ".join("".join(letter if letter.isalnum() else " " for letter in question.lower()).split())[
        -MOST_LETTERS:
    ]
    text, words = f"  {plain}  ", ["<", *plain.split(), ">"]
    found = np.zeros(BUCKETS)
    for length in LENGTHS:
        for start in range(len(text) - length + 1):
            found[zlib.crc32(text[start : start + length].encode()) % BUCKETS] += 1
    for word in words:
        found[zlib.crc32(f"w {word}".encode()) % BUCKETS] += 2
    for pair in itertools.pairwise(words):
        found[zlib.crc32(f"b {' '.join(pair)}".encode()) % BUCKETS] += 1
    return np.sqrt(found) / max(1e-9, float(np.sqrt(found.sum())))


@lru_cache(maxsize=1)
def _weights() -> tuple[float, np.ndarray, np.ndarray]:
    """Scale, weights as whole numbers `[KINDS, BUCKETS]`, and bias `[KINDS]`."""
    stored = load_file(WEIGHTS)
    return float(stored["scale"][0]), stored["weights"], stored["bias"]
