"""Putting questions: a plain form half of the time, else one of many phrasings, written with more or less care."""

import random
from functools import lru_cache

from arr_coc.training.documents.phrasings import FRAMES, HELD_OUT, PLAIN, QUESTIONS, THINGS

NOT_FOUND = "not found"


def bare(phrasing: str) -> str:
    """What is left of a phrasing without case, politeness and punctuation."""
    letters = "".join(c for c in phrasing.lower() if c.isalnum() or c in " {}_'")
    return " ".join(word for word in letters.split() if word != "please")


@lru_cache(maxsize=1)
def kept_back() -> frozenset[str]:
    """The held-out phrasings, bare: no question of training may come down to one of them."""
    return frozenset(bare(phrasing) for phrasings in HELD_OUT.values() for phrasing in phrasings)


def _careless(rng: random.Random, phrasing: str) -> str:
    """The phrasing as people type it: without capitals, without its last mark, or with a word of politeness."""
    style = rng.random()
    if style < 0.3:
        return phrasing.lower()
    if style < 0.6:
        return phrasing.rstrip("?.")
    if style < 0.75:
        return phrasing.rstrip("?.").lower()
    if style < 0.9:
        return f"Please: {phrasing}"
    return phrasing.upper() if "{" not in phrasing else phrasing


def _free(rng: random.Random, kind: str) -> str:
    """Any phrasing of training; where things have names, half of the time one of those in a frame."""
    if kind in THINGS and rng.random() < 0.5:
        frame = rng.choice(FRAMES).replace("{thing}", rng.choice(THINGS[kind]))
        phrasing = frame[0].upper() + frame[1:] if rng.random() < 0.5 else frame
    else:
        phrasing = rng.choice(QUESTIONS[kind])
    return _careless(rng, phrasing) if rng.random() < 0.2 else phrasing


def ask(rng: random.Random, kind: str, held_out: bool = False, **slots: object) -> str:
    """A question of `kind`, with its slots (`item`, `key`, ...) filled."""
    if held_out:
        return rng.choice(HELD_OUT[kind]).format(**slots)
    phrasing = PLAIN[kind]
    if rng.random() < 0.5:
        phrasing = _free(rng, kind)
        while bare(phrasing) in kept_back():
            phrasing = _free(rng, kind)
    return phrasing.format(**slots)
