"""Measures the image novelty that the reader's layer assigns to images like its training data, and to others.

    python benchmarks/image_novelty.py SCANS PHOTOS

The arguments are folders of images. Above `arr_coc.relevance.coupling.IMAGE_UNFAMILIAR` the layer is not used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

from arr_coc import reader
from arr_coc.layer import ArrCocLayer
from arr_coc.layer.inference import texture_features
from arr_coc.layer.novelty import image_novelty, image_statistics
from arr_coc.relevance.coupling import IMAGE_UNFAMILIAR
from arr_coc.texture import TextureArray
from arr_coc.types.grid import Grid

CELL = 28  # pixels of the reader's cells


def measure_novelty(layer: ArrCocLayer, path: Path) -> float:
    texture = TextureArray.from_image(path)
    height, width = texture.original_size
    features = texture_features(
        [texture], Grid(1, max(1, round(height / CELL)), max(1, round(width / CELL))), layer.config
    )
    return float(image_novelty(image_statistics(features.channels, layer.config.channels), layer.usual, layer.unusual))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of images")
    layer = ArrCocLayer.from_pretrained(reader.WEIGHTS)
    for folder in parser.parse_args().folders:
        endings = Image.registered_extensions()
        values = torch.tensor(
            [measure_novelty(layer, path) for path in sorted(folder.iterdir()) if path.suffix in endings]
        )
        low, middle, high = torch.quantile(values, torch.tensor([0.05, 0.5, 0.95])).tolist()
        print(
            f"{folder.name}: {len(values)} pictures, median {middle:.2f}, 90% of them {low:.2f} to {high:.2f}; "
            f"{float((values > IMAGE_UNFAMILIAR).float().mean()):.2f} above {IMAGE_UNFAMILIAR}"
        )


if __name__ == "__main__":
    main()
