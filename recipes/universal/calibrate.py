"""`python -m recipes.universal.calibrate`: fit how far the universal layer's stated probabilities may be believed.

The layer is right about its own doubts on pages and phrasings like those of training, and too sure elsewhere. This fits a logistic
regression from what it says, from how peaked its relevance is and from how unlike training the image is, to what is true: on drawn pages of other
seeds than the exam's, and on training scans, all asked about in phrasings kept from training. It writes `calibration.json`, which
a layer reads from its folder.

Phrasings belong to kinds of questions, so the error is measured on kinds that the fit has not seen: once for each of some folds.
"""

import argparse
import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from arr_coc.errors import ArrCocError
from arr_coc.layer.novelty import image_novelty, image_statistics
from arr_coc.layer.universal import CALIBRATION, DOUBTS, WEIGHTS, Calibration, UniversalLayer, doubt_features
from arr_coc.training.documents import draw_any, mix
from arr_coc.training.documents.page import FontSet, bundled_fonts
from recipes.reader.receipts import read_receipts, split
from recipes.universal.exam import Reliability, scanned_page
from recipes.universal.pages import TrainingPage, make_page, to_tensors
from recipes.universal.train import found_targets, predict

FOLDS = 5
PULL = 1e-3  # towards the layer's own probability


@dataclass(frozen=True)
class Said:
    """What the layer said about one question, and what was true; `found` is None where it cannot be known."""

    kind: str
    scan: bool
    features: dict[str, list[float]]
    true: dict[str, float | None]


@torch.no_grad()
def ask(layer: UniversalLayer, page: TrainingPage, scan: bool) -> list[Said]:
    """All questions of a page."""
    asked = page.questions
    if not asked:
        return []
    _, words, mask, output = predict(layer, page, [one.text for one in asked])
    channels, _ = to_tensors(page)
    novelty = image_novelty(image_statistics(channels, layer.config.channels), layer.usual, layer.unusual)
    logits = layer.doubt_logits(words, mask, output)
    groups = [[torch.from_numpy(group).long() for group in one.groups] for one in asked]
    hits, known = found_targets(output.relevance.float(), groups)
    rows = []
    for row, one in enumerate(asked):
        features = {name: doubt_features(logits[name][row].item(), output.relevance[row], novelty) for name in DOUBTS}
        true = {"found": float(hits[row]) if known[row] else None}
        true |= {name: float(one.intent == name) for name in ("absent", "whole")}
        rows.append(Said(one.kind, scan, features, true))
    return rows


def fit(rows: Sequence[tuple[Sequence[float], float, float]]) -> list[float]:
    """Weights of the features and, last, the constant: of rows of features, what was true, and the row's weight."""
    x = torch.tensor([[*features, 1.0] for features, _, _ in rows], dtype=torch.float64)
    y, weight = (torch.tensor([row[place] for row in rows], dtype=torch.float64) for place in (1, 2))
    start = torch.zeros(x.shape[1], dtype=torch.float64)
    start[0] = 1.0  # the layer's own logit
    found = start.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(x @ found, y, weight) + PULL * (found - start).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return [round(value, 4) for value in found.tolist()]


def rows_of(said: Sequence[Said], name: str) -> list[tuple[Sequence[float], float, float]]:
    """Rows to fit one doubt; scans and drawings weigh the same in sum."""
    some = [(one, one.true[name]) for one in said]
    known = [(one, true) for one, true in some if true is not None]
    scans = sum(one.scan for one, _ in known)
    share = {True: 0.5 / max(1, scans), False: 0.5 / max(1, len(known) - scans)}
    return [(one.features[name], true, share[one.scan] * len(known)) for one, true in known]


def crossed(said: Sequence[Said]) -> dict[str, dict[str, tuple[float, float]]]:
    """Expected calibration errors before and after, on kinds of questions that the fit has not seen."""
    errors: dict[str, dict[str, tuple[float, float]]] = {}
    for name in DOUBTS:
        before, after = ({scan: Reliability() for scan in (False, True)} for _ in range(2))
        for fold in range(FOLDS):
            kept = [one for one in said if zlib.crc32(one.kind.encode()) % FOLDS == fold]
            rest = [one for one in said if zlib.crc32(one.kind.encode()) % FOLDS != fold]
            weights = Calibration({name: fit(rows_of(rest, name))})
            for one in kept:
                true = one.true[name]
                if true is None:
                    continue
                for table, chance in (
                    (before, _sigmoid(one.features[name][0])),
                    (after, weights(name, one.features[name])),
                ):
                    table[one.scan].said.append(chance)
                    table[one.scan].true.append(true)
        errors[name] = {
            place: (round(before[scan].error, 4), round(after[scan].error, 4))
            for place, scan in (("drawings", False), ("scans", True))
        }
    return errors


def _sigmoid(logit: float) -> float:
    return float(torch.tensor(logit).sigmoid())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.universal.calibrate", description=__doc__.split("\n")[0])
    parser.add_argument("--layer", type=Path, default=WEIGHTS, help="folder of the layer (the one that ships)")
    parser.add_argument("--drawn", type=int, default=120, metavar="N", help="drawn pages (120)")
    parser.add_argument("--receipts", type=Path, required=True, help="folder of scanned receipts: their training split")
    parser.add_argument("--scans", type=int, default=60, metavar="N", help="scans of it (60)")
    parser.add_argument("--fonts", type=Path, help="folder of .ttf fonts to draw with (the bundled ones)")
    parser.add_argument("--strength", type=float, default=0.3, help="how far drawings are photographed, 0 to 1 (0.3)")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {CALIBRATION}")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        layer = UniversalLayer.from_pretrained(given.layer)
        fonts = bundled_fonts() if given.fonts is None else FontSet.from_folder(given.fonts)
        receipts = random.Random(0).sample(split(read_receipts(given.receipts))[0], given.scans)
    except (ArrCocError, OSError, ValueError) as error:
        parser.error(str(error))
    assert isinstance(layer, UniversalLayer)
    said: list[Said] = []
    for number in range(given.drawn):
        name = f"universal calibration {number}"
        drawing = draw_any(name, mix(0.2), fonts=fonts, held_out=True, invented=random.Random(name).random() < 0.5)
        said += ask(layer, make_page(random.Random(name), drawing, layer.config, given.strength, 28.0), scan=False)
    for receipt in receipts:
        said += ask(layer, scanned_page(receipt, layer), scan=True)
    weights = {name: fit(rows_of(said, name)) for name in DOUBTS}
    errors = crossed(said)
    given.out.mkdir(parents=True, exist_ok=True)
    Calibration(weights).save(given.out)
    print(
        json.dumps(
            {"questions": len(said), "weights": weights, "error before and after, other kinds": errors}, indent=1
        )
    )


if __name__ == "__main__":
    main()
