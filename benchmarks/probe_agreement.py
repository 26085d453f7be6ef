"""Measures how far the attention probe agrees with the layer's top cells, depending on whether these contain the evidence.

    PYTHONPATH=. python benchmarks/probe_agreement.py SCANS LAYERS --limit 20

SCANS and LAYERS are those of benchmarks/unseen_kinds.py. The table has quantiles of the share of the probe's attention that lies on
the layer's top sixteenth of the cells, for questions in the plain and in held-out phrasings. It covers the shipped layer, and
layers that were trained without the question's kind.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import arr_coc
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.relevance import coupling
from arr_coc.relevance.knowing import know
from arr_coc.training.documents.questions import HELD_OUT, PLAIN
from arr_coc.training.examples import read_folder, selection_input

KINDS = ("total", "date", "company")
FOUND, LOST = 0.99, 0.34  # share of the evidence among the top cells, at least and at most
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path, help="folder of validation scans")
    parser.add_argument("layers", type=Path, help="folder of layers trained without one kind")
    parser.add_argument("--limit", type=int, help="number of images (all)")
    arguments = parser.parse_args()
    shipped = arr_coc.load("reader")
    unseen = {kind: arr_coc.load("reader", layer=arguments.layers / f"never_asked_for_a_{kind}") for kind in KINDS}
    shares: dict[str, list[float]] = {"found": [], "lost": []}
    for picture in read_folder(arguments.scans, arguments.limit).pictures:
        looks = {id(vlm): vlm.look(picture.still) for vlm in (shipped, *unseen.values())}
        for sample in (one for one in picture.samples if one.kind in KINDS):
            for vlm in (shipped, unseen[sample.kind]):
                look = looks[id(vlm)]
                for question in (PLAIN[sample.kind], HELD_OUT[sample.kind][0]):
                    selection = selection_input(vlm, look, question)
                    prediction = coupling.by_layer(selection).prediction
                    assert prediction is not None
                    best = selection.candidates[prediction.relevance.argsort(descending=True, stable=True)]
                    best = best[: round(coupling.CONFIRMED_CELLS * selection.grid.n)]
                    scores = know(selection)
                    attention = coupling.probe_attention(selection, scores.information + scores.text)
                    groups = evidence_cells(sample.evidence, selection.grid, picture.size)
                    kept = recall(best, groups) or 0.0
                    if kept >= FOUND or kept <= LOST:
                        share = float(attention[best].sum() / attention.sum())
                        shares["found" if kept >= FOUND else "lost"].append(share)
        print(picture.name, flush=True)
    print(
        "\n| evidence | cases | "
        + " | ".join(f"{100 * q:g}%" for q in QUANTILES)
        + " |\n|---|---|"
        + "---|" * len(QUANTILES)
    )
    for name, values in shares.items():
        cells = torch.tensor(values).quantile(torch.tensor(QUANTILES)).tolist() if values else []
        print(f"| {name} | {len(values)} | {' | '.join(f'{value:.2f}' for value in cells)} |")


if __name__ == "__main__":
    main()
