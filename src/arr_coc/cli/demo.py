"""`arr-coc demo`: the bundled receipt and scene, their channel sheets, and what building them costs here."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from arr_coc import pictures
from arr_coc.cli.output import progress, save_image, work_steadily
from arr_coc.errors import ArrCocError
from arr_coc.texture import TextureArray


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="channel sheets and timings of the bundled pictures",
        description="Draw the bundled receipt and street scene, write their channel sheets, and print what each step cost.",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("out"), metavar="FOLDER", help="where to write (out)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArrCocError(f"cannot make the folder {str(folder)!r}: {error.strerror}") from None
    work_steadily()
    lines = []
    with progress() as bar:
        drawings = {"receipt": pictures.receipt, "scene": pictures.scene}
        task = bar.add_task("pictures", total=len(drawings))
        for name, draw in drawings.items():
            image = draw()
            save_image(image, folder / f"{name}.png")
            build, cheap, question = _time(image)
            save_image(
                TextureArray.from_image(image).sheet(title=f"The bundled {name}"), folder / f"{name}_channels.png"
            )
            lines.append(
                f"{name}: {image.width}x{image.height} pixels, all channels {build:.0f} ms, "
                f"five cheap ones {cheap:.0f} ms, a 44x20 grid of all {question:.0f} ms"
            )
            bar.advance(task)
    print("\n".join(lines))
    print("(best of five on one thread; arr-coc bench texture compares with scikit-image)")
    print(f"Look at {folder / 'receipt_channels.png'} and {folder / 'scene_channels.png'}")
    return 0


def _time(image: Any) -> tuple[float, float, float]:
    """Milliseconds of the best of five: all channels, five cheap ones, and pooling all onto a token grid."""
    builds, cheaps, grids = [], [], []
    for _ in range(5):
        start = time.perf_counter()
        texture = TextureArray.from_image(image)
        for name in texture.names:
            texture[name]
        built = time.perf_counter()
        texture.grid(44, 20)
        pooled = time.perf_counter()
        few = TextureArray.from_image(image)
        for name in ("edges", "edges_inverted", "highpass", "lowpass", "eccentricity"):
            few[name]
        builds.append(built - start)
        grids.append(pooled - built)
        cheaps.append(time.perf_counter() - pooled)
    return min(builds) * 1e3, min(cheaps) * 1e3, min(grids) * 1e3
