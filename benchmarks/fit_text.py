"""Fits the logistic weights of the "strokes" text channel.

    python benchmarks/fit_text.py RECEIPTS

Prints the constants for src/arr_coc/texture/channels/text.py. Positives and negatives are pixels inside and outside the text lines
of scanned receipts. Four of five receipts are used; the fifth is kept for benchmarks/text_quality.py. Further negatives are the
textures and photos without text that scikit-image includes, noise of several grain sizes, and drawn rules, frames and bars.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import skimage.data
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFilter

from arr_coc.texture.channels.text import text_features
from arr_coc.texture.filters import gaussian, luma, pool
from arr_coc.types.image import read_picture
from scanned_receipts import read_receipts, receipt_names

WITHOUT_TEXT = (
    "astronaut", "brick", "camera", "cell", "chelsea", "clock", "coffee", "coins", "colorwheel", "grass", "gravel",
    "horse", "hubble_deep_field", "immunohistochemistry", "moon", "retina", "rocket",
)  # fmt: skip
PIXELS_PER_IMAGE = 3000
WEIGHT_OF_PHOTOS = 0.5  # total weight of the photos, relative to the receipts


def ruled_pages(count: int = 24) -> list[torch.Tensor]:
    """Pages with dashed and solid rules, frames and bars, which are not text. Luma `[400, 400]` each."""
    rng = random.Random(0)
    pages = []
    for _ in range(count):
        paper, ink = rng.randint(180, 255), rng.randint(0, 120)
        page = Image.new("L", (400, 400), paper)
        pen = ImageDraw.Draw(page)
        y = 10
        while y < 330:
            thickness, dash, gap = rng.randint(1, 3), rng.randint(3, 16), rng.randint(3, 12)
            if rng.random() < 0.5:
                for x in range(10, 390, dash + gap):
                    pen.rectangle([x, y, x + dash - 1, y + thickness - 1], fill=ink)
            elif rng.random() < 0.5:
                pen.rectangle([10, y, 390, y + thickness - 1], fill=ink)
            else:
                pen.rectangle([10, y, rng.randint(60, 390), y + rng.randint(12, 40)], outline=ink, width=thickness)
            y += rng.randint(20, 50)
        x = 10
        while x < 390:
            bar = rng.randint(2, 7)
            pen.rectangle([x, 350, x + bar - 1, 390], fill=ink)
            x += bar + rng.randint(3, 9)
        pages.append(luma(read_picture(page.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))).pixels))
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("receipts", type=Path, help="folder with recs.json and the scanned receipts")
    folder = parser.parse_args().receipts
    generator = torch.Generator().manual_seed(0)

    def draw(features: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        picks = torch.randint(truth.numel(), (PIXELS_PER_IMAGE,), generator=generator)
        return features.flatten(1)[:, picks].T.double(), truth.flatten()[picks].double()

    receipts, photos = [], []
    names = [name for i, name in enumerate(receipt_names(folder)) if i % 5 != 0]
    for receipt in read_receipts(folder, names):
        features = text_features(luma(receipt.picture.pixels))
        size = (int(features.shape[1]), int(features.shape[2]))
        receipts.append(draw(features, pool(receipt.is_text, size, "nearest")))
    for name in WITHOUT_TEXT:
        pixels = read_picture(getattr(skimage.data, name)()).pixels
        enlarged = F.interpolate(pixels[None], scale_factor=1.7, mode="bilinear", align_corners=False)[0]
        for image in (pixels, enlarged):
            features = text_features(luma(image))
            photos.append(draw(features, torch.zeros(features.shape[1:])))
    for contrast in (0.1, 0.3, 1.0):
        for blur in (0.5, 1.0, 2.0):
            grain = gaussian(torch.rand(400, 400, generator=generator), blur)
            grain = ((grain - grain.mean()) / grain.std() * contrast / 4 + 0.5).clamp(0, 1)
            features = text_features(grain)
            photos.append(draw(features, torch.zeros(features.shape[1:])))
    for page in ruled_pages():
        features = text_features(page)
        photos.append(draw(features, torch.zeros(features.shape[1:])))
    x = torch.cat([part[0] for part in receipts + photos])
    y = torch.cat([part[1] for part in receipts + photos])
    share = WEIGHT_OF_PHOTOS * len(receipts) / len(photos)
    weight = torch.cat(
        [torch.ones(len(receipts) * PIXELS_PER_IMAGE), torch.full((len(photos) * PIXELS_PER_IMAGE,), share)]
    )

    mean, spread = x.mean(0), x.std(0)
    beta = torch.zeros(1 + x.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([beta], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits = (x - mean) / spread @ beta[1:] + beta[0]
        value = (F.binary_cross_entropy_with_logits(logits, y, reduction="none") * weight).sum() / weight.sum()
        value.backward()
        return value

    optimiser.step(loss)
    weights = (beta[1:] / spread).detach()
    bias = float(beta.detach()[0] - (weights * mean).sum())
    print(f"# {len(receipts)} receipts, {len(photos)} pictures without text, log loss {loss().item():.4f}")
    print(f"WEIGHTS = ({', '.join(f'{float(w):.3f}' for w in weights)})")
    print(f"BIAS = {bias:.3f}")


if __name__ == "__main__":
    main()
