"""`python -m recipes.upright RECEIPTS PHOTOGRAPHS`: train the network that tells upright lines of text from lines upside down or sideways.

RECEIPTS is a folder of scanned receipts with recs.json; one in ten is kept for validation. The rest of the strips are cut from drawn
documents, each at a random scale, a little tilted, blurred and noisy, half of them sideways; and from drawn scenes, noise and every second
photograph of a folder, which show no text or hardly any. Strips are cut as `arr_coc.relevance.straighten` cuts them. Writes `upright.safetensors` of the package and prints how often a
strip, and the mean over a picture's strips, is right. Minutes on one core.
"""

import argparse
import io
import random
import time
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from arr_coc.relevance.straighten import (
    SIDE,
    STRIP,
    WEIGHTS,
    WIDTHS,
    find_letters,
    find_lines,
    line_strips,
    network,
    reduced,
)  # fmt: skip
from arr_coc.training.documents.drawing import KINDS, draw_any
from recipes.reader.receipts import read_receipts, split

DRAWN, EMPTY = 450, 250  # drawn documents, and pictures without text
VARIANTS = {"receipts": 3, "drawn": 2, "empty": 2}  # of each picture
EPOCHS, BATCH, RATE = 10, 256, 4e-3
LEVEL, SIDEWAYS, NO_TEXT = range(3)


def vary(rng: random.Random, gray: np.ndarray, seed: int) -> np.ndarray:
    """A picture as a phone or a scanner might give it: scale, tilt, shear, blur, light, noise, compression."""
    height, width = gray.shape
    scale = rng.uniform(0.45, 1.1) * SIDE / max(height, width)
    turn, shear = np.deg2rad(rng.gauss(0, 1.2)), rng.gauss(0, 0.08)
    linear = scale * np.array([[np.cos(turn), shear - np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    size = (round(width * scale), round(height * scale))
    middle = np.array(size) / 2 - linear @ np.array([width / 2, height / 2])
    made = cv2.warpAffine(
        gray, np.column_stack([linear, middle]), size, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE
    )
    if rng.random() < 0.5:
        made = cv2.GaussianBlur(made, (0, 0), rng.uniform(0.4, 1.6))
    low = rng.uniform(0, 60)
    made = low + made * rng.uniform(0.25, 1.0) * (255 - low) / 255
    if rng.random() < 0.6:
        made = made + rng.uniform(1, 9) * np.random.default_rng(seed).standard_normal(made.shape)
    made = made.clip(0, 255).astype(np.uint8)
    if rng.random() < 0.4:
        data = io.BytesIO()
        Image.fromarray(made).save(data, "JPEG", quality=rng.randint(15, 70))
        made = np.asarray(Image.open(data))
    return made


def empty(rng: random.Random, seed: int) -> np.ndarray:
    """A picture without text: a drawn scene, stripes, or noise of any grain."""
    kind = rng.random()
    if kind < 0.5:
        return cv2.cvtColor(draw_any(f"upright empty {seed}", ["scene"]).image, cv2.COLOR_RGB2GRAY)
    noise = np.random.default_rng(seed).standard_normal((700, 500)).astype(np.float32)
    noise = np.asarray(cv2.GaussianBlur(noise, (0, 0), sigmaX=rng.uniform(0.5, 6), sigmaY=rng.uniform(0.5, 6)))
    if kind < 0.75:
        noise += noise.std() * rng.uniform(1, 4) * np.sign(np.sin(np.arange(500) / rng.uniform(1, 9)))
    return (128 + rng.uniform(15, 60) * noise / noise.std()).clip(0, 255).astype(np.uint8)


def cut(gray: np.ndarray) -> np.ndarray:
    gray = reduced(gray)
    return line_strips(gray, find_lines(find_letters(gray)))


def strips_of(pictures: list[np.ndarray], seed: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Strips, what each shows, and the number of the picture that it is from. `kind`: of pictures, one of `VARIANTS`."""
    made, kinds, sources = [], [], []
    for number, gray in enumerate(pictures):
        for variant in range(VARIANTS[kind]):
            rng = random.Random(f"{seed} {number} {variant}")
            shown = vary(rng, gray, 10_000 * seed + 10 * number + variant)
            sideways = rng.random() < 0.4
            if sideways:
                shown = np.ascontiguousarray(np.rot90(shown, rng.choice((1, 3))))
            # Half of the pages lie upside down when they are cut, and their strips are turned: a strip shows by its letters alone
            # which way up it is, not by how it was cut.
            over = rng.random() < 0.5
            found = cut(np.ascontiguousarray(shown[::-1, ::-1]) if over else shown)
            found = np.ascontiguousarray(found[:, ::-1, ::-1]) if over else found
            made.append(found)
            kinds.append(np.full(len(found), NO_TEXT if kind == "empty" else SIDEWAYS if sideways else LEVEL))
            sources.append(np.full(len(found), number))
    return np.concatenate(made), np.concatenate(kinds), np.concatenate(sources)


def start() -> dict[str, torch.Tensor]:
    """Weights to start from."""
    weights, before = {}, 1
    for number, width in enumerate(WIDTHS):
        side = 5 if number == 0 else 3
        weights[f"{number}.weight"] = torch.randn(width, before, side, side) * (2 / (before * side**2)) ** 0.5
        weights[f"{number}.bias"] = torch.zeros(width)
        before = width
    weights["out.weight"] = torch.randn(2, 2 * before) * 0.05
    weights["out.bias"] = torch.zeros(2)
    return {name: value.requires_grad_() for name, value in weights.items()}


def judged(strips: torch.Tensor, weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """As `straighten.judge`, with gradients."""
    own, other = network(torch.cat([strips, strips.flip(2, 3)]), weights).chunk(2)
    return (own[:, 0] + other[:, 0]) / 2, own[:, 1] - other[:, 1]


def moved(strips: torch.Tensor) -> torch.Tensor:
    """Strips cut a little differently: scaled, sheared, moved."""
    count = len(strips)
    scale, shear = torch.empty(count, 2).uniform_(0.85, 1.15), torch.empty(count, 2).uniform_(-1, 1)
    shift = torch.empty(count, 2).uniform_(-0.1, 0.1)
    # Axes run from -1 to 1, so that across is STRIP[1] / STRIP[0] times as long as down.
    long = STRIP[1] / STRIP[0]
    rows = [scale[:, 0], 0.15 / long * shear[:, 0], shift[:, 0], 0.04 * long * shear[:, 1], scale[:, 1], shift[:, 1]]
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(strips.shape), align_corners=False)
    return F.grid_sample(strips, grid, padding_mode="border", align_corners=False)


def fit(strips: np.ndarray, kinds: np.ndarray, epochs: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    weights = start()
    given, wanted = torch.from_numpy(strips)[:, None], torch.from_numpy(kinds)
    optimiser = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.02)
    steps = epochs * (len(given) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for epoch in range(epochs):
        began, total = time.process_time(), 0.0
        for rows in torch.randperm(len(given))[: len(given) // BATCH * BATCH].view(-1, BATCH):
            batch, level = given[rows], (wanted[rows] == LEVEL).float()
            batch = moved(batch) * torch.empty(len(rows), 1, 1, 1).uniform_(0.7, 1.3)
            text, up = judged(batch, weights)
            upright = F.binary_cross_entropy_with_logits(up, 0.5 + level / 2, reduction="none")
            loss = F.binary_cross_entropy_with_logits(text, level) + (upright * (0.2 + 0.8 * level)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total * BATCH / len(given):.3f}, {time.process_time() - began:.0f} s", flush=True)
    return {name: value.detach() for name, value in weights.items()}


@torch.no_grad()
def report(name: str, data: tuple[np.ndarray, np.ndarray, np.ndarray], weights: dict[str, torch.Tensor]) -> None:
    strips, kinds, sources = data
    text, up = (one.numpy() for one in judged(torch.from_numpy(strips)[:, None], weights))
    level = kinds == LEVEL
    right = (up[level] > 0).mean() if level.any() else float("nan")
    votes = [np.clip(up[level & (sources == one)], -4, 4).mean() for one in np.unique(sources[level])]
    print(
        f"| {name} | {len(strips)} | {((text > 0) == level).mean():.3f} | {right:.3f} | "
        f"{np.mean(np.array(votes) > 0) if votes else float('nan'):.3f} of {len(votes)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.upright", description=__doc__)
    parser.add_argument("receipts", type=Path, help="folder of scanned receipts with recs.json")
    parser.add_argument("photographs", type=Path, help="folder of photographs without documents")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (the package)")
    parser.add_argument("--drawn", type=int, default=DRAWN, help=f"drawn documents ({DRAWN})")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--check", action="store_true", help="train nothing: measure the weights that ship")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [kind for kind in KINDS if kind not in ("scene", "chart")]
    train, held_out = split(read_receipts(given.receipts))
    drawn = [
        cv2.cvtColor(draw_any(f"upright {seed}", kinds).image, cv2.COLOR_RGB2GRAY)
        for seed in range(given.drawn + given.drawn // 10)
    ]
    photos = [np.asarray(Image.open(path).convert("L")) for path in sorted(given.photographs.glob("*.jpg"))]
    plain = [empty(random.Random(f"empty {seed}"), seed) for seed in range(EMPTY + EMPTY // 5)]
    if given.check:
        weights = {name: value.float() for name, value in load_file(WEIGHTS).items()}
    else:
        parts = [
            strips_of([np.asarray(one.image) for one in train], 0, "receipts"), strips_of(drawn[: given.drawn], 1, "drawn"),
            strips_of(plain[:EMPTY], 2, "empty"), strips_of([*photos[::2], *photos[::2]], 6, "empty"),
        ]  # fmt: skip
        strips, labels = (np.concatenate([part[i] for part in parts]) for i in range(2))
        print(f"{len(strips)} strips of {STRIP[0]} x {STRIP[1]} px", flush=True)
        weights = fit(strips, labels, given.epochs)
        save_file({name: value.half().contiguous() for name, value in weights.items()}, given.out)
    print("| validation | strips | level text or not | upright | mean of a picture |\n|---|---|---|---|---|")
    report("scanned receipts", strips_of([np.asarray(one.image) for one in held_out], 3, "receipts"), weights)
    report("drawn documents", strips_of(drawn[given.drawn :], 4, "drawn"), weights)
    report("without text", strips_of(plain[EMPTY:], 5, "empty"), weights)
    report("photographs", strips_of(photos[1::2], 7, "empty"), weights)


if __name__ == "__main__":
    main()
