"""Novelty: how far an image and a question are from the layer's training data, so that the layer is trusted only near it.

- An image is described by the mean and standard deviation of its channels over its cells. Its novelty is the squared
  Mahalanobis distance from the training images divided by the number of dimensions: about 1 for one of them, 3 and more for
  photographs if the layer saw only pages.
- A question is described by its encoded words, max-pooled. Its novelty is the cosine distance to the nearest training
  question, relative to the usual distance between training questions: up to 1 for one worded like them. New words may
  still mean a known question: `arr_coc.relevance.coupling` decides what to do then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

POSITION_CHANNELS = ("x", "y", "eccentricity")  # the same in every image
MIN_VARIANCE = 1e-4  # channels lie in [0, 1]: differences of 1% do not count
MAX_QUESTIONS = 4096  # training questions that are stored
SLOW_CHANNELS = ("saliency", "distance")  # more than half of the time of all
DUPLICATE, MAX_NEAR = 0.02, 0.3  # distances: below, two questions are the same; above, they never count as near
NEAR_QUANTILE = 0.4  # quantile of the distances between two halves of the questions that counts as near


def image_statistics(channels: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """Mean and standard deviation `[S]` of an image's channels `[t, C, h, w]`, without the position channels."""
    some = [number for number, name in enumerate(names) if name not in POSITION_CHANNELS]
    # Taken one by one: a list of indices would be copied to a GPU, and the host would wait for that.
    values = torch.stack([channels[:, number].float().flatten() for number in some])
    spread = values.std(1) if values.shape[1] > 1 else torch.zeros(len(some), device=values.device)
    return torch.cat([values.mean(1), spread])


def statistics_size(names: Sequence[str]) -> int:
    """Length of `image_statistics` for these channels."""
    return 2 * len([name for name in names if name not in POSITION_CHANNELS])


def fit_images(statistics: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean `[S]` and inverse covariance `[S, S]` of the training images' statistics."""
    table = torch.stack(list(statistics)).double()
    centred = table - table.mean(0)
    covariance = centred.T @ centred / len(table) + MIN_VARIANCE * torch.eye(table.shape[1], dtype=torch.float64)
    return table.mean(0).float(), torch.linalg.inv(covariance).float()


def image_novelty(statistics: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Squared Mahalanobis distance of an image's statistics `[S]`, per dimension: about 1 for a training image: `[]`."""
    away = statistics - mean
    return away @ inverse @ away / max(1, len(away))


def marginal_novelty(
    statistics: torch.Tensor, names: Sequence[str], every: Sequence[str], mean: torch.Tensor, inverse: torch.Tensor
) -> float:
    """A lower bound of an image's novelty, from the statistics of the channels `names`, which are some of `every`.

    It is the smallest novelty that any statistics of the other channels could give (a Schur complement).
    """
    known = [name for name in every if name not in POSITION_CHANNELS] * 2  # means, then standard deviations
    here = torch.tensor([name in names for name in known], dtype=torch.bool)
    away, matrix = statistics.double() - mean.double()[here], inverse.double()
    across, rest = matrix[here][:, ~here], matrix[~here][:, ~here]
    own = matrix[here][:, here] - across @ torch.linalg.pinv(rest, hermitian=True) @ across.T
    return float(away @ own @ away) / max(1, len(known))


def pool_words(words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Questions `[Q, d]` from encoded words `[Q, T, d]`, max-pooled over the words where `mask` `[Q, T]` is set."""
    return words.masked_fill(~mask[..., None], -torch.inf).amax(1)


def fit_questions(questions: torch.Tensor, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What to store of the training questions `[Q, d]`: some of them `[M, d]`, their mean `[d]`, and the near distance `[]`.

    The near distance is measured between two halves of them.
    """
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(seed))
    mean = questions.mean(0)
    stored = _deduplicate(F.normalize(questions[order] - mean, dim=-1))
    distances = nearest_distances(stored[::2], stored[1::2]) if len(stored) > 1 else None
    near = stored.new_tensor(DUPLICATE) if distances is None else distances.quantile(NEAR_QUANTILE)
    return stored.half(), mean, near.clamp(DUPLICATE, MAX_NEAR)


def question_novelty(
    question: torch.Tensor, stored: torch.Tensor, mean: torch.Tensor, near: torch.Tensor
) -> torch.Tensor:
    """Distance of a question `[d]` from the training questions, one or more: `[]`, up to 1 for a familiar wording."""
    direction = F.normalize(question - mean, dim=-1)
    return nearest_distances(direction[None], stored.to(question.dtype))[0] / near


def nearest_distances(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """1 - cosine from each of `[A, d]` to the nearest of `[B, d]`: `[A]`."""
    return (1 - (some @ others.T).amax(1)).clamp(min=0)


def _deduplicate(questions: torch.Tensor) -> torch.Tensor:
    """Questions `[Q, d]` without duplicates, at most `MAX_QUESTIONS`, in their order."""
    kept: list[torch.Tensor] = []
    for block in torch.split(questions, 256):
        fresh = block if not kept else block[nearest_distances(block, torch.cat(kept)) > DUPLICATE]
        similar = fresh @ fresh.T > 1 - DUPLICATE
        kept.append(fresh[~torch.tril(similar, -1).any(1)])
        if sum(map(len, kept)) >= MAX_QUESTIONS:
            break
    return torch.cat(kept)[:MAX_QUESTIONS]


def pad_questions(words: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Word embeddings of questions of different lengths as one batch: `[Q, T, W]` in float32, and the mask `[Q, T]`."""
    batch = torch.nn.utils.rnn.pad_sequence([one.float() for one in words], batch_first=True)
    lengths = torch.tensor([len(one) for one in words])
    return batch, torch.arange(batch.shape[1]) < lengths[:, None]
