"""Several images in one pass of a layer: batches of one shape for training, and padded ones where a GPU chooses for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from arr_coc.devices import to_device
from arr_coc.layer.inference import (
    CellFeatures,
    GraphedLayer,
    add_tokens,
    can_graph,
    novelties,
    read_question,
    score_views,
    summary,
    view_features,
)
from arr_coc.layer.model import ArrCocLayer, LayerOutput
from arr_coc.layer.novelty import image_statistics
from arr_coc.selectors.base import SelectionInput

CELL_MULTIPLE = 8  # on a GPU grids are padded to a multiple of this height and width: fewer shapes to capture


@torch.no_grad()
def predict_together(layer: ArrCocLayer, selections: Sequence[SelectionInput]) -> list[list[torch.Tensor]]:
    """What a `LayerPredictor` reads, for several images of one view each, in one batch: tensors on the layer's device.

    Nothing waits for the device. Images of different grids are padded; the padding changes no other cell.
    """
    device, config = layer.mean.device, layer.config
    graphed = GraphedLayer(layer)
    words, mask = graphed.encode_words([read_question(layer, one) for one in selections])
    plain = [one if layer.reads_tokens else replace(one, tokens=None) for one in selections]
    features = [view_features(one, config)[0] for one in plain]
    views = [add_tokens(one, [mine])[0].to(device) for one, mine in zip(plain, features, strict=True)]
    view = graphed.encode_view(*pad_views(views, CELL_MULTIPLE if can_graph(words) else 1))
    output = graphed.score(view, words, mask)
    made = []
    tall, wide = view.cells.shape[1:3]
    found = summary(layer, output, words, mask, view.valid)
    for number, (one, mine) in enumerate(zip(plain, features, strict=True)):
        _, high, across = mine.shape
        relevance, scores, *rest = (values[number] for values in found)
        relevance = relevance.view(tall, wide)[:high, :across].flatten()
        scores = scores.view(-1, tall, wide)[:, :high, :across].flatten(1)
        statistics = one.textures[0].once(
            f"layer statistics {config.channels} {one.grid.views[0]!r}",
            lambda mine=mine: image_statistics(mine.channels, config.channels),  # type: ignore[misc]
        )
        made.append([relevance, scores, *rest, *novelties(layer, words[number], mask[number], statistics)])
    return made


def pad_views(views: Sequence[CellFeatures], multiple: int = 1) -> tuple[CellFeatures, torch.Tensor | None]:
    """Views of one time step each as one batch, and which cells `[B, h, w]` are no padding; None where the grids are equal.

    `multiple`: of the padded height and width, so that fewer shapes occur.
    """
    sizes = [view.shape[1:] for view in views]
    if len(set(sizes)) == 1 and multiple == 1:
        tokens, encoded = _batch_tokens(views)
        channels, pixels = (torch.cat([getattr(view, name) for view in views]) for name in ("channels", "pixels"))
        return CellFeatures(channels, pixels, tokens, encoded), None
    high, wide = (-(-max(side) // multiple) * multiple for side in zip(*sizes, strict=True))
    valid = torch.zeros(len(views), high, wide, dtype=torch.bool)
    for number, (h, w) in enumerate(sizes):
        valid[number, :h, :w] = True

    def padded(planes: torch.Tensor) -> torch.Tensor:
        return F.pad(planes, (0, wide - planes.shape[-1], 0, high - planes.shape[-2]))

    some = [
        replace(
            view,
            channels=padded(view.channels),
            pixels=padded(view.pixels),
            tokens=None if view.tokens is None else padded(view.tokens.movedim(-1, 1)).movedim(1, -1),
            encoded=None if view.encoded is None else padded(view.encoded),
        )
        for view in views
    ]
    return pad_views(some)[0], to_device(valid, views[0].channels.device)


def run_batch(
    layer: ArrCocLayer,
    images: Sequence[Sequence[CellFeatures]],
    owner: torch.Tensor,
    words: torch.Tensor,
    mask: torch.Tensor,
) -> LayerOutput:
    """`Q` questions about `B` images whose views have the same shapes, on the layer's device.

    `owner` `[Q]`: the image of each question. The result is `[Q, N]` over all cells of all views.
    """
    steps = [view.shape[0] for view in images[0]]
    views = [
        layer.encode_view(
            torch.cat([one.channels for one in view]), torch.cat([one.pixels for one in view]), *_batch_tokens(view)
        )
        for view in zip(*images, strict=True)
    ]
    return score_views(layer, views, steps, owner, layer.words(words, mask), mask)


def _batch_tokens(views: Sequence[CellFeatures]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The tokens of one view of several images, and which cells have them."""
    present = [view.tokens for view in views if view.tokens is not None]
    if not present:
        return None, None
    blank = torch.zeros_like(present[0])
    tokens = torch.cat([blank if view.tokens is None else view.tokens for view in views])
    if all(view.tokens is not None and view.encoded is None for view in views):
        return tokens, None
    encoded = []
    for view in views:
        all_or_none = torch.full(view.shape, view.tokens is not None, device=tokens.device)
        encoded.append(all_or_none if view.encoded is None else view.encoded)
    return tokens, torch.cat(encoded)
