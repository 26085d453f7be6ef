"""Pictures to begin with: those that ship, and those of a folder of questions, with what is known about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from arr_coc.draw import samples as pictures
from arr_coc.errors import ArrCocError
from arr_coc.evaluation.data import Evidence, Sample, read_samples

MOST = 200  # pictures of a folder


@dataclass(frozen=True)
class Example:
    """A picture by name, how to get it, in Python too, and its questions."""

    name: str
    load: Callable[[], Image.Image] = field(repr=False)
    code: str  # a Python expression that is this picture
    samples: tuple[Sample, ...]

    def evidence(self, question: str) -> Evidence:
        """Where the answer to one of its questions stands; empty where nobody knows."""
        return next((one.evidence for one in self.samples if one.question == question), ())


def bundled() -> dict[str, Example]:
    """The pictures that ship, by name."""
    total = ((422.0, 732.0, 522.0, 772.0),)  # the amount in the line that says TOTAL
    receipt = (
        Sample("What is the total amount?", ("37.40",), evidence=(total,)),
        Sample("What is the date?", ("12/03/2026",)),
        Sample("What is the name of the company?", ("HARBOUR MILL BAKERY",)),
        Sample("How much is the Oat croissant?", ("3.45",)),
    )
    return {
        "receipt": Example("receipt", pictures.receipt, "arr_coc.pictures.receipt()", receipt),
        "scene": Example("scene", pictures.scene, "arr_coc.pictures.scene()", (Sample("What does the sign say?"),)),
    }


def of_folder(folder: Path) -> tuple[dict[str, Example], list[str]]:
    """The still pictures of a folder with `samples.jsonl`, and what could not be used."""
    data = read_samples(folder, MOST)
    found: dict[str, Example] = {}
    for picture in data.pictures:
        if picture.kind != "image" or not isinstance(picture.still, Path):
            continue
        path = picture.still.resolve()
        name = f"{data.name}/{picture.name}"
        found[name] = Example(name, lambda path=path: _opened(path), repr(str(path)), picture.samples)  # type: ignore[misc]
    if not found:
        raise ArrCocError(f"expected still pictures in {str(folder)!r}, found none")
    return found, [*data.problems, *data.notes]


def find(examples: Mapping[str, Example], name: str) -> Example:
    if name not in examples:
        raise ArrCocError(f"expected a picture among {', '.join(list(examples)[:12])}, got {name[:80]!r}")
    return examples[name]


def _opened(path: Path) -> Image.Image:
    from arr_coc.demo.limits import Limits
    from arr_coc.demo.uploads import read_upload

    everything = Limits(megabytes=1e6, megapixels=1e6)  # the host's own files are not limited as a visitor's are
    return read_upload(path, path.name, path.parent, everything).image
