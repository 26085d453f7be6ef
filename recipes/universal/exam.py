"""`python -m recipes.universal.exam`: the universal layer's evidence recall and how far its doubts can be believed.

Drawn pages and validation scans, asked about in phrasings that training never uses. Writes `exam.json` and `reliability.png`.
"""

import argparse
import json
import random
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from arr_coc.errors import ArrCocError, DataError
from arr_coc.evaluation.metrics import recall
from arr_coc.layer.novelty import image_novelty, image_statistics
from arr_coc.layer.universal import DOUBTS, WEIGHTS, UniversalLayer, doubt_features
from arr_coc.training.documents import draw_any, enrich, mix
from arr_coc.training.documents.drawing import as_drawing
from arr_coc.training.documents.page import FontSet, bundled_fonts
from recipes.reader.receipts import Placement, Receipt, read_receipts, scan, split
from recipes.reader.recipe import PAGE_GRIDS, pixels
from recipes.universal.pages import TrainingPage, make_page, to_tensors
from recipes.universal.train import found_targets, predict

SHARES = (0.25, 0.125, 0.0625)
BINS = 10
CELL = 28.0


@dataclass
class Reliability:
    """Stated probabilities of one kind, and what was true."""

    said: list[float] = field(default_factory=list)
    true: list[float] = field(default_factory=list)

    def bins(self) -> list[tuple[float, float, int]]:
        """Mean probability, share that was true, and number, of each tenth that has any."""
        parts: dict[int, list[int]] = defaultdict(list)
        for number, said in enumerate(self.said):
            parts[min(BINS - 1, int(said * BINS))].append(number)
        return [
            (sum(self.said[n] for n in part) / len(part), sum(self.true[n] for n in part) / len(part), len(part))
            for _, part in sorted(parts.items())
        ]

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of the bins from the diagonal, by their numbers."""
        return sum(abs(said - true) * count for said, true, count in self.bins()) / max(1, len(self.said))


@dataclass
class Exam:
    """Results over some pages."""

    recalls: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))  # by kind of picture
    ceilings: dict[str, list[list[float]]] = field(default_factory=lambda: defaultdict(list))  # the most that fits
    doubts: dict[str, Reliability] = field(default_factory=lambda: {name: Reliability() for name in DOUBTS})
    before: dict[str, Reliability] = field(default_factory=lambda: {name: Reliability() for name in DOUBTS})  # own

    @torch.no_grad()
    def add(self, layer: UniversalLayer, page: TrainingPage) -> None:
        asked = page.questions
        if not asked:
            return
        _, words, mask, output = predict(layer, page, [one.text for one in asked])
        logits = dict(zip(DOUBTS, layer.doubt_logits(words, mask, output).unbind(-1), strict=True))
        channels, _ = to_tensors(page)
        novelty = float(image_novelty(image_statistics(channels, layer.config.channels), layer.usual, layer.unusual))
        relevance = output.relevance.float().cpu()
        groups = [[torch.from_numpy(group).long() for group in one.groups] for one in asked]
        hits, known = found_targets(relevance, groups)
        for row, (one, scores) in enumerate(zip(asked, relevance, strict=True)):
            true = {"found": float(hits[row])} if known[row] else {}
            true |= {name: float(one.intent == name) for name in ("absent", "whole")}
            for name, happened in true.items():
                own = float(logits[name][row])
                for doubts, chance in (
                    (self.doubts, layer.calibration(name, doubt_features(own, scores, novelty))),
                    (self.before, float(torch.tensor(own).sigmoid())),
                ):
                    doubts[name].said.append(chance)
                    doubts[name].true.append(happened)
            if known[row]:
                order = scores.argsort(descending=True)
                kept = [order[: max(1, round(share * len(order)))] for share in SHARES]
                kind, least = one.kind.split(": ")[0], min(map(len, groups[row]))
                self.recalls[kind].append([recall(some, groups[row]) or 0.0 for some in kept])
                self.ceilings[kind].append([min(1.0, len(some) / least) for some in kept])

    def report(self) -> dict[str, Any]:
        """Mean recall at each share by kind of picture, the most that these shares could hold, and the calibration errors."""
        recalls, ceilings = (
            dict(sorted(part.items())) | {"all": [row for rows in part.values() for row in rows]}
            for part in (self.recalls, self.ceilings)
        )
        return {
            "shares": list(SHARES),
            "questions": {kind: len(rows) for kind, rows in recalls.items()},
            "recall": {kind: _means(rows) for kind, rows in recalls.items()},
            "ceiling": {kind: _means(rows) for kind, rows in ceilings.items()},
            "calibration error": {name: round(one.error, 4) for name, one in self.doubts.items()},
            "before recalibration": {name: round(one.error, 4) for name, one in self.before.items()},
            "bins": {
                name: [[round(said, 3), round(true, 3), count] for said, true, count in one.bins()]
                for name, one in self.doubts.items()
            },
        }


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [round(sum(column) / len(rows), 4) for column in zip(*rows, strict=True)] if rows else []


def drawn_page(number: int, fonts: FontSet, layer: UniversalLayer, strength: float, cell: float = CELL) -> TrainingPage:
    """A drawing that training never sees, in phrasings that it never uses."""
    rng = random.Random(f"universal exam {number}")
    drawing = draw_any(f"universal exam {number}", mix(0.2), fonts=fonts, held_out=True, invented=rng.random() < 0.5)
    return make_page(rng, drawing, layer.config, strength, cell)


def scanned_page(receipt: Receipt, layer: UniversalLayer, cell: float = CELL) -> TrainingPage:
    """A whole scan, as it is."""
    rng = random.Random(f"universal exam {receipt.name}")
    ratio = receipt.image.width / receipt.image.height
    width, height = pixels(min(PAGE_GRIDS[:3], key=lambda one: abs(one[0] / one[1] - ratio)))
    document = scan(rng, receipt, width, height, Placement.whole(receipt, width, height))
    document = enrich(rng, document, "receipt", held_out=True)
    return make_page(rng, as_drawing(document, "scan", held_out=True), layer.config, 0.0, cell)


def validation_receipts(path: Path) -> list[Receipt]:
    """The validation receipts of a folder, or of a zip file with one."""
    if path.suffix != ".zip":
        return split(read_receipts(path))[1]
    with tempfile.TemporaryDirectory() as place:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(place)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"expected a zip file of scanned receipts, got {str(path)!r} ({error})") from None
        found = sorted(Path(place).rglob("recs.json"))
        if not found:
            raise DataError(f"expected a folder with recs.json in {str(path)!r}, found none")
        return split(read_receipts(found[0].parent))[1]


def draw_reliability(exams: dict[str, Exam], path: Path) -> None:
    """Reliability diagrams: one row for each exam, one column for each doubt."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = ("found", "absent", "whole")
    figure, axes = plt.subplots(len(exams), len(names), figsize=(9, 3 * len(exams)), squeeze=False)
    for row, (title, exam) in zip(axes, exams.items(), strict=True):
        for axis, name in zip(row, names, strict=True):
            doubt = exam.doubts[name]
            bins = doubt.bins()
            axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
            axis.plot([said for said, _, _ in bins], [true for _, true, _ in bins], marker="o", color="tab:blue")
            for said, true, count in bins:
                axis.annotate(str(count), (said, true), fontsize=6, xytext=(3, -8), textcoords="offset points")
            axis.set(xlim=(0, 1), ylim=(0, 1), xlabel=f"stated probability: {name}", ylabel="share that was true")
            axis.set_title(f"{title}: {name}, error {doubt.error:.3f}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.universal.exam", description=__doc__)
    parser.add_argument("--layer", type=Path, default=WEIGHTS, help="folder of the layer (the one that ships)")
    parser.add_argument("--drawn", type=int, default=200, metavar="N", help="drawn pages (200)")
    parser.add_argument("--receipts", type=Path, help="folder or zip file of scanned receipts: their validation split")
    parser.add_argument("--fonts", type=Path, help="folder of .ttf fonts to draw with (the bundled ones)")
    parser.add_argument("--strength", type=float, default=0.3, help="how far drawings are photographed, 0 to 1 (0.3)")
    parser.add_argument("--cell", type=float, default=CELL, help=f"pixels of a cell ({CELL:g})")
    parser.add_argument("--out", type=Path, required=True, help="folder for exam.json and reliability.png")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        layer = UniversalLayer.from_pretrained(given.layer)
        fonts = bundled_fonts() if given.fonts is None else FontSet.from_folder(given.fonts)
        receipts = [] if given.receipts is None else validation_receipts(given.receipts)
    except (ArrCocError, OSError) as error:
        parser.error(str(error))
    assert isinstance(layer, UniversalLayer)
    if not receipts and given.drawn < 1:
        parser.error("expected --drawn from 1 on or --receipts, got nothing to measure on")
    exams: dict[str, Exam] = {}
    if given.drawn > 0:
        exams["drawings"] = Exam()
        for number in range(given.drawn):
            exams["drawings"].add(layer, drawn_page(number, fonts, layer, given.strength, given.cell))
    if receipts:
        exams["scans"] = Exam()
        for receipt in receipts:
            exams["scans"].add(layer, scanned_page(receipt, layer, given.cell))
    given.out.mkdir(parents=True, exist_ok=True)
    reports = {name: exam.report() for name, exam in exams.items()}
    (given.out / "exam.json").write_text(json.dumps(reports, indent=1) + "\n")
    draw_reliability(exams, given.out / "reliability.png")
    for name, report in reports.items():
        print(f"{name}: {report['questions']['all']} questions; recall at {', '.join(f'{s:.2%}' for s in SHARES)}")
        for kind, values in report["recall"].items():
            most = "  ".join(f"{value:.3f}" for value in report["ceiling"][kind])
            count = report["questions"][kind]
            print(f"  {kind:14s} {'  '.join(f'{value:.3f}' for value in values)}  of at most {most}  ({count})")
        print(f"  calibration error: {report['calibration error']}, before {report['before recalibration']}")


if __name__ == "__main__":
    main()
