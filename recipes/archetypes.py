"""`python -m recipes.archetypes RECEIPTS PHOTOS`: fit the archetypes of salience on the boxes of what questions are about.

RECEIPTS is a folder of scans with `recs.json` (those that training keeps for validation are left out), PHOTOS one with
`samples.jsonl`, of which every second picture is taken. Drawn documents and scenes come from `draw_any`. A cell counts as
looked at where the box of any question's evidence covers its centre.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from arr_coc import TextureArray
from arr_coc.relevance.salience import FEATURES, WEIGHTS, Archetypes, cell_features, together
from arr_coc.training.documents.drawing import KINDS, draw_any
from arr_coc.types.grid import Grid
from recipes.reader.receipts import FIELDS, Box, Receipt, find_evidence, read_receipts, split

CELL = 28
SEED = 31_000
LARGE = 1.6 * CELL  # px: letters of a box this high are large
CHARTS, SCENES, SCREENS = ("chart",), ("scene",), ("screen",)
EACH = 2  # prototypes of a name
BATCH = 4096  # cells a step
NAMED = 0.2  # how much it counts that an archetype finds the cells of its own name


def boxes_of(receipt: Receipt) -> list[Box]:
    """The boxes of a receipt's fields."""
    lines = [text for text, _ in receipt.lines]
    asked = [(kind, receipt.fields.get(kind)) for kind in FIELDS[:3]]
    found = [find_evidence(kind, answer, lines) for kind, answer in asked if answer]
    return [receipt.lines[number][1] for places in found if len(places) < len(lines) for number in places]


def name_of(kind: str, box: Sequence[float]) -> str:
    if kind in CHARTS:
        return "chart mark"
    if kind in SCENES:
        return "drawn object"
    if kind == "photo":
        return "object"
    return "large letters" if box[3] - box[1] > LARGE else "field of a screen" if kind in SCREENS else "print"


def pictures(
    receipts: Path, photos: Path, drawn: int, scans: int
) -> Iterator[tuple[str, Image.Image, list[Sequence[float]]]]:
    """(kind, picture, boxes) of all training pictures."""
    for receipt in random.Random(0).sample(split(read_receipts(receipts))[0], scans):
        yield "receipt", receipt.image.convert("RGB"), list(boxes_of(receipt))
    for seed in range(SEED, SEED + drawn):
        drawing = draw_any(seed, [KINDS[seed % len(KINDS)]])
        shown: list[Sequence[float]] = [
            box for one in drawing.questions for group in one.evidence or () for box in group
        ]
        yield drawing.kind, Image.fromarray(drawing.image), shown
    for image, boxes in photo_boxes(photos)[::2]:
        yield "photo", Image.open(image).convert("RGB"), boxes


def photo_boxes(folder: Path) -> list[tuple[Path, list[Sequence[float]]]]:
    """Every photograph with the boxes of all its questions."""
    found: dict[Path, list[Sequence[float]]] = {}
    for line in (folder / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        found.setdefault(folder / sample["image"], []).extend(box for group in sample["evidence"] for box in group)
    return sorted(found.items())


def labelled(kind: str, image: Image.Image, boxes: Sequence[Sequence[float]]) -> tuple[torch.Tensor, list[list[str]]]:
    """A picture's features `[F, h, w]`, and the name of what each cell shows ("" for nothing)."""
    grid = Grid(1, max(1, round(image.height / CELL)), max(1, round(image.width / CELL)))
    names = [[""] * grid.w for _ in range(grid.h)]
    for box in boxes:
        for row in range(grid.h):
            for column in range(grid.w):
                x, y = (column + 0.5) * image.width / grid.w, (row + 0.5) * image.height / grid.h
                wide, high = image.width / grid.w / 2, image.height / grid.h / 2
                if box[0] - wide < x < box[2] + wide and box[1] - high / 2 < y < box[3] + high / 2:
                    names[row][column] = name_of(kind, box)
    return cell_features(TextureArray.from_image(image), grid), names


def fit(examples: Sequence[tuple[torch.Tensor, list[list[str]]]], steps: int = 400) -> Archetypes:
    """Prototypes whose match tells the cells that questions are about from all others."""
    features = torch.cat([one.flatten(1).T for one, _ in examples])  # [N, F]
    named = [name for _, names in examples for row in names for name in row]
    asked = torch.tensor([bool(name) for name in named])
    weight = torch.cat([_balanced(names) for _, names in examples])
    kinds = sorted({name for name in named if name})
    is_kind = {kind: torch.tensor([name == kind for name in named]) for kind in kinds}
    centres, names = [], []
    generator = torch.Generator().manual_seed(0)
    for kind in kinds:
        for centre in _means(features[is_kind[kind]], EACH, generator):
            centres.append(centre)
            names.append(kind)
    centre = torch.stack(centres).requires_grad_()
    spread = features.std(0).clamp(min=0.05)
    precision = (1 / spread.square() / len(FEATURES) * 2).log().repeat(len(names), 1).requires_grad_()
    height = torch.zeros(len(names)).requires_grad_()
    optimiser = torch.optim.Adam([centre, precision, height], lr=0.02)
    for _ in range(steps):
        some = torch.multinomial(
            weight, BATCH, replacement=True, generator=generator
        )  # then all pictures count the same
        found = Archetypes(tuple(names), centre, precision.exp(), height.sigmoid())
        match = found.match(features[some].T[:, :, None])[..., 0]
        chance = together(match).clamp(1e-4, 1 - 1e-4)
        loss = torch.nn.functional.binary_cross_entropy(chance, asked[some].float())
        for kind in kinds:  # what is called by a name finds the cells of that name
            own = together(match[torch.tensor([name == kind for name in names])]).clamp(1e-4, 1 - 1e-4)
            loss = loss + torch.nn.functional.binary_cross_entropy(own, is_kind[kind][some].float()) * NAMED / len(
                kinds
            )
        loss = loss + 1e-3 * precision.exp().mean().log1p()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Archetypes(tuple(names), centre.detach(), precision.detach().exp(), height.detach().sigmoid())


def _balanced(names: list[list[str]]) -> torch.Tensor:
    """Weights of a picture's cells `[N]`: those that questions are about count as much as all others, each picture the same."""
    asked = torch.tensor([bool(name) for row in names for name in row])
    share = asked.float().mean().clamp(1e-3, 1 - 1e-3)
    return torch.where(asked, 0.5 / share, 0.5 / (1 - share)) / len(asked)


def _means(points: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """k-means of points `[N, F]`: `[count, F]`."""
    centres = points[torch.randperm(len(points), generator=generator)[:count]].clone()
    for _ in range(20):
        nearest = torch.cdist(points, centres).argmin(1)
        for number in range(len(centres)):
            if bool((nearest == number).any()):
                centres[number] = points[nearest == number].mean(0)
    return centres


def store(found: Archetypes, path: Path) -> None:
    tensors = {name: getattr(found, name).contiguous() for name in ("centre", "precision", "height")}
    save_file(tensors, path, {"names": json.dumps(found.names), "features": json.dumps(FEATURES)})
    path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.archetypes", description=__doc__)
    parser.add_argument("receipts", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--drawn", type=int, default=120)
    parser.add_argument("--scans", type=int, default=40)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    examples = [labelled(*one) for one in pictures(given.receipts, given.photos, given.drawn, given.scans)]
    found = fit([one for one in examples if any(name for row in one[1] for name in row)])
    store(found, given.out)
    for number, name in enumerate(found.names):
        strong = found.centre[number].topk(4).indices.tolist()
        print(f"{name:18} height {found.height[number]:.2f}  {', '.join(FEATURES[i] for i in strong)}")


if __name__ == "__main__":
    main()
