"""What a layer was asked in training, so that it is not believed at once when it is asked something else.

A question is told by what the layer hears of it: of each feature the largest over all words. How near questions of training lie to
each other tells how near to one of them a question has to lie to be put as it was in training; any other is new to the layer.
New words may mean an old question: what to do about them is decided in `arr_coc.coupling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

MOST = 4096  # questions that are remembered
SAME, OTHER = 0.02, 0.3  # apart by less: the same question; by more: another one, however few there were
USUAL = 0.4  # of the questions of one half are as near to the other half as a question may be that is not new


def told(heard: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """Questions `[Q, d]` from what is heard of their words `[Q, T, d]`, of which `asked` `[Q, T]` are there."""
    return heard.masked_fill(~asked[..., None], -torch.inf).amax(1)


def memory(questions: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What to remember of the questions `[Q, d]` of training: some of them `[M, d]`, their middle `[d]`, how near is near `[]`.

    How near is usual is told by two halves of them.
    """
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(seed))
    middle = questions.mean(0)
    each = F.normalize(questions[order] - middle, dim=-1)
    kept = _apart(each)
    near = distances(kept[::2], kept[1::2]).quantile(USUAL) if len(kept) > 1 else kept.new_tensor(SAME)
    return kept.half(), middle, near.clamp(SAME, OTHER)


def novelty(question: torch.Tensor, kept: torch.Tensor, middle: torch.Tensor, near: torch.Tensor) -> float | None:
    """How far a question `[d]` is from those of training: up to 1 where it is put as they were; None where none are remembered."""
    if not len(kept):
        return None
    return float(distances(F.normalize(question - middle, dim=-1)[None], kept.to(question.dtype))[0] / near)


def distances(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """From each of `[A, d]` to the nearest of `[B, d]`, 1 minus the cosine: `[A]`."""
    return (1 - (some @ others.T).amax(1)).clamp(min=0)


def _apart(questions: torch.Tensor) -> torch.Tensor:
    """Of questions `[Q, d]` those that differ, at most `MOST`, in their order."""
    kept: list[torch.Tensor] = []
    for block in torch.split(questions, 256):
        fresh = block if not kept else block[distances(block, torch.cat(kept)) > SAME]
        alike = fresh @ fresh.T > 1 - SAME
        first = ~torch.tril(alike, -1).any(1)
        kept.append(fresh[first])
        if sum(map(len, kept)) >= MOST:
            break
    return torch.cat(kept)[:MOST]


def padded(words: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Questions of different lengths side by side: `[Q, T, W]` in float32, and which words are there `[Q, T]`."""
    longest = max(len(one) for one in words)
    together = torch.zeros(len(words), longest, words[0].shape[-1])
    there = torch.zeros(len(words), longest, dtype=torch.bool)
    for row, one in enumerate(words):
        together[row, : len(one)] = one.float()
        there[row, : len(one)] = True
    return together, there
