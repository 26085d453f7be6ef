"""Measures precision and recall per pixel of the text detectors, on scanned receipts and on photos.

    python benchmarks/text_quality.py RECEIPTS [--photos FOLDER] [--limit N] [--json]

The ground truth is the inside of the receipts' text-line boxes. Every fifth receipt is measured; benchmarks/fit_text.py fits on the
others. Photos are assumed to have no text: the share of their pixels that is classified as text is reported. Rendered lines of
several sizes and contrasts show the limits of the fast detector.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR
from rich.progress import track

from arr_coc import TextureArray
from arr_coc.bench.timing import machine
from arr_coc.texture.channels.text import detect_text, text_features
from arr_coc.texture.filters import luma, pool
from arr_coc.types.image import read_picture
from scanned_receipts import ScannedReceipt, read_receipts, receipt_names

THRESHOLDS = {"strokes": (0.3, 0.5, 0.7), "rapidocr": (0.5,), "rapidocr, its own settings": (0.5,)}
SIZES = (8, 10, 12, 16, 24, 32, 40, 56, 80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipts", type=Path, help="folder with recs.json and the scanned receipts")
    parser.add_argument("--photos", type=Path, help="folder with photos (*.jpg) without text")
    parser.add_argument("--limit", type=int, help="number of receipts and photos (all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    names = [name for i, name in enumerate(receipt_names(arguments.receipts)) if i % 5 == 0][: arguments.limit]
    receipts = read_receipts(arguments.receipts, names)
    paths = sorted(arguments.photos.glob("*.jpg"))[: arguments.limit] if arguments.photos else []
    rows = []
    for detector, thresholds in THRESHOLDS.items():
        start = time.perf_counter()
        maps = [detect(r.picture.pixels, detector) for r in track(receipts, f"{detector}: receipts", transient=True)]
        milliseconds = (time.perf_counter() - start) * 1e3 / len(receipts)
        photos = [detect(read_picture(p).pixels, detector) for p in track(paths, f"{detector}: photos", transient=True)]
        for threshold in thresholds:
            found = sum(int((m > threshold).sum()) for m in maps)
            right = sum(int(((m > threshold) & r.is_text).sum()) for m, r in zip(maps, receipts, strict=True))
            positives = sum(int(r.is_text.sum()) for r in receipts)
            on_photos = sum(int((m > threshold).sum()) for m in photos) / max(1, sum(m.numel() for m in photos))
            rows.append(
                {
                    "detector": detector,
                    "threshold": threshold,
                    "precision": right / found,
                    "recall": right / positives,
                    "called_text_on_photos": on_photos if photos else None,
                    "ms_per_receipt": milliseconds,
                }
            )
    alone = features_alone(receipts, paths)
    sweep = {ink: [rendered_recall(size, ink) for size in SIZES] for ink in (20, 120, 170)}
    if arguments.json:
        print(
            json.dumps(
                {
                    "machine": machine(),
                    "receipts": len(receipts),
                    "photos": len(paths),
                    "rows": rows,
                    "alone": alone,
                    "sweep": sweep,
                }
            )
        )
        return
    print(f"{machine()}; {len(receipts)} receipts, {len(paths)} photos\n")
    print(
        "| detector | threshold | precision | recall | of photos called text | ms a receipt |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        photos_share = "" if row["called_text_on_photos"] is None else f"{row['called_text_on_photos']:.2%}"
        print(
            f"| {row['detector']} | {row['threshold']} | {row['precision']:.2f} | {row['recall']:.2f} | {photos_share} "
            f"| {row['ms_per_receipt']:.0f} |"
        )
    print(
        "\n| one feature alone, at its best threshold | precision | recall | of photos called text |\n|---|---|---|---|"
    )
    for name, (precision, recall, on_photos) in alone.items():
        print(f"| {name} | {precision:.2f} | {recall:.2f} | {on_photos:.2%} |")
    print(f"\n| rendered line, ink on paper of 235 | {' | '.join(f'{size} px' for size in SIZES)} |")
    print(f"|---|{'---|' * len(SIZES)}")
    for ink, shares in sweep.items():
        print(f"| ink {ink} | {' | '.join(f'{share:.2f}' for share in shares)} |")


def detect(pixels: torch.Tensor, detector: str) -> torch.Tensor:
    if detector == "rapidocr, its own settings":
        return detect_text(pixels, default_engine())
    return TextureArray.from_image(pixels, max_side=None, text=detector)["text"]


@lru_cache(maxsize=1)
def default_engine() -> RapidOCR:
    return RapidOCR(params={"Global.log_level": "critical"})


def features_alone(receipts: list[ScannedReceipt], photos: list[Path]) -> dict[str, tuple[float, float, float]]:
    """Precision, recall and share of photo pixels for each feature separately, at the threshold of its best F1."""

    def read(pixels: torch.Tensor) -> torch.Tensor:
        # The third feature is low on text, so its sign is inverted.
        return text_features(luma(pixels)) * torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])[:, None, None]

    features = [read(receipt.picture.pixels) for receipt in receipts]
    sizes = [(int(f.shape[1]), int(f.shape[2])) for f in features]
    truth = torch.cat([pool(r.is_text, s, "nearest").flatten() for r, s in zip(receipts, sizes, strict=True)])
    on_photos = [read(read_picture(path).pixels) for path in photos]
    found = {}
    for i, name in enumerate(("slopes", "swings", "evenness", "imbalance", "height")):
        values = torch.cat([f[i].flatten() for f in features])
        order = values.argsort(descending=True)
        right = truth[order].cumsum(0).double()
        called = torch.arange(1, len(values) + 1)
        best = int((2 * right / (called + truth.sum())).argmax())  # F1 = 2 right / (called + positives)
        threshold = values[order[best]]
        share = torch.cat([f[i].flatten() for f in on_photos]) > threshold if photos else torch.zeros(1)
        found[name] = (
            float(right[best] / called[best]),
            float(right[best] / truth.sum()),
            float(share.float().mean()),
        )
    return found


def rendered_recall(size: int, ink: int) -> float:
    """Share of the pixels of three rendered lines that "strokes" classifies as text, at threshold 0.5."""
    page = Image.new("L", (800, 600), 235)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size)
    line = "The quick brown fox 1234 jumps"
    boxes = []
    for row in range(3):
        at = (60, 40 + round(row * 2.2 * size))
        draw.text(at, line, fill=ink, font=font)
        boxes.append([round(v) for v in draw.textbbox(at, line, font=font)])
    text = TextureArray.from_image(page)["text"]
    shares = [(text[y0:y1, x0 : min(x1, 800)] > 0.5).float().mean() for x0, y0, x1, y1 in boxes]
    return float(torch.stack(shares).mean())


if __name__ == "__main__":
    main()
