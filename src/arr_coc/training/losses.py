"""The three losses of a batch: answers, characters of the cells, colours."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from arr_coc.training.augment import augment
from arr_coc.training.batches import NO_TARGET, Batch
from arr_coc.training.cells import CellHead, cell_accuracy, cell_loss, colour_loss
from arr_coc.training.forward import ReaderForward, take_cells, to_patches
from arr_coc.training.missing import choose_cells


@dataclass(frozen=True)
class Losses:
    """Losses of one step, on the device until somebody asks."""

    answer: torch.Tensor
    cell: torch.Tensor
    colour: torch.Tensor
    accuracy: torch.Tensor  # share of characters read right by the cell head


def losses(forward: ReaderForward, head: CellHead, batch: Batch) -> Losses:
    """Forward pass of one batch, with as many cells missing as its kind of step says."""
    kind, device = batch.kind, batch.images.device.type
    with torch.no_grad():
        shown = augment(batch.images, batch.warps)
        cells = choose_cells(shown, batch.evidence, kind.encoded)  # [B, encoded]
        patches = take_cells(to_patches(shown), cells)
        kept = None
        if kind.kept < kind.encoded:
            if kind.encoded != kind.cells:
                raise ValueError(f"step kind {kind.name!r} drops cells both before and after the encoder; choose one")
            kept = choose_cells(shown, batch.evidence, kind.kept)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        visual = forward.encode(patches, cells, batch.grid[0])  # [B, encoded, width]
        read, tinted = head(visual)
        if kept is not None:
            visual, cells_seen = take_cells(visual, kept), kept
        else:
            cells_seen = cells
        logits = forward.logits(visual, cells_seen, batch.grid, batch.tokens, batch.segment, batch.place)
    targets = take_cells(batch.cells, cells).long()
    wanted = F.cross_entropy(
        logits.float().flatten(0, 1), batch.targets.flatten(), ignore_index=NO_TARGET, reduction="none"
    )
    weights = batch.weights.flatten()
    return Losses(
        answer=(wanted * weights).sum() / weights.sum().clamp(min=1e-6),
        cell=cell_loss(read, targets, batch.caseless),
        colour=colour_loss(tinted, take_cells(batch.colours, cells)),
        accuracy=cell_accuracy(read.detach(), targets, batch.caseless),
    )
