"""The three losses of a batch: answers, characters of the cells, colours."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from recipes.reader.augment import augment
from recipes.reader.batches import NO_TARGET, Batch
from recipes.reader.cells import CellHead, cell_accuracy, cell_loss, colour_loss
from recipes.reader.forward import ReaderForward, take_cells, to_patches
from recipes.reader.missing import choose_cells


@dataclass(frozen=True)
class Losses:
    """Losses of one step, on the device until somebody asks."""

    answer: torch.Tensor
    cell: torch.Tensor
    colour: torch.Tensor
    accuracy: torch.Tensor  # share of characters read right by the cell head


@dataclass(frozen=True)
class Shown:
    """What a step shows of its pictures: the encoder some cells, the language model some of those."""

    patches: torch.Tensor  # [B, encoded, 4, 588]
    cells: torch.Tensor  # [B, encoded]
    kept: torch.Tensor | None  # [B, kept] places among the encoded cells, which are all cells then; None: all of them

    def handed_on(self, visual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The visual tokens that the language model gets, out of `visual` [B, encoded, width], and their cells."""
        return (visual, self.cells) if self.kept is None else (take_cells(visual, self.kept), self.kept)


@torch.no_grad()
def show(batch: Batch) -> Shown:
    """Augment the pictures and choose cells, as many as the batch's kind of step says."""
    kind = batch.kind
    shown = augment(batch.images, batch.warps)
    cells = choose_cells(shown, batch.evidence, kind.encoded)  # [B, encoded]
    patches = take_cells(to_patches(shown), cells)
    if kind.kept == kind.encoded:
        return Shown(patches, cells, None)
    if kind.encoded != kind.cells:
        raise ValueError(f"step kind {kind.name!r} drops cells both before and after the encoder; choose one")
    return Shown(patches, cells, choose_cells(shown, batch.evidence, kind.kept))


def answer_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the answers' characters, of logits `[B, T, V]`."""
    wanted = F.cross_entropy(
        logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    weights = batch.weights.flatten()
    return (wanted * weights).sum() / weights.sum().clamp(min=1e-6)


def losses(forward: ReaderForward, head: CellHead, batch: Batch) -> Losses:
    """Forward pass of one batch, with as many cells missing as its kind of step says."""
    device = batch.images.device.type
    shown = show(batch)
    cells = shown.cells
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        visual = forward.encode(shown.patches, cells, batch.grid[0])  # [B, encoded, width]
        read, tinted = head(visual)
        handed_on, cells_seen = shown.handed_on(visual)
        logits = forward.logits(handed_on, cells_seen, batch.grid, batch.tokens, batch.segment, batch.place)
    targets = take_cells(batch.cells, cells).long()
    return Losses(
        answer=answer_loss(logits, batch),
        cell=cell_loss(read, targets, batch.caseless),
        colour=colour_loss(tinted, take_cells(batch.colours, cells)),
        accuracy=cell_accuracy(read.detach(), targets, batch.caseless),
    )
