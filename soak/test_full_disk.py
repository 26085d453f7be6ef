"""A disk that fills up at every stage: one sentence and exit code 2, and with more space the result of a whole run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soak.conftest import COMMANDS, WholeRun, Workshop, write_figures
from tests.cli.conftest import without_progress

KILOBYTES = (4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192, 16384)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that makes or resizes a file system of so many kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted: list[Path] = []

    def mount(kilobytes: int) -> Path:
        options = f"size={kilobytes}k" + (",remount" if mounted else "")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a file system of a given size needs the right to mount one: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("kilobytes", KILOBYTES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_one_sentence_and_loses_nothing(
    name: str,
    kilobytes: int,
    workshop: Workshop,
    whole: Callable[[str], WholeRun],
    small_disk: Callable[[int], Path],
) -> None:
    expected = whole(name).result
    out = small_disk(kilobytes) / "out"
    code, said, _ = workshop.run(name, out)
    assert "Traceback" not in said
    assert code in (0, 2), said
    was_full, errors = code == 2, [""]
    if was_full:
        # Packages of the development set print lines of their own.
        own = [line for line in without_progress(said).splitlines() if line.startswith("arr-coc: ")]
        errors = [line for line in own if not line.startswith("arr-coc: note: ")]
        assert len(errors) == 1, said
        assert "cannot" in errors[0]
        small_disk(1 << 20)
        code, said, _ = workshop.run(name, out)
        assert code == 0, said
    assert COMMANDS[name].read_result(out) == expected
    write_figures(
        "full_disk", {"command": name, "kilobytes": kilobytes, "error": errors[0].replace(str(out.parent), "")}
    )
