"""The principal components of a reader's tokens, gathered from pictures as they are drawn and scanned for training."""

from collections.abc import Callable
from pathlib import Path

import torch

from arr_coc.embedding import storage
from arr_coc.embedding.projection import Moments
from arr_coc.errors import ArrCocError, ProjectionError
from recipes.reader.batches import Batch
from recipes.reader.forward import ReaderForward
from recipes.reader.losses import show


def token_moments(forward: ReaderForward, batch: Batch, cells: int) -> Moments:
    """Of the tokens of some cells of every picture, drawn at random."""
    kind = batch.images.device.type
    shown = show(batch)
    with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        visual = forward.encode(shown.patches, shown.cells, batch.grid[0])
    drawn = torch.randperm(visual.shape[1], device=visual.device)[:cells]
    return Moments.of(visual[:, drawn].flatten(0, 1))


def gather(
    forward: ReaderForward,
    next_batch: Callable[[], Batch],
    pictures: int,
    cells: int,
    stopped: Callable[[], bool],
    tick: Callable[[int], None],
) -> tuple[Moments, int] | None:
    """The moments of the tokens of so many pictures at least, in one pass, and how many it were; None when `stopped`."""
    found, seen = Moments.empty(forward.language.embed_tokens.weight.shape[1]), 0
    while seen < pictures:
        if stopped():
            return None
        batch = next_batch()
        found, seen = found + token_moments(forward, batch, cells), seen + len(batch.images)
        tick(seen)
    return found, seen


def keep(path: Path, moments: Moments, pictures: int, encoder: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, moments.to_tensors("tokens"), {"encoder": encoder, "pictures": pictures})


def kept(path: Path, encoder: str) -> tuple[Moments, int]:
    """What `keep` wrote for this encoder."""
    try:
        tensors, note = storage.read(path)
    except storage.DamagedFileError as error:
        raise ProjectionError(f"{str(path)!r} is damaged, remove it: {error}") from None
    if note["encoder"] != encoder:
        raise ArrCocError(f"{str(path)!r} is of another reader's encoder: use another folder for this one's run")
    return Moments.from_tensors(tensors, "tokens"), int(note["pictures"])
