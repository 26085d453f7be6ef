"""From a question to the words that name what it is about.

Image-text encoders know captions, not questions: "Where is the dog?" is mostly about asking. The words that ask are taken
out; what is left is what to look for. docs/embeddings.md has the figures for the default encoder.
"""

from __future__ import annotations

import re

WORDS_THAT_ASK = """
a an the this that these those there here some any
is are was were be been being do does did has have had can could will would shall should may might must
what which who whom whose where when why how many much
i me my we us our you your he him his she her it its they them their
of in on at to from by for with about as into onto and or
see seen show shown tell describe find point locate please look
picture image photo photograph
"""
ASKING = frozenset(WORDS_THAT_ASK.split())


def subject(question: str) -> str:
    """The words a question is about, small letters; the whole question where it only asks.

    >>> subject("Where is the stop sign?"), subject("What is this?")
    ('stop sign', 'what is this')
    """
    words = re.findall(r"[^\W_]+(?:['’.,-][^\W_]+)*", question.lower())
    kept = [word for word in words if word not in ASKING]
    return " ".join(kept or words) or question.strip()
