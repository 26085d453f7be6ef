"""Questions to fit and validate with where the user brings none: everyday things, asked for in a few ways.

Half of them have a say in the fit, the other half judge it, things and wordings mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arr_coc.errors import DataError

WAYS = ("Where is the {}?", "Is there a {} in the picture?", "the {}", "What colour is the {}?", "Find the {}.")
THINGS = (
    "dog", "ladder", "bicycle", "window", "spoon", "mountain", "keyboard", "flower", "bridge", "hat", "river", "clock", "child",
    "fence", "sandwich", "lamp", "boat", "shoe", "tree", "guitar", "horse", "price tag", "curtain", "truck", "bottle", "beach",
    "umbrella", "door", "cake", "motorcycle", "street sign", "pillow", "bird", "roof", "plate of food", "newspaper", "wheel",
    "cloud", "sofa", "cup of coffee", "snow", "telephone", "woman in a coat", "traffic light", "carpet", "fish", "bench", "mirror",
    "tomato", "staircase", "airplane", "book", "grass", "bus", "glass of water", "cat", "poster", "hand", "candle", "tower",
    "suitcase", "bowl of fruit", "road", "kite", "shop window", "ball", "oven", "sheep", "handbag", "monument", "fire", "bed",
    "camera", "bread", "garden", "train", "painting", "rock", "tent", "knife", "crowd of people", "skateboard", "shelf", "rain",
    "number on the shirt", "butterfly", "basket", "statue", "television", "field", "engine", "elephant", "shadow", "ice cream",
)  # fmt: skip


def everyday() -> list[str]:
    """The built-in questions, always the same: each thing in one of the ways."""
    return [WAYS[number % len(WAYS)].format(thing) for number, thing in enumerate(THINGS)]


def halves(questions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Questions to fit with and others to judge with; a single one does both."""
    if len(questions) < 2:
        return list(questions), list(questions)
    return list(questions[0::2]), list(questions[1::2])


def read_questions(path: str | Path) -> list[str]:
    """The different questions of a file with one a line, or of a folder with `samples.jsonl`, in their order."""
    place = Path(path)
    if place.is_dir():
        from arr_coc.evaluation.data import read_samples

        found = [sample.question for picture in read_samples(place).pictures for sample in picture.samples]
    else:
        try:
            found = [line.strip() for line in place.read_text(encoding="utf-8-sig").splitlines()]
        except UnicodeDecodeError:
            raise DataError(f"expected questions as text, one a line, in {str(place)!r}: it is not UTF-8") from None
        except OSError as error:
            raise DataError(f"cannot read the questions {str(place)!r}: {error.strerror}") from None
    questions = list(dict.fromkeys(question for question in found if question))
    if not questions:
        raise DataError(f"expected questions in {str(place)!r}, one a line, found none")
    return questions
