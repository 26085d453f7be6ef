"""Shared by the subcommands: options, checks before the work starts, progress on stderr, results on stdout."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError
from arr_coc.files import check_not_read, replacing

if TYPE_CHECKING:
    from PIL import Image

    from arr_coc.cli.progress import ProgressReport
    from arr_coc.ray.workers import Workers
    from arr_coc.vlm.model import VLM

MAX_LINES = 20  # problems that are printed one by one


def add_question(parser: argparse.ArgumentParser, model: str = "model folder or hub id") -> None:
    """An image, a question about it, and the model that is asked."""
    parser.add_argument("image", metavar="IMAGE", help="an image file")
    parser.add_argument("question", metavar="QUESTION", help="a question in quotes")
    parser.add_argument("--model", default="reader", metavar="FOLDER", help=f"{model} (the bundled reader)")


def add_gaze(parser: Any) -> None:
    """Where a person looks."""
    about = "where a person looks, in pixels of the picture: more of the budget goes there; may be repeated"
    parser.add_argument("--gaze", action="append", metavar="X,Y", help=about)


def read_gaze(
    given: Sequence[str] | None, size: tuple[int, int] | None = None
) -> tuple[tuple[float, float], ...] | None:
    """The points of --gaze, checked against a picture's (width, height) where it is known."""
    if given is None:
        return None
    from arr_coc.types.gaze import check_gaze

    points = []
    for text in given:
        try:
            x, y = (float(part) for part in text.split(","))
        except ValueError:
            raise ArrCocError(f"expected --gaze as X,Y in pixels, such as 120,80, got {text!r}") from None
        points.append((x, y))
    return check_gaze(points, size)


def add_model_options(parser: Any) -> None:
    """The options that every command with a model has, for a parser or one of its groups."""
    add = parser.add_argument
    add("--embeddings", metavar="NAME", help="image-text encoder for selectors that need one, such as labels (none)")
    add(
        "--layer",
        default="auto",
        metavar="DIR",
        help="layer from arr-coc train, its hub id, universal, or none (the model's own, else universal)",
    )
    add("--device", default="cpu", help="cpu or cuda (cpu)")


def check_request(arguments: argparse.Namespace) -> None:
    """Check the question, the budgets, the device and the image before a model is loaded."""
    from arr_coc.types.question import check_question

    check_question(arguments.question)
    from arr_coc.devices import check_device
    from arr_coc.types.budget import limit
    from arr_coc.types.image import read_picture

    for what in ("budget", "glance"):
        limit(getattr(arguments, what, "all"), 1000, what)
    check_device(arguments.device)
    picture = read_picture(arguments.image)
    height, width = picture.original_size
    arguments.gaze = read_gaze(arguments.gaze, (width, height))


def load_model(arguments: argparse.Namespace) -> VLM:
    """Load the model that the options name, on their device, without the library's own progress bars."""
    import arr_coc
    from arr_coc.adapters.loading import keep_quiet

    keep_quiet()
    layer = None if arguments.layer == "none" else arguments.layer
    vlm = arr_coc.load(arguments.model, embeddings=arguments.embeddings, layer=layer)
    vlm.model.to(arguments.device)
    gc.enable()
    return vlm


def start_fast() -> None:
    """Pause garbage collection until the model is loaded: imports make many objects that stay, and it would visit them all.

    That is a sixth of the time to the first answer. `main` switches it on again in any case.
    """
    gc.disable()


def ray_workers(arguments: argparse.Namespace) -> Workers | None:
    """The worker processes that --ray asks for; raises where ray is not installed."""
    if arguments.ray is None:
        return None
    from arr_coc.ray.workers import Workers, import_ray

    if arguments.ray < 1:
        raise ArrCocError(f"expected --ray of at least 1 worker, got {arguments.ray}")
    import_ray()
    return Workers(arguments.ray, gpus=1.0 if arguments.device.startswith("cuda") else 0.0)


def check_file(path: Path, example: str = "out.json", inputs: Iterable[str | Path] = ()) -> Path:
    """Check that `path` is a file name in an existing folder, and none of the files that are read."""
    if path.is_dir():
        raise ArrCocError(f"{str(path)!r} is a folder, expected a file name such as {str(path / example)!r}")
    if not path.parent.exists():
        raise ArrCocError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    check_not_read(path, inputs)
    return path


def check_folder(folder: Path) -> None:
    """Check that files can be written into a folder, which need not exist yet."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ArrCocError(f"{str(existing)!r} is a file, expected a folder to write into")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ArrCocError(f"cannot write into {str(existing)!r}: {error.strerror or error}") from None


def check_image_file(path: Path, inputs: Iterable[str | Path] = ()) -> Path:
    """Check that an image can be written to `path`, which is none of the files that are read."""
    from PIL import Image

    check_file(path, "sheet.png", inputs)
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:  # some formats are read-only
        raise ArrCocError(f"cannot write {path.name!r} in a format of that ending: use .png or .jpg")
    return path


def save_image(image: Image.Image, path: Path) -> None:
    from PIL import Image as images

    kind = images.registered_extensions()[path.suffix.lower()]  # the temporary name has another ending
    _write(path, lambda target: image.save(target, kind))


def save_text(text: str, path: Path) -> None:
    _write(path, lambda target: target.write_text(text, encoding="utf-8"))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        with replacing(path) as temporary:
            write(temporary)
    except (OSError, ValueError) as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def progress(shown: bool = True) -> ProgressReport:
    """Progress on stderr; see `ProgressReport`."""
    from arr_coc.cli.progress import ProgressReport

    return ProgressReport(shown)


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def print_problems(lines: Sequence[str], what: str = "", rest: str = "") -> None:
    """Print problems with the data to stderr: the first ones, and how many more there are. `rest` says where those are."""
    prefix = f"arr-coc: {what}: " if what else "arr-coc: "
    for line in lines[:MAX_LINES]:
        print(prefix + line, file=sys.stderr)
    if len(lines) > MAX_LINES:
        print(f"{prefix}{len(lines) - MAX_LINES} more like these{rest}", file=sys.stderr)


def use_one_thread() -> None:
    """Run torch on one thread: channels are many small operations, and on a busy machine each waits for the slowest thread."""
    import torch

    torch.set_num_threads(1)
