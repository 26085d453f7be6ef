"""What other sources of salience, and position as rotary waves, are worth: evidence recall at an eighth of the cells.

    python -m recipes.archetypes RECEIPTS PHOTOS    # made the archetypes
    python benchmarks/salience_ablation.py RECEIPTS PHOTOS [--drawn 56] [--reader 20]

RECEIPTS is a folder of scans with `recs.json`: those that training keeps for validation are measured. PHOTOS has `samples.jsonl`; the
pictures that the archetypes were not fitted on are measured. Drawn kinds have seeds of their own. Three tables:

1. the best cells by salience alone, by source, and by the untrained relevance without a question, whose part salience is;
2. the same with the reader's vision encoder, whose attention is recorded (`--reader`: receipts);
3. total, date and company of receipts by a linear model for each question, on the features of the cells, without position, with
   x and y, or with the waves; fitted on training receipts.

Intervals are over pictures.
"""

from __future__ import annotations

import argparse
import datetime
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

import arr_coc
from arr_coc import TextureArray
from arr_coc.bench.timing import machine
from arr_coc.evaluation.metrics import evidence_cells, recall
from arr_coc.evaluation.statistics import interval, mean
from arr_coc.relevance.realizing import SALIENCES, RelevanceSettings, realized
from arr_coc.relevance.salience import cell_features
from arr_coc.selectors.base import ImageSource, Question, SelectionInput
from arr_coc.selectors.scoring import pool_channels
from arr_coc.training.documents.drawing import KINDS, draw_any
from arr_coc.types.grid import Grid
from recipes.archetypes import photo_boxes
from recipes.reader.receipts import Receipt, find_evidence, read_receipts, split

CELL, SHARE, SEED = 28, 0.125, 77_000
WEIGHTS = (0.5, 1.0, 2.0)  # of salience; it is .1 at most by default
ASKED = ("total", "date", "company")
WAVES = tuple(f"wave_{axis}{turns}_{part}" for axis in "xy" for turns in (1, 2, 4, 8) for part in ("cos", "sin"))
POSITIONS: dict[str, tuple[str, ...]] = {"no position": (), "x and y": ("x", "y"), "rotary waves": WAVES}
Groups = Sequence[Sequence[Sequence[float]]]
Scores = dict[str, list[float]]


def fields_of(receipt: Receipt) -> dict[str, Groups]:
    """The evidence boxes of each question about a receipt."""
    lines = [text for text, _ in receipt.lines]
    found = {kind: find_evidence(kind, answer, lines) for kind in ASKED if (answer := receipt.fields.get(kind))}
    return {kind: [[receipt.lines[i][1] for i in places]] for kind, places in found.items() if len(places) < len(lines)}


def selection_of(image: Image.Image, question: str = "") -> SelectionInput:
    grid = Grid(1, max(1, round(image.height / CELL)), max(1, round(image.width / CELL)))
    return SelectionInput(
        grid=grid,
        k=max(1, round(SHARE * grid.n)),
        candidates=torch.arange(grid.n),
        question=Question(question, torch.zeros(0, dtype=torch.long)),
        source=ImageSource(texture=TextureArray.from_image(image)),
    )


def ways(selection: SelectionInput, sources: Sequence[str]) -> dict[str, torch.Tensor]:
    """The kept cells of each way."""
    found = {}
    for source in sources:
        choice = realized(selection, RelevanceSettings(coupling="none", learned=False, salience=source))
        found[f"relevance, salience by {source}"] = choice.keep
        salience = choice.scores["salience"][selection.candidates]
        for weight in WEIGHTS:
            settings = RelevanceSettings(coupling="none", learned=False, salience=source, weights={"salience": weight})
            found[f"relevance, {weight:g} x {source}"] = realized(selection, settings).keep
        found[f"salience by {source} alone"] = (
            selection.candidates[salience.topk(selection.count).indices].sort().values
        )
    return found


def by_source(pictures: Sequence[tuple[str, Image.Image, list[Groups]]]) -> dict[str, dict[str, Scores]]:
    """Recall by kind of picture and way, by picture."""
    found: dict[str, dict[str, Scores]] = {}
    for number, (kind, image, questions) in enumerate(pictures):
        selection = selection_of(image)
        kept = ways(selection, SALIENCES[:2])
        kept["random cells"] = torch.randperm(selection.grid.n, generator=torch.Generator().manual_seed(number))[
            : selection.count
        ]
        for groups in questions:
            cells = evidence_cells(groups, selection.grid, image.size)
            for way, keep in kept.items():
                if (value := recall(keep, cells)) is not None:
                    found.setdefault(kind, {}).setdefault(way, {}).setdefault(str(number), []).append(value)
    return found


def by_reader(receipts: Sequence[Receipt]) -> dict[str, dict[str, Scores]]:
    """The same on the reader's cells, with the attention of its vision encoder as well."""
    vlm = arr_coc.load("reader", layer=None)
    found: dict[str, dict[str, Scores]] = {}
    for receipt in receipts:
        image = receipt.image.convert("RGB")
        look = vlm.look(image)
        for source in SALIENCES:
            allocation = arr_coc.realize(
                image,
                "What?",
                budget=f"{SHARE:.1%}",
                using=vlm,
                look=look,
                coupling="none",
                learned=False,
                salience=source,
            )
            best = allocation.scores["salience"].topk(allocation.k).indices
            for groups in fields_of(receipt).values():
                cells = evidence_cells(groups, allocation.grid, image.size)
                for way, keep in (
                    (f"relevance, salience by {source}", allocation.keep),
                    (f"salience by {source} alone", best),
                ):
                    if (value := recall(keep, cells)) is not None:
                        found.setdefault("receipts, reader", {}).setdefault(way, {}).setdefault(
                            receipt.name, []
                        ).append(value)
    return found


def by_position(training: Sequence[Receipt], validation: Sequence[Receipt]) -> dict[str, dict[str, Scores]]:
    """Recall of a linear model for each question, with and without position."""

    def prepared(receipts: Sequence[Receipt]) -> list[tuple[Receipt, SelectionInput, dict[str, torch.Tensor]]]:
        made = []
        for receipt in receipts:
            selection = selection_of(receipt.image.convert("RGB"))
            texture, view = selection.texture, selection.grid.views[0]
            own = cell_features(texture, view).flatten(1).T
            places = {
                name: pool_channels(texture, view, names).flatten(1).T if names else own[:, :0]
                for name, names in POSITIONS.items()
            }
            made.append((receipt, selection, {name: torch.cat([own, more], 1) for name, more in places.items()}))
        return made

    found: dict[str, dict[str, Scores]] = {"receipts, linear": {}}
    learned, tested = prepared(training), prepared(validation)
    for name in POSITIONS:
        for kind in ASKED:
            rows, wanted = [], []
            for receipt, selection, features in learned:
                if (groups := fields_of(receipt).get(kind)) is None:
                    continue
                cells = evidence_cells(groups, selection.grid, receipt.image.size)[0]
                rows.append(features[name])
                wanted.append(torch.zeros(selection.grid.n).index_fill_(0, cells, 1.0 / max(1, len(cells))))
            model = torch.nn.Linear(rows[0].shape[1], 1)
            optimiser = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=1e-4)
            for _ in range(300):  # each receipt's cells compete, as in a selection
                loss = torch.stack(
                    [-(model(x)[:, 0].log_softmax(0) * y).sum() for x, y in zip(rows, wanted, strict=True)]
                ).mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            for receipt, selection, features in tested:
                if (groups := fields_of(receipt).get(kind)) is None:
                    continue
                keep = model(features[name])[:, 0].topk(selection.count).indices
                if (value := recall(keep, evidence_cells(groups, selection.grid, receipt.image.size))) is not None:
                    found["receipts, linear"].setdefault(name, {}).setdefault(receipt.name, []).append(value)
    return found


def differences(found: dict[str, dict[str, Scores]], way: str, other: str) -> str:
    """How much higher the recall of one way is, picture by picture, with its interval; "all" counts every picture once."""
    lines = []
    for kind in (*found, "all"):
        pairs = [one for name, one in found.items() if kind in (name, "all")]
        apart = {
            f"{number} {picture}": [a - b for a, b in zip(values, one[other][picture], strict=True)]
            for number, one in enumerate(pairs)
            for picture, values in one[way].items()
        }
        low, high = interval(apart) or (0.0, 0.0)
        lines.append(f"{kind}: {mean(apart):+.3f} [{low:+.3f}, {high:+.3f}]")
    return f"{way}, less {other}: " + "; ".join(lines)


def table(found: dict[str, dict[str, Scores]]) -> str:
    names = list(dict.fromkeys(way for by_way in found.values() for way in by_way))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for kind, by_way in found.items():
        cells = []
        for way in names:
            low, high = interval(by_way[way]) or (0.0, 0.0)
            cells.append(f"{mean(by_way[way]):.3f} [{low:.3f}, {high:.3f}]")
        lines.append(f"| {kind} ({len(by_way[names[0]])}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipts", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--drawn", type=int, default=56)
    parser.add_argument("--reader", type=int, default=20, help="receipts that the reader encodes")
    parser.add_argument("--training", type=int, default=60, help="receipts that the linear models are fitted on")
    given = parser.parse_args()
    torch.manual_seed(0)
    training, validation = split(read_receipts(given.receipts))
    pictures = [("receipts", one.image.convert("RGB"), list(fields_of(one).values())) for one in validation]
    for seed in range(SEED, SEED + given.drawn):
        drawing = draw_any(seed, [KINDS[seed % len(KINDS)]], held_out=True)
        kind = (
            "drawn scenes"
            if drawing.kind == "scene"
            else "drawn charts"
            if drawing.kind == "chart"
            else "drawn documents"
        )
        pictures.append(
            (kind, Image.fromarray(drawing.image), [one.evidence for one in drawing.questions if one.evidence])
        )
    for path, boxes in photo_boxes(given.photos)[1::2]:
        pictures.append(("photos", Image.open(path).convert("RGB"), [[[box]] for box in boxes]))
    sources = by_source(pictures)
    print(f"{machine()}, {datetime.date.today()}\n\n{table(sources)}\n")
    for way in ("relevance, 2 x archetypes", "salience by archetypes alone"):
        print(differences(sources, way, "relevance, salience by texture"), flush=True)
    print(f"{table(by_position(random.Random(1).sample(training, given.training), validation))}\n", flush=True)
    if given.reader:
        print(table(by_reader(validation[: given.reader])))


if __name__ == "__main__":
    main()
