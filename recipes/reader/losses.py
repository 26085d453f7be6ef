"""The losses of a batch: answers, the characters of each cell, colours; and which cells a step drops.

Answers alone teach guessing. Reading emerges when each visual token must also predict the characters whose centres are in
its 28-pixel cell. In the same way the token of a coloured text must predict the colour's name: without this loss the
reader reads well, but picks a random text when asked for "the red text".
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from arr_coc.training.documents.notice import COLOUR_NAMES
from arr_coc.training.documents.page import UNNAMED_COLOUR
from recipes.reader.augment import augment
from recipes.reader.batches import NO_TARGET, SLOTS, Batch
from recipes.reader.forward import MERGE, ReaderForward, all_cells, take_cells, to_patches
from recipes.reader.model import CELL
from recipes.reader.vocabulary import VOCABULARY_SIZE

EMPTY = 0
EMPTY_WEIGHT = 0.08  # most slots are empty and would dominate the loss
_EVIDENCE_SCORE = 100.0  # above any ink and noise


class CellHead(nn.Module):
    """Predicts a cell's characters and their colour from its visual token."""

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


def ink(images: torch.Tensor, cell: int = CELL) -> torch.Tensor:
    """Contrast of each cell, `[B, N]` from 0 to 1, of pictures `[B, C, H, W]`."""
    gray = images.float().mean(1, keepdim=True)
    mean, square = F.avg_pool2d(gray, cell), F.avg_pool2d(gray**2, cell)
    spread = (square - mean**2).clamp(min=0).sqrt().flatten(1)
    return spread / spread.amax(1, keepdim=True).clamp(min=1e-3)


def choose_cells(images: torch.Tensor, evidence: torch.Tensor, count: int, cell: int = CELL) -> torch.Tensor:
    """Indices `[B, count]` of the kept cells, in reading order: evidence, then cells with ink, then random ones.

    Evidence is always kept. An answer that cannot be seen would only teach guessing.
    """
    batch, cells = evidence.shape
    if count == cells:
        return all_cells(batch, cells, images.device)
    # Between a choice by ink and a nearly random one, different for each picture.
    chance = torch.rand(batch, 1, device=images.device) ** 2 * 3
    score = ink(images, cell) + chance * torch.rand(batch, cells, device=images.device) + _EVIDENCE_SCORE * evidence
    return score.topk(count, 1).indices.sort(1).values


@dataclass(frozen=True)
class Losses:
    """Losses of one step, still on the device."""

    answer: torch.Tensor
    cell: torch.Tensor
    colour: torch.Tensor
    accuracy: torch.Tensor  # share of characters read right by the cell head


@dataclass(frozen=True)
class Shown:
    """The cells of a step: those that the encoder sees, and those of them that the language model sees."""

    patches: torch.Tensor  # [B, encoded, 4, 588]
    cells: torch.Tensor  # [B, encoded]
    kept: torch.Tensor | None  # [B, kept] indices of the encoded cells, which are all cells then; None: all of them

    def kept_tokens(self, visual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The visual tokens that the language model gets, out of `visual` [B, encoded, width], and their cells."""
        return (visual, self.cells) if self.kept is None else (take_cells(visual, self.kept), self.kept)


@torch.no_grad()
def show(batch: Batch) -> Shown:
    """Augment the pictures and choose cells, as the batch's kind of step says."""
    kind = batch.kind
    cell = batch.images.shape[-1] // batch.grid[0]
    shown = augment(batch.images, batch.warps)
    cells = choose_cells(shown, batch.evidence, kind.encoded, cell)  # [B, encoded]
    patches = take_cells(to_patches(shown, cell // MERGE), cells)
    if kind.kept == kind.encoded:
        return Shown(patches, cells, None)
    if kind.encoded != kind.cells:
        raise ValueError(f"step kind {kind.name!r} drops cells both before and after the encoder; choose one")
    return Shown(patches, cells, choose_cells(shown, batch.evidence, kind.kept, cell))


def answer_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the answers' characters, of logits `[B, T, V]`."""
    wanted = F.cross_entropy(
        logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    weights = batch.weights.flatten()
    return (wanted * weights).sum() / weights.sum().clamp(min=1e-6)


def compute_losses(
    forward: ReaderForward, head: CellHead, batch: Batch, half: bool | None = None, encoder: bool = True
) -> Losses:
    """Forward pass of one batch, with cells dropped as its kind of step says.

    `half`: in bfloat16; None: on a GPU. `encoder=False`: no gradients for the vision encoder, and no losses of its cells.
    """
    device = batch.images.device.type
    shown = show(batch)
    cells = shown.cells
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda" if half is None else half):
        with torch.set_grad_enabled(encoder):
            visual = forward.encode(shown.patches, cells, *batch.grid)  # [B, encoded, width], and DeepStack's behind it
        kept, kept_cells = shown.kept_tokens(visual)
        logits = forward.logits(kept, kept_cells, batch.grid, batch.tokens, batch.segment, batch.place)
        if not encoder:
            nothing = torch.zeros((), device=cells.device)
            return Losses(answer_loss(logits, batch), cell=nothing, colour=nothing, accuracy=nothing)
        read, tinted = head(visual[..., : forward.width])
    targets = take_cells(batch.cells, cells).long()
    return Losses(
        answer=answer_loss(logits, batch),
        cell=cell_loss(read, targets, batch.caseless),
        colour=colour_loss(tinted, take_cells(batch.colours, cells)),
        accuracy=cell_accuracy(read.detach(), targets, batch.caseless),
    )
