"""What the subcommands share in speaking: files that can be written, progress on stderr, JSON on stdout."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from arr_coc.errors import ArrCocError


def check_file(path: Path, example: str = "out.json") -> Path:
    """Complain before the work, not after it."""
    if path.is_dir():
        raise ArrCocError(f"{str(path)!r} is a folder, expected a file name such as {str(path / example)!r}")
    if not path.parent.exists():
        raise ArrCocError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into")
    return path


def check_place(folder: Path) -> None:
    """Complain before the work if no file can be written into the folder, or the folder cannot be made."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ArrCocError(f"{str(there)!r} is a file, expected a folder to write into")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ArrCocError(f"cannot write into {str(there)!r}: {error.strerror or error}") from None


def check_writable(path: Path) -> Path:
    """A file that an image can be written to."""
    check_file(path, "sheet.png")
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:  # some formats can only be read
        raise ArrCocError(f"cannot write {path.name!r} in a format of that ending; use .png or .jpg")
    return path


def save_image(image: Image.Image, path: Path) -> None:
    try:
        image.save(path)
    except (OSError, ValueError) as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def save_text(text: str, path: Path) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArrCocError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def progress(shown: bool = True) -> Progress:
    """A progress bar on stderr that leaves nothing behind; silent where stderr is not a terminal.

    Lines that are printed meanwhile appear above it, or in the file that stdout is sent to.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not (shown and console.is_terminal),
    )


def print_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def work_steadily() -> None:
    """Use one torch thread: channels are many small steps, and on a busy machine every step waits for the last thread."""
    torch.set_num_threads(1)
