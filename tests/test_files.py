"""Only regular files are read, and a written file is complete or as it was before."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from arr_coc.errors import ArrCocError, ImageError
from arr_coc.files import TEMPORARY, check_not_read, check_readable, read_bytes, replacing, replacing_files


def test_what_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    pipe, folder, empty = tmp_path / "pipe", tmp_path / "folder", tmp_path / "empty"
    os.mkfifo(pipe)
    folder.mkdir()
    empty.touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
    for name, sentence in {
        pipe: "which is a named pipe",
        tmp_path / "socket": "which is a socket",
        "/dev/zero": "which is a device",
        folder: "is a folder, expected a clip",
        empty: r"is empty \(0 bytes\)",
        tmp_path / "none": "there is no file",
        tmp_path / "loop": "cannot read",
        "a\0b": "cannot read",
        "": "got an empty string",
    }.items():
        with pytest.raises(ImageError, match=sentence):
            check_readable(name, "a clip", ImageError)


def test_a_size_limit_is_checked_before_reading(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(3_000_000_000)  # without content: it takes no space
    with pytest.raises(ArrCocError, match=r"a file of at most 1074 MB, got .* with 3000 MB"):
        read_bytes(large)
    large.write_bytes(b"abc")
    assert read_bytes(large, limit=3) == b"abc"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "why.png"
    path.write_text("old")

    def fail(only_writer: bool) -> None:
        with replacing(path, only_writer) as temporary:
            temporary.write_text("half")
            raise OSError("the disk is full")

    for only_writer in (False, True):
        with pytest.raises(OSError, match="full"):
            fail(only_writer)
        assert (path.read_text(), [one.name for one in tmp_path.iterdir()]) == ("old", ["why.png"])
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert TEMPORARY in temporary.name
    assert path.read_text() == "new"


@pytest.mark.parametrize("before", ["nothing", "empty", "files"])
def test_a_folder_gets_whole_files_only(before: str, tmp_path: Path) -> None:
    folder = tmp_path / "some" / "folder"
    if before != "nothing":
        folder.mkdir(parents=True)
    if before == "files":
        for name in ("a", "model-1.bin", "model-2.bin", "mine"):
            (folder / name).write_text("old")
    with pytest.raises(NotADirectoryError), replacing_files(folder, "model-*") as temporary:
        (temporary / "a").write_text("new") and (temporary / "a" / "b").write_text("new")
    assert not (folder / "a").exists() or (folder / "a").read_text() == "old"
    with replacing_files(folder, "model-*") as temporary:
        (temporary / "below").mkdir()
        for name in ("a", "model-1.bin", "below/b"):
            (temporary / name).write_text("new")
    found = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == {"a": "new", "model-1.bin": "new", "below/b": "new"} | (
        {"mine": "old"} if before == "files" else {}
    )
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    image, link = tmp_path / "x.png", tmp_path / "y.png"
    image.write_bytes(b"x")
    link.symlink_to(image)
    os.link(image, tmp_path / "z.png")
    for output in (image, link, tmp_path / "z.png", tmp_path / "." / "x.png"):
        with pytest.raises(ArrCocError, match="which is read as input"):
            check_not_read(output, ["nowhere.jpg", image])
    check_not_read(tmp_path / "new.png", [image])
    check_not_read(image, ["camera:0", "", "a\0b"])
