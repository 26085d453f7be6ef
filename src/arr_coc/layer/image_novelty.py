"""What a layer has seen in training, in a few numbers, so that it is not asked about pictures of another kind.

A picture is told by the mean and the spread of its channels over its cells. How far it lies from the pictures of training, in
their own covariance, is its strangeness: about 1 for a picture like those, 3 and more for photographs where only pages were
shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

PLACES = ("x", "y", "eccentricity")  # the same in every picture
LEAST = 1e-4  # variance of any number: channels lie between 0 and 1, and a percent of difference is none


def told(channels: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """Mean and spread `[S]` of a picture's channels `[t, C, h, w]`, those of places left out."""
    some = [number for number, name in enumerate(names) if name not in PLACES]
    values = channels[:, some].float().transpose(0, 1).flatten(1)
    spread = values.std(1) if values.shape[1] > 1 else torch.zeros(len(some), device=values.device)
    return torch.cat([values.mean(1), spread])


def size(names: Sequence[str]) -> int:
    return 2 * len([name for name in names if name not in PLACES])


def usual(pictures: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean `[S]` of what tells pictures, and the inverse `[S, S]` of its covariance."""
    table = torch.stack(list(pictures)).double()
    centred = table - table.mean(0)
    covariance = centred.T @ centred / len(table) + LEAST * torch.eye(table.shape[1], dtype=torch.float64)
    return table.mean(0).float(), torch.linalg.inv(covariance).float()


def strangeness(picture: torch.Tensor, mean: torch.Tensor, inverse: torch.Tensor) -> float:
    """How far a picture `[S]` lies from the usual ones: about 1 for one of them."""
    away = picture - mean
    return float(away @ inverse @ away) / max(1, len(away))
