"""Metrics of one answer: is it right, and were the cells kept that show it.

A cell is evidence if it overlaps a box by more than a sliver in both directions: by at least an eighth of the cell's side, or
by half of the box's side if the box is smaller than a quarter of a cell. A text line that reaches two pixels into the next
row of cells does not need that row. Every box has at least one cell.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import combinations

import torch

from arr_coc.types.grid import Cells, Evidence, by_moment, moments_of

SLIVER = 0.125  # of a cell's side
ANLS_THRESHOLD = 0.5  # less similar counts as 0
VOTES = 3  # annotators that must agree for full VQA accuracy
DRAWS = 512  # random selections that estimate chance

_ARTICLES = {"a", "an", "the"}
_MARKS = ';/[]"{}()=+\\_-><@`,?!'
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBERS = {word: str(number) for number, word in enumerate(_DIGITS)} | {"none": "0"}


def exact(said: str, answers: Sequence[str]) -> float:
    """1 if the answer, trimmed, is one of the right ones."""
    return float(said.strip() in {answer.strip() for answer in answers})


def similarity(said: str, answer: str) -> float:
    """1 minus the edit distance over the longer length.

    >>> similarity("12.50", "12.80")
    0.8
    """
    if not said and not answer:
        return 1.0
    row = list(range(len(answer) + 1))
    for i, a in enumerate(said, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(answer, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return 1 - row[-1] / max(len(said), len(answer))


def anls(said: str, answers: Sequence[str]) -> float:
    """Normalised Levenshtein similarity to the nearest right answer, in lower case; 0 if it is below 0.5."""
    best = max((similarity(_normalise(said), _normalise(answer)) for answer in answers), default=0.0)
    return best if best >= ANLS_THRESHOLD else 0.0


def vqa(said: str, answers: Sequence[str]) -> float:
    """VQA accuracy: three agreeing annotators are enough; averaged over leaving each annotator out.

    With fewer than four answers, any of them is right.
    """
    words = normalise_vqa(said)
    agree = [normalise_vqa(answer) == words for answer in answers]
    if len(agree) <= VOTES:
        return float(any(agree))
    total = sum(agree)
    return sum(min((total - one) / VOTES, 1.0) for one in agree) / len(agree)


def normalise_vqa(text: str) -> str:
    """Lower case, no punctuation, no articles, numbers as digits, as the VQA challenge compares answers.

    A punctuation mark next to a blank, and every mark if a comma groups digits, is removed; any other becomes a blank.
    A full stop stays only before a digit. Apostrophes are removed, so no list of contractions is needed.

    >>> normalise_vqa("The two dogs."), normalise_vqa("1,000"), normalise_vqa("U.S.A"), normalise_vqa("black/white")
    ('2 dogs', '1000', 'usa', 'black white')
    """
    text = text.lower().replace("\n", " ").replace("\t", " ").strip()
    grouped = re.search(r"\d,\d", text) is not None
    for mark in _MARKS:
        if mark in text:
            text = text.replace(mark, "" if grouped or f"{mark} " in text or f" {mark}" in text else " ")
    text = re.sub(r"\.(?!\d)", "", text).replace("'", "")
    return " ".join(_NUMBERS.get(word, word) for word in text.split() if word not in _ARTICLES)


def yes_no(said: str, answers: Sequence[str]) -> float:
    """Yes or no from the first sentence: no if "no" or "not" is one of its words."""
    words = re.findall(r"\w+", said.lower().split(".")[0])
    verdict = "no" if {"no", "not"} & set(words) else "yes" if words else ""
    return float(verdict in {answer.strip().lower() for answer in answers})


def choice(said: str, answers: Sequence[str]) -> float:
    """Multiple choice: 1 if the letter that is named is the first of `answers`, or, without a letter, if the text is one.

    >>> choice("(B) a dog", ["B", "a dog"]), choice("The answer is B.", ["B"]), choice("A dog.", ["B", "a dog"])
    (1.0, 1.0, 1.0)
    """
    letter = re.match(r"\W*([A-Za-z])(?:\W*$|[.):,])", said.strip())
    letter = letter or re.search(r"(?:answer|option|choice)(?:\s+is)?\W*([A-Z])\b", said, re.IGNORECASE)
    if letter is not None and letter[1].upper() == answers[0]:
        return 1.0
    return float(letter is None and normalise_vqa(said) in {normalise_vqa(answer) for answer in answers[1:]})


METRICS = {"exact": exact, "anls": anls, "vqa": vqa, "yes_no": yes_no, "choice": choice}


def evidence_cells(evidence: Evidence, grid: Cells, size: tuple[int, int], frames: int = 1) -> list[torch.Tensor]:
    """The cells `[C]` of each evidence group on a picture, or on a video of `frames` frames, of `size` (width, height).

    A video box without a frame index holds for the whole clip: its group becomes one group for each moment of the grid.
    """
    moments = moments_of(grid)
    cells = grid.boxes(torch.arange(grid.n), size).double()  # [N, 4]
    side = cells[:, 2:] - cells[:, :2]  # [N, 2]
    found = []
    for group in by_moment(evidence, grid, frames):
        boxes = torch.tensor([box for box, _ in group], dtype=torch.float64)  # [B, 4]
        when = torch.tensor([moment for _, moment in group])  # [B]
        low = torch.maximum(cells[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(cells[:, None, 2:], boxes[None, :, 2:])
        least = torch.minimum(SLIVER * side[:, None], 0.5 * (boxes[None, :, 2:] - boxes[None, :, :2]))  # [N, B, 2]
        # Cell boundaries are rounded: a box that an edge cuts in half must not lose both halves.
        inside = (high - low >= least * (1 - 1e-4)).all(-1) & (moments[:, None] == when)  # [N, B]
        found.append(inside.any(-1).nonzero()[:, 0])
    return found


def recall(keep: torch.Tensor, groups: Sequence[torch.Tensor]) -> float | None:
    """The share of the best evidence group's cells that was kept; None without evidence."""
    shares = [float(torch.isin(group, keep).double().mean()) for group in groups if len(group)]
    return max(shares) if shares else None


def any_hit(keep: torch.Tensor, groups: Sequence[torch.Tensor]) -> float | None:
    """1 if at least one evidence cell was kept; None without evidence."""
    cells = [group for group in groups if len(group)]
    return float(torch.isin(torch.cat(cells), keep).any()) if cells else None


def pointing(relevance: torch.Tensor | None, groups: Sequence[torch.Tensor]) -> float | None:
    """1 if the most relevant cell (`relevance` `[N]`, the first of equals) is evidence; 0 if all are equal."""
    cells = [group for group in groups if len(group)]
    if relevance is None or not cells:
        return None
    values = relevance.detach().float().cpu()
    if bool(values.max() == values.min()):
        return 0.0
    return float(torch.isin(values.argmax(), torch.cat(cells)))


def chance(k: int, n: int, groups: Sequence[torch.Tensor]) -> float | None:
    """The mean recall of `k` random cells of `n`, the baseline of lift.

    With several groups it is sampled, with a seed that depends on the evidence so that errors do not add up over pictures.
    """
    cells = [group for group in groups if len(group)]
    if not cells:
        return None
    if len(cells) == 1:
        return k / n
    generator = torch.Generator().manual_seed(zlib.crc32(repr([n, *(group.tolist() for group in cells)]).encode()))
    ranks = torch.rand(DRAWS, n, generator=generator).argsort(1).argsort(1)  # [DRAWS, N]
    shares = torch.stack([(ranks[:, group] < k).double().mean(1) for group in cells])  # [G, DRAWS]
    return float(shares.max(0).values.mean())


def sensitivity(keeps: Sequence[torch.Tensor]) -> float | None:
    """How much the kept cells change with the question: 1 minus the mean Jaccard index over pairs of questions."""
    sets = [set(keep.tolist()) for keep in keeps]
    pairs = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in combinations(sets, 2)]
    return 1 - sum(pairs) / len(pairs) if pairs else None


def _normalise(text: str) -> str:
    return " ".join(text.lower().split())
