"""`arr-coc fit-embeddings`, as typed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from arr_coc import Embeddings, Projection
from arr_coc.cli import main
from arr_coc.embedding import open_encoder, storage
from arr_coc.embedding.projection import TENSORS, TEXT_WEIGHT
from arr_coc.training.projection import fit as fitting
from arr_coc.training.projection import gather as gathering
from arr_coc.training.projection import report as fit_report
from arr_coc.training.projection.quality import QualityThresholds
from tests.cli.conftest import without_progress
from tests.embedding import tiny
from tests.embedding.fake import NAMES, Colours, make, photo

FAKE = "tests.embedding.fake:make"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    for number in range(45):
        photo(48, 64, seed=number).save(place / f"{number:03d}.png")
    return place


@pytest.fixture
def copied(pictures: Path, tmp_path: Path) -> Path:
    place = tmp_path / "copied"
    place.mkdir()
    for path in pictures.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


def fit(pictures: Path, out: Path, *more: str) -> int:
    return main(["fit-embeddings", str(pictures), "-o", str(out), "--encoder", FAKE, *more])


def test_a_projection_and_a_report(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "e.safetensors"
    assert fit(pictures, out) == 0
    said = capsys.readouterr()
    made = Projection.load(out)
    assert (made.dims, made.width, made.encoder) == (16, 40, "colours-0")
    assert made.pictures == 41  # one in ten is held out
    assert made.cells == 41 * 64
    assert made.quality["survival"] > 0.9
    assert "| 16 |" in said.out
    assert "40 dimensions to 16" in said.out
    report = tmp_path / "e_report"
    page = (report / "report.md").read_text()
    assert "good enough" in page
    assert "![Variance by component](variance.png)" in page
    numbers = json.loads((report / "report.json").read_text())
    assert numbers["tried"][-1]["pictures"] == 4
    assert len(numbers["component_shares"]) == 16
    with Image.open(report / "variance.png") as drawn:
        assert drawn.width > 800
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.safetensors", "e_report"]
    scores = Embeddings(Colours(), out).scores(photo(seed=99), ["Where is it red?"])
    assert scores.shape == (1, 64)


def test_json(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        fit(pictures, tmp_path / "e.safetensors", "--json", "--report", str(tmp_path / "r"), "--dims", "8", "--exactly")
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert (said["dims"], said["pictures"], said["unreadable"]) == (8, 41, [])
    assert said["report"] == str(tmp_path / "r")
    assert {"variance", "error", "overlap", "survival", "kept", "found", "largest", "missed"} <= said["tried"][0].keys()


def test_own_questions_and_sampled_cells(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, asked = tmp_path / "e.safetensors", tmp_path / "q.txt"
    asked.write_text("\n".join(f"{a} or {b}?" for a in ("red", "blue", "pink") for b in NAMES))
    more = ["--sample", "20", "--text-weight", "0.9", "--mode", "native", "--exactly", "--questions", str(asked)]
    assert fit(pictures, out, *more) == 0
    made = Projection.load(out)
    assert (made.questions, made.text_weight, made.mode) == (15, 0.9, "native")
    assert made.cells == 41 * 12  # there are 3 x 4 of each picture
    asked.write_text("red?\nblue?\n")
    capsys.readouterr()
    assert fit(pictures, out, *more) == 0
    assert "1 questions are too few to use in the fit" in capsys.readouterr().err
    assert Projection.load(out).questions == 0


def test_the_step_up_is_reported(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = fitting.fit_images

    def demanding(*args: Any, **options: Any) -> Any:
        return real(*args, thresholds=QualityThresholds(variance=0.999), **options)

    monkeypatch.setattr(fitting, "fit_images", demanding)
    assert fit(pictures, tmp_path / "e.safetensors", "--dims", "4") == 0
    said = capsys.readouterr()
    assert "note: stepped up from 4 to 32 dimensions, because variance 0." in said.err
    assert "first 16 of 32" in said.err
    assert Projection.load(tmp_path / "e.safetensors").dims == 32
    assert "stepped up" in (tmp_path / "e_report" / "report.md").read_text()
    assert fit(pictures, tmp_path / "f.safetensors", "--dims", "4", "--exactly") == 0
    said = capsys.readouterr()
    assert "4 dimensions are not good enough: variance" in said.err
    assert Projection.load(tmp_path / "f.safetensors").dims == 4
    assert "**not good enough**" in (tmp_path / "f_report" / "report.md").read_text()


def test_no_step_up_with_too_few_pictures(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = [str(path) for path in sorted(pictures.iterdir())[:20]]
    real = fitting.fit_images
    monkeypatch.setattr(
        fitting,
        "fit_images",
        lambda *args, **options: real(*args, thresholds=QualityThresholds(variance=1.1), **options),
    )
    assert main(["fit-embeddings", *some, "-o", str(tmp_path / "e.safetensors"), "--encoder", FAKE]) == 0
    said = capsys.readouterr().err
    assert "no step up to 32 dimensions: 18 pictures are too few to fit 32" in said


def test_unreadable_files_are_counted_listed_and_skipped(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied / "003.png").write_bytes(b"broken")
    (copied / "005.png").write_bytes((copied / "005.png").read_bytes()[:100])  # held out, to judge
    (copied / "list.txt").write_text("no picture")
    assert fit(copied, tmp_path / "e.safetensors") == 1
    said = capsys.readouterr().err
    assert said.count("left out:") == 2
    assert "003.png" in said
    numbers = json.loads((tmp_path / "e_report" / "report.json").read_text())
    assert [Path(one["file"]).name for one in numbers["unreadable"]] == ["003.png", "005.png"]
    assert numbers["pictures"] == 40
    assert "2 files could not be read" in (tmp_path / "e_report" / "report.md").read_text()


def test_unreadable_held_out_pictures_do_not_end_the_run(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, held, _ = fitting.split_images(gathering.find_images([copied]), 16)
    for path in held:
        path.write_bytes(b"broken")
    assert fit(copied, tmp_path / "e.safetensors") == 1
    said = capsys.readouterr().err
    assert "none of the 4 pictures held out could be read: the fit is judged on its own pictures" in said
    assert said.count("left out:") == 4
    assert Projection.load(tmp_path / "e.safetensors").quality["pictures"] == 41


def test_many_unreadable_files_are_not_all_printed(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(30):
        (copied / f"x{number:02d}.png").write_bytes(b"broken")
    assert fit(copied, tmp_path / "e.safetensors") == 1
    said = capsys.readouterr().err
    assert said.count("left out:") == 11
    assert "20 more files" in said
    assert "and 10 more" in (tmp_path / "e_report" / "report.md").read_text()


def test_a_run_interrupted_in_validation_encodes_nothing_again(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopping(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "compare_projections", stopping)
        assert fit(pictures, tmp_path / "e.safetensors") == 130
    assert "the same command resumes" in capsys.readouterr().err
    assert fit(pictures, tmp_path / "e.safetensors") == 0
    assert "resumed an interrupted run (41 pictures were done)" in capsys.readouterr().err


@pytest.mark.filterwarnings("always")
def test_a_full_disk_is_reported_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gathering, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(
        gathering, "storage", SimpleNamespace(write=full, read=storage.read, DamagedFileError=storage.DamagedFileError)
    )
    assert fit(pictures, tmp_path / "e.safetensors") == 0
    said = capsys.readouterr().err
    assert said.count("cannot be kept") == 1
    assert said.startswith("arr-coc: note: what is done cannot be kept")


def fit_slowly(pictures: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arr_coc.cli", "fit-embeddings", str(pictures), "-o", str(out), "--workers", "2"]
    return subprocess.Popen(
        [*command, "--encoder", "tests.embedding.fake:slow"], stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"SLOW_READY": str(out.with_name("ready"))},
        # Tests that are run in a shell's background do not hear ctrl-C, and neither would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.01)


def test_ctrl_c_in_a_shell(pictures: Path, tmp_path: Path) -> None:
    """A real signal to the command and its worker processes: one sentence, and what is done is kept."""
    out = tmp_path / "e.safetensors"
    running = fit_slowly(pictures, out)
    wait_for((tmp_path / "ready").exists, running)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert without_progress(said).count("\n") == 1, said
    assert "the same command resumes" in said
    assert (tmp_path / "e.safetensors.part").is_file()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="worker processes are watched through /proc")
def test_a_starting_worker_does_not_receive_ctrl_c(pictures: Path, tmp_path: Path) -> None:
    running = fit_slowly(pictures, tmp_path / "e.safetensors")
    wait_for(lambda: bool(importing_workers(running.pid)), running)
    for worker in importing_workers(running.pid):
        os.kill(worker, signal.SIGINT)
    wait_for((tmp_path / "ready").exists, running)
    os.kill(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert without_progress(said).count("\n") == 1, said


def importing_workers(process: int) -> list[int]:
    """Worker processes in which Python runs and would answer an interrupt with a traceback."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            state = Path(f"/proc/{child}/status").read_text()
            caught = int(state.split("SigCgt:")[1].split()[0], 16)
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() and caught >> (signal.SIGINT - 1) & 1:
                found.append(int(child))
    return found


def test_fewer_readable_pictures_than_dimensions(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(35):
        (copied / f"{number:03d}.png").write_bytes(b"broken")
    assert fit(copied, tmp_path / "e.safetensors") == 2
    said = capsys.readouterr().err
    assert "9 pictures (32 could not be read) are too few to fit 16 dimensions" in said
    assert without_progress(said).count("\n") == 1


def test_identical_pictures_cannot_be_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for number in range(20):
        Image.new("RGB", (40, 40), (90, 20, 10)).save(tmp_path / "in" / f"{number}.png")
    assert fit(tmp_path / "in", tmp_path / "e.safetensors") == 2
    assert "vary in 0 directions only" in capsys.readouterr().err


def test_without_matplotlib_the_report_says_so(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert fit(pictures, tmp_path / "e.safetensors") == 0
    assert "note: the variance was not drawn: plots need matplotlib" in capsys.readouterr().err
    page = (tmp_path / "e_report" / "report.md").read_text()
    assert "was not drawn" in page
    assert "variance.png" not in page


def test_the_plot_shows_what_was_fitted(pictures: Path) -> None:
    fitted = fitting.fit_images(gathering.find_images([pictures]), make)
    figure = fit_report.plot_variance(fitted)
    left, right = figure.axes
    assert len(left.patches) == 16
    line = next(line for line in right.lines if line.get_label() == "this projection")
    torch.testing.assert_close(
        torch.tensor(line.get_ydata()), fitted.projection.variance.cumsum(0), check_dtype=False, atol=1e-6, rtol=0
    )


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["fit-embeddings", "--help"])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert f"0 to 1 ({TEXT_WEIGHT:g})" in said
    for words in ("examples:", "open_clip:FOLDER", "vlm:NAME", "--workers", "--fresh", "exit code is 1", "held out"):
        assert words in said


def test_worker_processes_open_a_checkpoint_and_give_the_same_projection(tmp_path: Path) -> None:
    pictures, folder = tmp_path / "pictures", tmp_path / "clip"
    pictures.mkdir()
    for number in range(24):
        photo(30, 40, seed=number).save(pictures / f"{number:02d}.png")
    tiny.checkpoint("clip", folder)
    found = []
    for workers in ("1", "2"):
        out = tmp_path / f"{workers}.safetensors"
        command = ["fit-embeddings", str(pictures), "-o", str(out), "--encoder", str(folder), "--workers", workers]
        assert main(command) == 0
        found.append(Projection.load(out))
    for name in TENSORS:
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name), atol=1e-6, rtol=1e-6)
    embeddings = Embeddings(open_encoder(folder), out)
    assert embeddings.scores(photo(seed=90), ["a", "b"], grid=(3, 3)).shape == (2, 9)


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_other_checkpoints_are_fitted(kind: str, pictures: Path, tmp_path: Path) -> None:
    folder, out = tiny.checkpoint(kind, tmp_path / kind), tmp_path / "e.safetensors"
    assert main(["fit-embeddings", str(pictures), "-o", str(out), "--encoder", str(folder), "--dims", "8"]) == 0
    assert Embeddings(open_encoder(folder), out).scores(photo(seed=90), ["a", "b"], grid=(3, 3)).shape == (2, 9)
