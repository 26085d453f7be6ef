"""Dense targets: which characters stand in each cell, and the loss that asks every visual token for them.

Answers alone teach guessing. Asking each visual token for the characters whose middles lie in its 28-pixel cell is what
makes reading appear. In the same way the token of a coloured text is asked for the colour's name: a reader that is only
asked for "the red text" reads well and picks a text at random.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.reader.vocabulary import FIRST_CHARACTER, LAST_CHARACTER, VOCABULARY_SIZE
from arr_coc.training.documents.notice import COLOUR_NAMES
from arr_coc.training.documents.page import UNNAMED_COLOUR

SLOTS = 8  # characters asked for per cell, in reading order; print so small that a cell holds more is cut off there
EMPTY = 0
# Most slots are empty; at full weight they would drown the characters.
EMPTY_WEIGHT = 0.08


def cell_targets(codes: np.ndarray, points: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Characters per cell, `[rows * columns, SLOTS]` uint8, 0 for an empty slot.

    `codes` [n] are ASCII codes in reading order, `points` [n, 2] the characters' middles `(x, y)` counted in cells.
    """
    targets = np.zeros((rows * columns, SLOTS), np.uint8)
    column, row = np.floor(points).astype(np.int64).T
    inside = (
        (codes > FIRST_CHARACTER)
        & (codes <= LAST_CHARACTER)
        & (row >= 0)
        & (row < rows)
        & (column >= 0)
        & (column < columns)
    )
    cell, code = (row * columns + column)[inside], codes[inside]
    order = np.argsort(cell, kind="stable")
    cell, code = cell[order], code[order]
    first = np.searchsorted(cell, cell, side="left")
    slot = np.arange(len(cell)) - first
    kept = slot < SLOTS
    targets[cell[kept], slot[kept]] = code[kept]
    return targets


def cell_colours(colours: np.ndarray, points: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The number of the colour written in each cell, `[rows * columns]` uint8, `UNNAMED_COLOUR` where there is none.

    `colours` [n] and `points` [n, 2] belong to characters, as in `cell_targets`.
    """
    targets = np.full(rows * columns, UNNAMED_COLOUR, np.uint8)
    column, row = np.floor(points).astype(np.int64).T
    inside = (colours != UNNAMED_COLOUR) & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    targets[(row * columns + column)[inside]] = colours[inside]
    return targets


class CellHead(nn.Module):
    """Reads a cell's characters off its visual token, and the colour they are written in."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SLOTS * VOCABULARY_SIZE)
        self.colour = nn.Linear(width, len(COLOUR_NAMES) + 1)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of characters `[..., SLOTS, VOCABULARY_SIZE]` and of colours, for tokens `[..., width]`."""
        normed = self.norm(tokens)
        return self.out(normed).unflatten(-1, (SLOTS, VOCABULARY_SIZE)), self.colour(normed)


def colour_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the cells `[B, N]` whose colour has a name; 0 where there are none."""
    targets = targets.long().flatten()
    losses = F.cross_entropy(logits.float().flatten(0, -2), targets, ignore_index=UNNAMED_COLOUR, reduction="sum")
    return losses / (targets != UNNAMED_COLOUR).sum().clamp(min=1)


def cell_loss(logits: torch.Tensor, targets: torch.Tensor, caseless: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy of the slots.

    `logits` [B, N, SLOTS, V], `targets` [B, N, SLOTS], `caseless` [B]: where True, a letter may be read in either case,
    since the label does not say which was printed.
    """
    logits, targets = logits.float(), targets.long()
    chosen = logits.gather(-1, targets[..., None]).squeeze(-1)  # [B, N, SLOTS]
    capital = (targets >= ord("A")) & (targets <= ord("Z")) & caseless[:, None, None]
    small = logits.gather(-1, (targets + 32 * capital)[..., None]).squeeze(-1)
    chosen = torch.where(capital, torch.logaddexp(chosen, small), chosen)
    losses = logits.logsumexp(-1) - chosen
    weights = torch.where(targets == EMPTY, EMPTY_WEIGHT, 1.0)
    return (losses * weights).sum() / weights.sum()


def cell_accuracy(logits: torch.Tensor, targets: torch.Tensor, caseless: torch.Tensor) -> torch.Tensor:
    """Share of the characters that are read right."""
    read = logits.argmax(-1)
    small = caseless[:, None, None] & (read >= ord("a")) & (read <= ord("z"))
    right = torch.where(small, read - 32, read) == targets
    shown = targets != EMPTY
    return (right & shown).sum() / shown.sum().clamp(min=1)
