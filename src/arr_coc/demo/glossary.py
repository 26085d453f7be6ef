"""What the page's terms mean. They are shown when the pointer, the focus or a finger is on a term."""

from __future__ import annotations

import re

from arr_coc.relevance.explanation import MEANING

GLOSSARY: dict[str, str] = {
    "token": "one visual token: what the model knows of one cell of the image",
    "cell": "the part of the image that one visual token covers",
    "budget": "how many visual tokens the language model reads. Auto: as many as the question needs",
    "detail": "how a large image is shown: views (the part with text, larger), off, or auto: views for small text",
    "straighten": "whether a document that is turned, tilted or in perspective is shown upright: auto or off",
    "glance": "how many cells the vision encoder encodes at all. Auto: as many as the image and the question need",
    "selector": "the method that chooses the tokens",
    "layer": "a small trained network that scores the cells of this model for a question",
    "encoded": "the vision encoder computed a token for the cell",
    "read": "the language model got the token",
    "kept": "the language model got the token",
    "relevance": "how much a cell matters for the question: the weighted sum of its scores",
    "way of knowing": "one of the scores of a cell: information, salience or coupling",
    "tension": "a number from 0 to 1 between two opposite aims. It says how the scores were balanced",
    "weight": "how much a score counts in the relevance. Weights need not sum to 1",
    "information": f"way of knowing: {MEANING['information']}",
    "salience": f"way of knowing: {MEANING['salience']}",
    "coupling": f"way of knowing: {MEANING['coupling']}",
    "text": "likelihood that the cell shows text",
    "trust": "how certain the coupling is, from 0 to 1",
    "particularize": "tension. Near 0: the question matches all cells alike; near 1: it matches few of them",
    "exploit": "tension. Near 0: explore cells with much information; near 1: trust the cells that match the question",
    "focus": "tension. Near 0: spread over the image; near 1: stay with the most relevant cells",
    "evidence": "the cells that show the answer: those of the box that you drew, or of the example",
    "pyramid level": "0 is the full size; each level halves it",
    "preprocess": "the model's processor resizes the image and cuts it into patches",
    "texture": "the channels of the image that the scores need",
    "embed": "the image-text encoder reads the image and the question",
    "encode": "the vision encoder runs on the chosen cells",
    "probe": "the first layers of the language model run once, to see which cells they attend to",
    "gaze": "the tokens to read are chosen among the encoded ones",
    "assemble": "the prompt without the dropped tokens is built",
    "prefill": "the language model reads the prompt",
    "decode": "the language model writes the answer",
}
PLURALS = {"tokens": "token", "cells": "cell", "tensions": "tension", "weights": "weight", "scores": "way of knowing"}


def explain(term: str) -> str:
    """What a term means; empty where it is none.

    >>> explain("Weights") == GLOSSARY["weight"]
    True
    """
    word = term.lower().strip()
    return GLOSSARY.get(PLURALS.get(word, word), "")


_TERMS = ("tensions", "weights", *GLOSSARY)
_WORDS = re.compile(rf"\b({'|'.join(sorted(map(re.escape, _TERMS), key=len, reverse=True))})\b", re.IGNORECASE)


def split_terms(text: str) -> list[tuple[str, str]]:
    """A sentence in pieces with their meanings; the first use of each term has one.

    >>> [piece for piece, meaning in split_terms("Tensions: trust 1.00, no trust.") if meaning]
    ['Tensions', 'trust']
    """
    pieces, seen, at = [], set(), 0
    for found in _WORDS.finditer(text):
        word = found[0].lower()
        if word in seen:
            continue
        seen.add(word)
        pieces += [(text[at : found.start()], ""), (found[0], explain(word))]
        at = found.end()
    return [piece for piece in (*pieces, (text[at:], "")) if piece[0]]
