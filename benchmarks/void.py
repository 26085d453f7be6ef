"""Measures how often textures without content are recognised as void, and how often something else is.

    python benchmarks/void.py --scans RECEIPTS --photos PHOTOS --drawn 200 --textures 20

RECEIPTS and PHOTOS are folders of pictures. Textures are generated (`arr_coc.draw.textures`, variants that set no threshold); those of
photographs are the photographs themselves with random phases. The table has the share called void.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from arr_coc import TextureArray
from arr_coc.draw import overlay
from arr_coc.draw.textures import TEXTURES, draw_texture, scramble
from arr_coc.relevance.strategy import void
from arr_coc.training.documents import draw_any

FIRST_VARIANT, FIRST_SEED = 1000, 600_000  # not those that thresholds were set on


def with_mark(kind: str, variant: int) -> Image.Image:
    """A texture with a word or a disc on it, which makes it no void."""
    rng, image = np.random.default_rng(variant), draw_texture(kind, variant)
    pen, (x, y) = ImageDraw.Draw(image), (int(v) for v in rng.integers(20, 330, 2))
    if variant % 2:
        pen.rectangle([x - 8, y - 6, x + 210, y + 44], fill=(250, 250, 245))
        pen.text((x, y), f"CODE {rng.integers(1000, 9999)}", fill=(10, 10, 10), font=overlay.font(34))
    else:
        reach = int(rng.integers(60, 180))
        pen.ellipse([x, y, x + reach, y + reach], fill=tuple(int(v) for v in rng.integers(0, 255, 3)))
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", type=Path, help="folder of scanned pages")
    parser.add_argument("--photos", type=Path, help="folder of photographs")
    parser.add_argument("--drawn", type=int, default=100, help="drawn documents (100)")
    parser.add_argument("--textures", type=int, default=10, help="variants of each texture (10)")
    given = parser.parse_args()
    found: dict[str, list[str]] = defaultdict(list)
    spent = []

    def add(name: str, image: Image.Image) -> None:
        texture = TextureArray.from_image(image)
        for channel in ("edges", "saliency", "text"):  # an answer computes them anyway
            _ = texture[channel]
        start = time.perf_counter()
        found[name].append(void(texture))
        spent.append(1000 * (time.perf_counter() - start))

    for kind in TEXTURES:
        for variant in range(FIRST_VARIANT, FIRST_VARIANT + given.textures):
            add(f"texture: {kind}", draw_texture(kind, variant))
        for variant in range(FIRST_VARIANT, FIRST_VARIANT + max(2, given.textures // 3)):
            add("a word or a disc on a texture", with_mark(kind, variant))
    for seed in range(FIRST_SEED, FIRST_SEED + given.drawn):
        drawing = draw_any(seed)
        if drawing.image.std() > 2:  # some are blank pages
            add("drawn document", Image.fromarray(drawing.image))
    for name, folder in (("scan", given.scans), ("photograph", given.photos)):
        for number, path in enumerate(sorted(folder.glob("*.jpg")) if folder else ()):
            with Image.open(path) as image:
                add(name, image.convert("RGB"))
                if name == "photograph":
                    add("photograph with random phases", scramble(image, number))
    print(
        "| pictures | number | called void | of these: "
        + ", ".join(("flat", "soft", "even", "alike"))
        + " |\n|---|---|---|---|"
    )
    for name, kinds in found.items():
        by = ", ".join(str(kinds.count(kind)) for kind in ("flat", "soft", "even", "alike"))
        print(f"| {name} | {len(kinds)} | {sum(map(bool, kinds)) / len(kinds):.3f} | {by} |")
    print(f"\n{np.median(spent):.1f} ms a picture (median), on top of the channels that an answer computes anyway")


if __name__ == "__main__":
    main()
