"""Which cells of a page stay when some are missing: mostly those with ink, at times random ones.

What a question needs always stays. An answer that can no longer be seen would only teach guessing.
"""

import torch
import torch.nn.functional as F

from arr_coc.reader.model import CELL

_EVIDENCE = 100.0  # outweighs any ink and any chance


def ink(images: torch.Tensor) -> torch.Tensor:
    """How much the pixels of each cell differ, `[B, N]` from 0 to 1, of pictures `[B, C, H, W]`."""
    gray = images.float().mean(1, keepdim=True)
    mean, square = F.avg_pool2d(gray, CELL), F.avg_pool2d(gray**2, CELL)
    spread = (square - mean**2).clamp(min=0).sqrt().flatten(1)
    return spread / spread.amax(1, keepdim=True).clamp(min=1e-3)


def all_cells(batch: int, cells: int, device: torch.device) -> torch.Tensor:
    return torch.arange(cells, device=device).expand(batch, -1)


def choose_cells(images: torch.Tensor, evidence: torch.Tensor, count: int) -> torch.Tensor:
    """Indices `[B, count]` of the cells that stay, in reading order."""
    batch, cells = evidence.shape
    if count == cells:
        return all_cells(batch, cells, images.device)
    # From a pure choice by ink to a nearly random one, differently for each picture.
    chance = torch.rand(batch, 1, device=images.device) ** 2 * 3
    score = ink(images) + chance * torch.rand(batch, cells, device=images.device) + _EVIDENCE * evidence
    return score.topk(count, 1).indices.sort(1).values
