"""Files: which may be read, and writing that replaces a file at once.

- Only regular files of a limited size are read. A device or a named pipe might never end.
- A file is written under a temporary name in its folder and then renamed, so that it is complete or as it was before.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from arr_coc.errors import ArrCocError

MAX_BYTES = 1 << 30  # of a file that is read as a whole
TEMPORARY = ".new-"  # follows the file's name while it is being written
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_readable(
    name: str | os.PathLike[str], what: str = "a file", kind: type[ArrCocError] = ArrCocError, limit: int = MAX_BYTES
) -> Path:
    """Check that a name is a regular, non-empty file of at most `limit` bytes. `what` names the expected file in errors."""
    path = Path(name)
    if not os.fspath(name):
        raise kind(f"expected the name of {what}, got an empty string")
    try:
        found = path.stat()
    except FileNotFoundError:
        raise kind(f"there is no file {str(path)!r}") from None
    except (OSError, ValueError) as error:  # a name with a NUL in it is a ValueError
        raise kind(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(found.st_mode):
        raise kind(f"{str(path)!r} is a folder, expected {what}")
    if not stat.S_ISREG(found.st_mode):
        other = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise kind(f"expected {what}, got {str(path)!r}, which is {other}: only regular files are read")
    if found.st_size > limit:
        size, most = found.st_size / 1e6, limit / 1e6
        raise kind(f"expected {what} of at most {most:.0f} MB, got {str(path)!r} with {size:.0f} MB")
    if found.st_size == 0:
        raise kind(f"{str(path)!r} is empty (0 bytes)")
    return path


def read_bytes(
    name: str | os.PathLike[str], what: str = "a file", kind: type[ArrCocError] = ArrCocError, limit: int = MAX_BYTES
) -> bytes:
    """The content of a file that `check_readable` accepts."""
    path = check_readable(name, what, kind, limit)
    try:
        return path.read_bytes()
    except OSError as error:
        raise kind(f"cannot read {str(path)!r}: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path, only_writer: bool = False) -> Iterator[Path]:
    """A temporary path next to `path`. It replaces `path` if the `with` ends without an error.

    `only_writer`: no other process writes this file, so that one name serves every time and a killed process leaves at most
    one temporary file.
    """
    temporary = path.with_name(f"{path.name}{TEMPORARY}") if only_writer else temporary_name(path)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def replacing_files(folder: Path, obsolete: str = "") -> Iterator[Path]:
    """A temporary folder next to `folder`. If the `with` ends without an error, `folder` gets its files.

    A new folder appears at once. In one that has files already, each file is replaced at once, one after the other; those that
    match the pattern `obsolete` and were not written are removed.
    """
    folder = folder.resolve()
    temporary = temporary_name(folder)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        try:
            temporary.rename(folder)  # also onto an empty folder
        except OSError:
            written = sorted(path.relative_to(temporary) for path in temporary.rglob("*") if path.is_file())
            for name in written:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).replace(folder / name)
            for path in folder.glob(obsolete) if obsolete else ():
                if path.relative_to(folder) not in written:
                    path.unlink()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """A name next to `path` that no other process uses."""
    return path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")


def check_not_read(output: Path, inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise where writing `output` would overwrite one of the files that are read."""
    for name in inputs:
        try:
            same = output.samefile(name)
        except (OSError, ValueError):  # one of the two does not exist
            continue
        if same:
            raise ArrCocError(f"expected another file than {str(output)!r} to write, which is read as input")
