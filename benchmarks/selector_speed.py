"""Measures the time of each selector without a model.

    OMP_NUM_THREADS=2 python benchmarks/selector_speed.py

The input is one image of 36 x 36 cells with 1,024 dimensions. Tokens of neighbouring cells are similar, as in a real image. The
pixels are those of the bundled receipt, whose channels are computed in every round. Rounds of all selectors are interleaved, so
that load on the machine affects all of them; the best round is what an idle machine would show.

Only the selection is timed. `resize` only names a size. The attention of `scope`, `visionzip`, `vispruner`, `hiprune`, `fastv` and
`sparsevlm` and the scores of `coupling` are computed beforehand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F

import arr_coc
from arr_coc.bench.timing import interleave, machine
from arr_coc.selectors import ImageSource, LayerState, Oracle, Question, SelectionInput, Selector, names, selector
from arr_coc.types.grid import Grid

SIDE, DIMENSIONS, WORDS, HEADS = 36, 1024, 30, 16
SHARES = (0.25, 0.0625)


def selection(chooser: Selector, k: int) -> SelectionInput:
    generator = torch.Generator().manual_seed(0)
    grid = Grid(4, SIDE // 2, SIDE // 2) if chooser.name == "evs" else Grid(1, SIDE, SIDE)
    coarse = torch.randn(1, DIMENSIONS, SIDE // 4, SIDE // 4, generator=generator)
    smooth = F.interpolate(coarse, (SIDE, SIDE), mode="bilinear").flatten(2)[0].T  # [N, D]
    tokens = (smooth + 0.3 * torch.randn(grid.n, DIMENSIONS, generator=generator)).contiguous()
    embeddings = torch.randn(WORDS, DIMENSIONS, generator=generator)
    words = Question("What is the total amount?", torch.arange(WORDS), lambda ids: embeddings)
    attention = {depth: torch.rand(grid.n, generator=generator) / grid.n for depth in chooser.attention_at}
    image = arr_coc.pictures.receipt()
    source = ImageSource(image, image.size)
    kind = "video" if chooser.name == "evs" else "image"
    scores = torch.rand(grid.n, generator=generator)
    return SelectionInput(
        grid, k, torch.arange(grid.n), words, tokens, attention, source, kind, scorer=lambda selection: scores
    )


def layer_state(k: int) -> LayerState:
    cells = torch.cat([torch.full((4,), -1), torch.arange(SIDE * SIDE), torch.full((WORDS,), -1)])
    attention = torch.rand(HEADS, len(cells), len(cells), generator=torch.Generator().manual_seed(0)).softmax(-1)
    return LayerState(2 / 32, 2, torch.zeros(len(cells), 1), cells, lambda queries: attention[:, queries], k)


def selector_call(name: str, share: float) -> Callable[[], object]:
    """The selector's call, ready to be timed."""
    chooser = Oracle([[[200, 400, 420, 440]]], (473, 1024)) if name == "oracle" else selector(name)
    k = round(share * SIDE * SIDE)
    if chooser.depths:
        state = layer_state(k)
        return lambda: chooser.at_layer(state)
    seen = selection(chooser, k)
    return (lambda: chooser.before_encoding(seen)) if chooser.early else (lambda: chooser.select(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="timed rounds (31)")
    parser.add_argument("--selectors", nargs="*", default=names(), help="names of selectors (all)")
    arguments = parser.parse_args()
    print(machine())
    with torch.no_grad():
        calls = {f"{name} {share}": selector_call(name, share) for name in arguments.selectors for share in SHARES}
        times = interleave(calls, arguments.rounds)
    print("| selector | " + " | ".join(f"{100 * share:g}%, ms: best (median)" for share in SHARES) + " |")
    print("|---|" + "---|" * len(SHARES))
    for name in arguments.selectors:
        cells = [f"{times[f'{name} {share}'].best:.1f} ({times[f'{name} {share}'].median:.1f})" for share in SHARES]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
