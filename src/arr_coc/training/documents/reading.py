"""Questions that any document with text allows: read on after a prefix, read what stands at a place."""

import random

from arr_coc.training.documents.page import Document, Question
from arr_coc.training.documents.questions import ask

LONGEST = 60


def _after(rng: random.Random, texts: list[str], held_out: bool) -> Question | None:
    index = rng.randrange(len(texts))
    text = texts[index]
    if not 8 <= len(text) <= LONGEST or not any(map(str.isalnum, text)):
        return None
    cut = rng.randint(3, min(10, len(text) - 3))
    prefix, rest = text[:cut].strip(), text[cut:].strip()
    if len(prefix) < 3 or not rest or sum(prefix in other for other in texts) > 1:
        return None
    return Question("after", ask(rng, "after", held_out, prefix=prefix), rest, (index,))


def _place(rng: random.Random, texts: list[str], starts: list[tuple[int, int]], held_out: bool) -> Question | None:
    index = rng.randrange(len(texts))
    if (
        not any(map(str.isalnum, texts[index][:LONGEST]))
        or len(texts[index]) > LONGEST
        or starts.count(starts[index]) > 1
        or min(starts[index]) < 0
    ):
        return None
    row, column = starts[index]
    return Question("place", ask(rng, "place", held_out, row=row, column=column), texts[index], (index,))


def reading_questions(
    rng: random.Random, document: Document, starts: list[tuple[int, int]], count: int, held_out: bool = False
) -> list[Question]:
    """Up to `count` questions; `starts` are the cells `(row, column)` in which the lines begin."""
    if not document.lines:
        return []
    texts = [line.text.upper() if document.capitals else line.text for line in document.lines]
    questions = []
    for _ in range(count):
        question = _after(rng, texts, held_out) if rng.random() < 0.35 else _place(rng, texts, starts, held_out)
        if question is not None:
            questions.append(question)
    return questions
