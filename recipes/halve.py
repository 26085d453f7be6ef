"""`python -m recipes.halve FOLDER`: store the weights of a layer in half precision, as the layers that ship are stored.

A layer is read in float32 in any case. Statistics of the training images (buffers) stay as they are: they do not fit into half
precision.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from arr_coc.errors import ArrCocError
from arr_coc.layer.model import WEIGHTS, ArrCocLayer, find_layer


def save_half(layer: ArrCocLayer, folder: Path) -> None:
    """Write the layer with its parameters, and only those, in half precision. Rounds the given layer's own parameters, too."""
    for parameter in layer.parameters():
        parameter.data = parameter.data.half()
    layer.save_pretrained(folder)
    layer.float()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.halve", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of a layer, or of a model that has one")
    given = parser.parse_args(arguments)
    place = find_layer(given.folder)
    if place is None:
        parser.error(f"expected the folder of a layer, or of a model that has one, got {str(given.folder)!r}")
    before = (place / WEIGHTS).stat().st_size
    try:
        save_half(ArrCocLayer.from_pretrained(place), place)
    except ArrCocError as error:
        parser.error(str(error))
    after = (place / WEIGHTS).stat().st_size
    print(f"{place / WEIGHTS}: {before / 1e6:.2f} MB before, {after / 1e6:.2f} MB now")


if __name__ == "__main__":
    main()
