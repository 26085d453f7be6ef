"""Measures answers about large images: receipts as a phone takes them, and dense A4 pages at 300 dpi.

    python benchmarks/large_pages.py draw PHOTOS --receipts RECEIPTS --photographs OBJECTS
    python benchmarks/large_pages.py draw PAGES --pages 24
    python benchmarks/large_pages.py draw SCANS --held-out TRAINING_RECEIPTS
    python benchmarks/large_pages.py run PHOTOS -o results.jsonl

`draw` is deterministic. RECEIPTS is a folder of scans with samples.jsonl. OBJECTS is a folder of photographs: each receipt lies on
one of them, enlarged to 12 megapixels, blurred or with the grain of a table. It is a third to a half of the image's width,
rotated by up to 8 degrees, unevenly lit, with noise of a sensor. `run` asks every contestant the same questions; the same
command continues an interrupted run. `dense, native size` reads 15,000 tokens of a photo, many minutes on a CPU: choose it with --only and
--limit. Contestants with a share are for scans as they are: `run SCANS --only dense "one scale, 25%" "mixed, 25%"`. `--held-out` writes
the scans that decisions are made on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import arr_coc
from arr_coc.evaluation.metrics import exact
from arr_coc.evaluation.statistics import interval
from arr_coc.training.documents import form, text
from arr_coc.training.documents.page import bundled_fonts
from arr_coc.vlm import mixed
from arr_coc.vlm.mixed import LARGER
from recipes.reader.receipts import find_evidence, read_receipts, split

PHONE = (3024, 4032)  # width and height of a 12-megapixel photo
A4 = (2480, 3508)  # 300 dpi
KINDS = {
    "total": "What is the total amount?",
    "date": "What is the date on the receipt?",
    "company": "What is the name of the company?",
}
WIDTHS = (1 / 3, 1 / 2)  # of the image's width: how wide a receipt is
MAX_ANGLE = 8.0  # degrees
MARGIN = 0.02  # of the image that stays free around a receipt
QUALITY = 88  # of the JPEG file
PRINT = (38, 46)  # px: 9 to 11 points at 300 dpi
FACES = ("Arimo-Regular", "Tinos-Regular", "Cousine-Regular")
FIELDS = 30  # of a dense page
ASKED = 4  # questions about each dense page


def read_scans(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The samples of a folder by image."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if sample.get("kind") in KINDS:
            found.setdefault(sample["image"], []).append(sample)
    return found


def draw_held_out(receipts: Path, out: Path, scale: float = 1.0) -> None:
    """The scans that the reader's training keeps for validation, with the questions of `KINDS`; smaller ones have smaller print."""
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for receipt in split(read_receipts(receipts))[1]:
        file, texts = f"{receipt.name}.jpg", [text for text, _ in receipt.lines]
        width, height = (round(side * scale) for side in receipt.image.size)
        if scale == 1.0:
            shutil.copyfile(receipts / file, out / file)
        else:
            with Image.open(receipts / file) as opened:
                opened.resize((width, height), Image.Resampling.LANCZOS).save(out / file, quality=92)
        for kind, question in KINDS.items():
            if answer := receipt.fields.get(kind):
                found = find_evidence(kind, answer, texts)
                boxes = (
                    [[v * scale for v in receipt.lines[line][1]] for line in found] if len(found) < len(texts) else []
                )
                sample = {"image": file, "question": question, "answer": answer, "kind": kind}
                lines.append(sample | {"evidence": [[box] for box in boxes], "width": width, "height": height})
    (out / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def background(photographs: list[Path], rng: random.Random, noise: np.random.Generator) -> np.ndarray:
    """A photograph that fills the image: out of focus, or a patch of it as the grain of a table."""
    width, height = PHONE
    with Image.open(rng.choice(photographs)) as opened:
        photo = np.asarray(opened.convert("RGB"))
    if photo.shape[1] > photo.shape[0]:
        photo = np.ascontiguousarray(np.rot90(photo))
    if rng.random() < 0.5:
        scale = max(width / photo.shape[1], height / photo.shape[0])
        large = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)[:height, :width]
        return cv2.GaussianBlur(large, (0, 0), rng.uniform(4, 16))
    side = min(photo.shape[:2]) // 2
    top, left = rng.randrange(photo.shape[0] - side), rng.randrange(photo.shape[1] - side)
    patch = cv2.resize(photo[top : top + side, left : left + side], (756, 756), interpolation=cv2.INTER_CUBIC)
    tile = np.concatenate([patch, patch[:, ::-1]], 1)
    tile = np.concatenate([tile, tile[::-1]], 0)
    repeats = (-(-height // tile.shape[0]), -(-width // tile.shape[1]), 1)
    large = np.tile(tile, repeats)[:height, :width].astype(np.float32)
    grain = cv2.GaussianBlur(noise.standard_normal((height, width)).astype(np.float32), (0, 0), sigmaX=24, sigmaY=1.5)
    return np.clip(large * 0.5 + large.mean((0, 1)) * 0.5 + 160 * grain[..., None], 0, 255).astype(np.uint8)


def placed(scan: np.ndarray, seed: int) -> np.ndarray:
    """The map `[2, 3]` from a scan's pixels to those of the photo: its width, angle and place."""
    rng = random.Random(seed)
    (width, height), (scan_height, scan_width) = PHONE, scan.shape[:2]
    turn = np.deg2rad(rng.uniform(-MAX_ANGLE, MAX_ANGLE))
    scale = rng.uniform(*WIDTHS) * width / scan_width
    corners = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    needed = np.abs(corners) @ np.array([scan_width, scan_height])  # width and height of the turned scan
    room = (1 - 2 * MARGIN) * np.array([width, height])
    scale = min(scale, *(room / needed))
    free = (np.array([width, height]) - needed * scale) / 2
    centre = np.array([width / 2, height / 2]) + [rng.uniform(-1, 1) * f * 0.8 for f in free]
    matrix = np.zeros((2, 3))
    matrix[:, :2] = corners * scale
    matrix[:, 2] = centre - matrix[:, :2] @ np.array([scan_width / 2, scan_height / 2])
    return matrix


def photographed(scan: np.ndarray, matrix: np.ndarray, photographs: list[Path], seed: int) -> np.ndarray:
    """A scan as a phone takes it: `[4032, 3024, 3]`."""
    rng, noise = random.Random(seed + 1), np.random.default_rng(seed)
    width, height = PHONE
    behind = background(photographs, rng, noise).astype(np.float32)
    paper = cv2.warpAffine(scan, matrix, PHONE, flags=cv2.INTER_CUBIC).astype(np.float32)
    inside = cv2.warpAffine(np.ones(scan.shape[:2], np.float32), matrix, PHONE, flags=cv2.INTER_LINEAR)
    shadow = cv2.GaussianBlur(cv2.warpAffine(inside, np.array([[1.0, 0.0, 18.0], [0.0, 1.0, 24.0]]), PHONE), (0, 0), 20)
    behind *= 1 - 0.45 * shadow[..., None]
    taken = behind + (paper - behind) * inside[..., None]
    across, down = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    light = rng.uniform(0.82, 0.95) + rng.uniform(-0.12, 0.12) * across + rng.uniform(-0.12, 0.12) * down
    taken *= light.astype(np.float32)[..., None]
    taken = cv2.GaussianBlur(taken, (0, 0), rng.uniform(0.6, 1.2)).astype(np.float32)
    taken += noise.standard_normal(taken.shape, dtype=np.float32) * rng.uniform(2, 5)
    return np.clip(taken, 0, 255).astype(np.uint8)


def draw_photos(receipts: Path, photographs: Path, out: Path, limit: int | None) -> None:
    """Every receipt of a folder as a photo, with its questions and the boxes of the answers in the photo."""
    out.mkdir(parents=True, exist_ok=True)
    backgrounds = sorted(photographs.glob("*.jpg"))
    lines = []
    for name, samples in sorted(read_scans(receipts).items())[:limit]:
        with Image.open(receipts / name) as opened:
            scan = np.asarray(opened.convert("RGB"))
        seed, file = zlib.crc32(name.encode()), f"{Path(name).stem}.jpg"
        matrix = placed(scan, seed)
        if not (out / file).exists():
            Image.fromarray(photographed(scan, matrix, backgrounds, seed)).save(out / file, quality=QUALITY)
        for sample in samples:
            evidence = [[_moved(box, matrix) for box in group] for group in sample.get("evidence") or []]
            kept = {key: sample[key] for key in ("question", "answer", "kind")}
            lines.append({"image": file, **kept, "evidence": evidence, "width": PHONE[0], "height": PHONE[1]})
        print(file, flush=True)
    (out / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _moved(box: list[float], matrix: np.ndarray) -> list[float]:
    x0, y0, x1, y1 = box
    corners = np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]]) @ matrix[:, :2].T + matrix[:, 2]
    return [round(float(v), 1) for v in (*corners.min(0), *corners.max(0))]


def draw_pages(count: int, out: Path, first: int) -> None:
    """Dense A4 pages: paragraphs of small print with fields between them."""
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + count):
        page, samples = dense_page(number)
        file = f"page{number:03d}.jpg"
        page.save(out / file, quality=QUALITY, dpi=(300, 300))
        lines += [{"image": file, **sample, "width": A4[0], "height": A4[1]} for sample in samples]
        print(file, flush=True)
    (out / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def dense_page(seed: int) -> tuple[Image.Image, list[dict[str, Any]]]:
    """One page of about 60 lines of print, and questions for some of its fields."""
    rng = random.Random(seed)
    page = Image.new("RGB", A4, (rng.randint(240, 255),) * 3)
    draw = ImageDraw.Draw(page)
    faces = [path for path in bundled_fonts().paths if Path(path).stem in FACES]
    font = ImageFont.truetype(rng.choice(faces), rng.randint(*PRINT))
    left, right, top, bottom = 200, A4[0] - 200, 200, A4[1] - 200
    step = round(font.size * 1.35)
    rows = (bottom - top) // step
    keys = rng.sample(sorted(form.FIELDS), FIELDS)
    at = dict(zip(sorted(rng.sample(range(rows), FIELDS)), keys, strict=True))
    written = []
    for row in range(rows):
        y = top + row * step
        if row in at:
            value = str(form.FIELDS[at[row]](rng))
            shown = f"{at[row].capitalize()}: {value}"
            indent = rng.randint(0, (right - left) // 2)
            draw.text((left + indent, y), shown, fill=(30, 30, 30), font=font)
            start = left + indent + draw.textlength(shown[: -len(value)], font)
            end = left + indent + draw.textlength(shown, font)
            written.append((at[row], value, [round(start, 1), y, round(end, 1), y + font.size]))
            continue
        words = ""
        while draw.textlength(words, font) < right - left:
            words += text.words(rng, 1, 3).lower() + " "
        while draw.textlength(words, font) > right - left:
            words = words.rsplit(" ", 1)[0]
        draw.text((left, y), words, fill=(30, 30, 30), font=font)
    return page, [
        {"question": f"What is the {key}?", "answer": value, "kind": "field", "evidence": [[box]]}
        for key, value, box in rng.sample(written, ASKED)
    ]


@dataclass(frozen=True)
class Contestant:
    """A way to show an image: options of `ask`, and how it differs from the model's own processor."""

    options: dict[str, Any]
    pixels: int | None = None  # how many the processor may make of an image; None: the model's own limit
    enlarge: float = 1.0  # the image is enlarged before, along each side
    larger: tuple[float, float] | None = None  # `LARGER` of vlm/mixed.py
    together: bool = False  # all questions about an image at once: it is shown the same way, and encoded once


STOCK = {"budget": "all", "glance": "all", "detail": "off", "straighten": "off"}
SCANS = {"budget": "25%", "straighten": "off"}
UNLIMITED = 10**9  # pixels
CONTESTANTS = {
    "dense, native size": Contestant(STOCK, UNLIMITED, together=True),
    "dense, 2 MP": Contestant(STOCK, 2 * 10**6, together=True),
    "dense, 1 MP": Contestant(STOCK, 10**6, together=True),
    "dense": Contestant(STOCK, together=True),
    "resize": Contestant({"budget": 256, "selector": "resize", "detail": "off", "straighten": "off"}),
    "one scale": Contestant({"budget": 256, "glance": 256, "detail": "off", "straighten": "off"}),
    "views": Contestant({"budget": 256, "glance": 256, "detail": "auto"}),
    "views, auto": Contestant({"detail": "auto"}),
    "mixed": Contestant({"budget": 256, "glance": 256, "detail": "mixed"}),
    "dense, enlarged 1.25": Contestant(STOCK, UNLIMITED, enlarge=1.25, together=True),
    "dense, enlarged 1.5": Contestant(STOCK, UNLIMITED, enlarge=1.5, together=True),
    "one scale, 25%": Contestant(SCANS | {"detail": "off"}),
    "one scale, 25% encoded": Contestant(SCANS | {"glance": "25%", "detail": "off"}),
    "views, 25%": Contestant(SCANS | {"detail": "views"}),
    "mixed, 25%": Contestant(SCANS | {"detail": "mixed"}, together=True),
    "mixed, 25%, not enlarged": Contestant(SCANS | {"detail": "mixed"}, larger=(12.0, 1.0), together=True),
    "mixed, 25%, to 16 px": Contestant(SCANS | {"detail": "mixed"}, larger=(16.0, 1.5), together=True),
}
ON_PHOTOS = ["dense, 1 MP", "dense", "resize", "one scale", "views", "views, auto", "mixed"]
SUREST = (0.0, 0.9, 0.93, 0.95, 0.99, 0.999)  # mean token probabilities from which `report` counts right answers


def run(folder: Path, out: Path, names: list[str], model: str, limit: int | None) -> None:
    """Ask every contestant every question that `out` has no answer to yet."""
    done = set()
    if out.exists():
        done = {(r["contestant"], r["image"], r["question"]) for r in map(json.loads, out.read_text().splitlines())}
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    samples = [sample for sample in samples if sample["kind"] in (*KINDS, "field")]
    images = list(dict.fromkeys(sample["image"] for sample in samples))[:limit]
    for name in names:
        entry = CONTESTANTS[name]
        vlm = arr_coc.load(model)
        mixed.LARGER = entry.larger or LARGER
        if entry.pixels is not None:
            least = vlm.processor.image_processor.size["shortest_edge"]
            vlm.processor.image_processor.size = {"shortest_edge": least, "longest_edge": entry.pixels}
        for image in images:
            left = [one for one in samples if one["image"] == image and (name, image, one["question"]) not in done]
            for group in [left] if entry.together and left else [[one] for one in left]:
                with out.open("a") as file:
                    file.writelines(
                        json.dumps({"contestant": name, **row}) + "\n" for row in ask(vlm, entry, folder, group)
                    )
        print(name, flush=True)


def ask(vlm: arr_coc.VLM, entry: Contestant, folder: Path, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each question about one image. What they cost together is divided evenly."""
    image: Any = folder / samples[0]["image"]
    start, spent = time.perf_counter(), time.process_time()
    if entry.enlarge != 1.0:
        with Image.open(image) as opened:
            size = [round(side * entry.enlarge) for side in opened.size]
            image = opened.convert("RGB").resize((size[0], size[1]), Image.Resampling.BICUBIC)
    answers = vlm.ask(image, [sample["question"] for sample in samples], **entry.options)
    ms, cpu_ms = (
        round(1e3 * (now - then) / len(samples))
        for now, then in ((time.perf_counter(), start), (time.process_time(), spent))
    )
    rows = []
    for sample, answer in zip(samples, answers, strict=True):
        given = [] if answer.token_probabilities is None else answer.token_probabilities.tolist()
        given += [] if answer.end_probability is None else [answer.end_probability]
        rows.append(
            {
                **{key: sample[key] for key in ("image", "question", "kind", "answer")},
                "said": answer.text,
                "right": exact(answer.text, [sample["answer"]]),
                "confidence": answer.confidence,
                "probability": sum(given) / len(given) if given else None,
                "tokens": answer.tokens,
                "ms": ms,
                "cpu_ms": cpu_ms,
                "views": [str(one.view) for one in answer.allocations if one.view is not None],
            }
        )
    return rows


def report(results: Path) -> str:
    """Accuracy with its interval over images, by kind of question, what an answer costs, and how often sure answers are right."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    kinds = sorted({row["kind"] for row in rows})
    lines = [
        f"| | accuracy [95%] | {' | '.join(kinds)} | read | encoded | processor s | questions |",
        "|---" * (len(kinds) + 6) + "|",
    ]
    sure = [
        "",
        f"| right, by mean token probability | {' | '.join(f'from {least}' for least in SUREST)} |",
        "|---" * 7 + "|",
    ]
    for name in dict.fromkeys(row["contestant"] for row in rows):
        own = [row for row in rows if row["contestant"] == name]
        scores: dict[str, list[float]] = {}
        for row in own:
            scores.setdefault(row["image"], []).append(row["right"])
        low, high = interval(scores) or (0.0, 1.0)
        parts = []
        for kind in kinds:
            some = [row["right"] for row in own if row["kind"] == kind]
            parts.append(f"{sum(some) / len(some):.2f}" if some else "")
        read, encoded = (sum(row["tokens"][key] for row in own) / len(own) for key in ("kept", "encoded"))
        mean, cost = sum(row["right"] for row in own) / len(own), sum(row["cpu_ms"] for row in own) / len(own) / 1e3
        lines.append(
            f"| {name} | {mean:.2f} [{low:.2f}, {high:.2f}] | {' | '.join(parts)} | {read:.0f} | {encoded:.0f} | "
            f"{cost:.2f} | {len(own)} |"
        )
        above = [[row["right"] for row in own if (row["probability"] or 0.0) >= least] for least in SUREST]
        sure.append(
            f"| {name} | {' | '.join(f'{sum(some) / len(some):.2f} of {len(some)}' if some else '' for some in above)} |"
        )
    return "\n".join(lines + sure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw", help="write images and samples.jsonl")
    draw.add_argument("out", type=Path)
    draw.add_argument("--receipts", type=Path, help="folder of scans with samples.jsonl")
    draw.add_argument("--photographs", type=Path, help="folder of photographs, the backgrounds")
    draw.add_argument(
        "--held-out", type=Path, help="folder of training receipts: write those kept for validation, as they are"
    )
    draw.add_argument("--scale", type=float, default=1.0, help="of the scans of --held-out (1)")
    draw.add_argument("--pages", type=int, help="draw so many dense A4 pages instead")
    draw.add_argument("--first", type=int, default=0, help="seed of the first page (0)")
    draw.add_argument("--limit", type=int, help="number of receipts (all)")
    ask = commands.add_parser("run", help="ask all contestants, and print the table")
    ask.add_argument("folder", type=Path, help="what `draw` wrote")
    ask.add_argument("-o", "--out", type=Path, required=True, help="answers, one JSON object in a line")
    ask.add_argument("--only", nargs="+", choices=list(CONTESTANTS), default=ON_PHOTOS, help="contestants")
    ask.add_argument("--model", default="reader")
    ask.add_argument("--limit", type=int, help="number of images (all)")
    given = parser.parse_args()
    if given.command == "run":
        run(given.folder, given.out, given.only, given.model, given.limit)
        print(report(given.out))
    elif given.held_out is not None:
        draw_held_out(given.held_out, given.out, given.scale)
    elif given.pages is not None:
        draw_pages(given.pages, given.out, given.first)
    elif given.receipts is None or given.photographs is None:
        parser.error("expected --receipts and --photographs, --held-out, or --pages")
    else:
        draw_photos(given.receipts, given.photographs, given.out, given.limit)


if __name__ == "__main__":
    main()
