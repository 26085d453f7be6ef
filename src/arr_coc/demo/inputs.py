"""What reaches the page from outside: uploaded images, example images, and folders of reports and layers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PIL import Image

from arr_coc.demo.limits import Limits
from arr_coc.draw import samples as bundled
from arr_coc.errors import ArrCocError, DataError, ImageError
from arr_coc.evaluation.data import Evidence, Sample, read_samples
from arr_coc.evaluation.export import NUMBERS, PAGE
from arr_coc.hosting import open_upload

MAX_EXAMPLES = 200  # images of a data folder
MAX_REPORTS, MAX_DEPTH = 50, 4  # reports that are listed, and folder levels that are searched for them


@dataclass(frozen=True, eq=False)
class Upload:
    """A user's image, upright and in RGB, and the name of its file."""

    name: str
    image: Image.Image


def read_upload(path: Path, name: str, folder: Path, limits: Limits) -> Upload:
    """Read an image from the upload folder. Its size is checked before any pixel is decoded."""
    shown = Path(name).name[:80] or "the file"
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ImageError(f"expected an uploaded file, got {shown!r} from another folder")
    try:
        size = path.stat().st_size
        check_file_size(shown, size, limits)
        if size == 0:
            raise ImageError(f"{shown!r} is empty (0 bytes)")
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"{shown!r} did not arrive ({error.strerror}): send it again") from None
    return Upload(shown, open_upload(data, repr(shown), limits.megapixels).decode())


def check_file_size(name: str, size: float, limits: Limits) -> None:
    if size > limits.megabytes * 1e6:
        raise ImageError(
            f"expected a file of at most {limits.megabytes:g} MB, got {name!r} with {size / 1e6:.1f} MB: "
            "send a smaller file"
        )


@dataclass(frozen=True)
class ExampleImage:
    """An image that the page offers, with its questions."""

    name: str
    load: Callable[[], Image.Image] = field(repr=False)
    code: str  # Python expression for this image
    samples: tuple[Sample, ...]

    def evidence(self, question: str) -> Evidence:
        """Boxes around the answer to one of its questions; empty where they are unknown."""
        return next((sample.evidence for sample in self.samples if sample.question == question), ())

    def answers(self, question: str) -> tuple[str, ...]:
        """The right answers to one of its questions; empty where they are unknown."""
        return next((sample.answers for sample in self.samples if sample.question == question), ())


def bundled_examples() -> dict[str, ExampleImage]:
    """The images that ship with the package, by name."""
    total = ((422.0, 732.0, 522.0, 772.0),)  # the amount in the line TOTAL
    receipt = (
        Sample("What is the total amount?", ("37.40",), evidence=(total,)),
        Sample("What is the date?", ("12/03/2026",)),
        Sample("What is the name of the company?", ("HARBOUR MILL BAKERY",)),
        Sample("How much is the Oat croissant?", ("3.45",)),
    )
    scene = (Sample("What does the sign say?"),)
    return {
        "receipt": ExampleImage("receipt", bundled.receipt, "arr_coc.pictures.receipt()", receipt),
        "scene": ExampleImage("scene", bundled.scene, "arr_coc.pictures.scene()", scene),
    }


def read_examples(folder: Path) -> tuple[dict[str, ExampleImage], list[str]]:
    """The still images of a folder with `samples.jsonl`, and the problems with its other lines."""
    data = read_samples(folder, MAX_EXAMPLES)
    examples: dict[str, ExampleImage] = {}
    for picture in data.pictures:
        if picture.kind != "image" or not isinstance(picture.still, Path):
            continue
        name = f"{data.name}/{picture.name}"
        # The code names the path as the host gave it: a relative one does not show the host's folders.
        code = repr(str(picture.still))
        examples[name] = ExampleImage(name, partial(_load_local, picture.still.resolve()), code, picture.samples)
    if not examples:
        raise ArrCocError(f"expected still images in {str(folder)!r}, found none")
    return examples, [*data.problems, *data.notes]


def _load_local(path: Path) -> Image.Image:
    unlimited = Limits(megabytes=1e6, megapixels=1e6)  # the limits are for uploads, not for the host's own files
    return read_upload(path, path.name, path.parent, unlimited).image


def resolve_folder(root: Path, name: str, what: str) -> Path:
    """A folder below the root by its name. Users can read nothing else of the host's disk."""
    expected = f"expected {what} below the folder that --files names"
    try:
        place = (root / name.strip()).resolve()
        exists = place.is_dir()
    except (OSError, ValueError, RuntimeError):  # name too long, NUL in it, or a loop of links
        raise DataError(f"{expected}, got {name[:80]!r}") from None
    if not place.is_relative_to(root.resolve()):
        raise DataError(f"{expected}, got {name[:80]!r} outside of it")
    if not exists:
        raise DataError(f"{expected}, and there is no folder {name[:80]!r}")
    return place


def find_reports(root: Path) -> list[str]:
    """Names of the folders below the root that hold a report of `arr-coc eval`."""
    found: list[str] = []
    top = root.resolve()
    for place, folders, files in os.walk(top):
        depth = len(Path(place).relative_to(top).parts)
        visible = sorted(name for name in folders if not name.startswith((".", "node_modules")))
        folders[:] = visible if depth < MAX_DEPTH else []
        if PAGE in files and NUMBERS in files:
            found.append(Path(place).relative_to(top).as_posix())
            if len(found) == MAX_REPORTS:
                break
    return found
