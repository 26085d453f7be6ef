"""An index of a folder: what is found, what is encoded again, and what a killed or second process does to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import arr_coc
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.projection import Moments, fit_projection
from arr_coc.errors import ArrCocError, DataError
from arr_coc.find import index as indexing
from arr_coc.find.index import CellEncoder, Index, best_boxes
from arr_coc.find.sheet import boxed, contact_sheet
from arr_coc.find.store import LOCK, locked
from tests.embedding.fake import COLOURS, NAMES, Colours

pytest.importorskip("lancedb", reason="the extra `find` is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # of lancedb and pyarrow
FAKE = "tests.embedding.fake:make"


def patch(path: Path, colour: str, ground: str = "gray", box: tuple[int, int, int, int] = (32, 0, 64, 24)) -> Path:
    """A picture of 64 x 48 px with a coloured box."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:] = (COLOURS[NAMES.index(ground)] * 255).byte().numpy()
    pixels[box[1] : box[3], box[0] : box[2]] = (COLOURS[NAMES.index(colour)] * 255).byte().numpy()
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for colour in ("red", "green", "blue", "yellow"):
        patch(tmp_path / "photos" / "inner" / f"{colour}'s.png", colour)
    return tmp_path / "photos"


@pytest.mark.parametrize("colour", ["red", "green", "blue", "yellow"])
def test_the_image_and_the_place_in_it_are_found(folder: Path, colour: str) -> None:
    index = Index(folder, encoder=Colours())
    assert len(index) == 0
    report = index.update()
    assert (report.images, report.added, len(index)) == (4, 4, 4)
    found = index.find(f"Where is the {colour} box?", 2)
    assert found[0].path.name == f"{colour}'s.png"
    assert len(found) == 2
    assert found[0].score > found[1].score
    assert found[0].size == (64, 48)
    assert found[0].boxes[0] == (32, 0, 64, 24)


def test_the_search_is_the_exact_best_cell(folder: Path) -> None:
    encoder = Colours()
    index = Index(folder, encoder=encoder)
    index.update()
    query = encoder.text(["something pink"])[0]
    expected = {
        path: float((encoder.dense(path).features.flatten(1).T @ query).max()) for path in folder.rglob("*.png")
    }
    found = index.find("something pink", 10)
    assert [one.path for one in found] == sorted(expected, key=lambda path: -expected[path])
    assert [one.score for one in found] == pytest.approx([expected[one.path] for one in found], abs=2e-3)


def test_only_what_is_new_or_changed_is_encoded_again(folder: Path) -> None:
    encoder = Colours()
    index = Index(folder, encoder=encoder)
    index.update()
    assert encoder.pictures == 4
    index.update()
    assert encoder.pictures == 4
    patch(folder / "inner" / "red's.png", "pink", box=(0, 0, 64, 40))
    patch(folder / "new.png", "cyan")
    (folder / "inner" / "blue's.png").unlink()
    report = index.update()
    assert (report.images, report.added, report.changed, report.removed) == (4, 1, 1, 1)
    assert encoder.pictures == 6
    assert index.find("pink")[0].path.name == "red's.png"
    assert "blue's.png" not in [one.path.name for one in index.find("blue")]


def test_bad_images_are_named_and_skipped(folder: Path) -> None:
    (folder / "bad.jpg").write_bytes(b"no image")
    (folder / "empty.png").touch()
    (folder / os.fsdecode(b"name\xff.png")).write_bytes((folder / "inner" / "red's.png").read_bytes())
    index = Index(folder, encoder=Colours())
    report = index.update()
    assert report.images == 4
    assert sorted(Path(file).name for file, _ in report.unreadable) == ["bad.jpg", "empty.png", "name\\udcff.png"]
    assert all(reason for _, reason in report.unreadable)
    patch(folder / "bad.jpg", "red")
    assert index.update().added == 1
    (folder / "bad.jpg").write_bytes(b"broken again")  # what is indexed describes another file
    assert index.update().images == 4


def test_an_index_is_reopened_by_the_name_of_its_encoder(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "index"
    assert Index(folder, encoder=FAKE, place=place).update().images == 4
    assert Index(folder, place=place).find("red")[0].path.name == "red's.png"
    folder = folder.rename(tmp_path / "moved")
    assert Index(folder, place=place).find("red")[0].path == folder / "inner" / "red's.png"


def test_compressed_vectors_rank_like_embeddings(folder: Path) -> None:
    encoder = Colours()
    cells = torch.cat([encoder.dense(path).features.flatten(1).T for path in sorted(folder.rglob("*.png"))])
    projection = fit_projection(Moments.of(cells), dims=4, encoder=encoder.identity)
    embeddings = Embeddings(encoder, projection)
    index = Index(folder, encoder=embeddings)
    index.update()
    for found in index.find("green", 4):
        assert found.score == pytest.approx(float(embeddings.scores(found.path, ["green"]).max()), abs=3e-3)


def test_another_encoder_is_refused_and_fresh_replaces_it(folder: Path) -> None:
    Index(folder, encoder=Colours()).update()
    other = Index(folder, encoder=Colours(seed=7))
    with pytest.raises(DataError, match="made with colours-0, got colours-7"):
        other.find("red")
    patch(folder / "new.png", "cyan")
    with pytest.raises(DataError, match="made with colours-0"):
        other.update()
    assert other.update(fresh=True).added == 5
    with pytest.raises(DataError, match="passed as an object"):
        Index(folder).find("red")
    assert Index(folder, encoder=FAKE).update(fresh=True).images == 5


def test_a_damaged_index_is_one_sentence_and_fresh_repairs_it(folder: Path) -> None:
    Index(folder, encoder=FAKE).update()
    for file in (folder / indexing.FOLDER).rglob("*.manifest"):
        file.write_bytes(b"damaged")
    with pytest.raises(DataError, match="make it again with --fresh"):
        Index(folder).find("red")
    assert Index(folder, encoder=FAKE).update(fresh=True).images == 4


@pytest.mark.parametrize(
    ("count", "query", "sentence"),
    [(0, "red", "from 1 to"), (2.5, "red", "from 1 to"), (10**9, "red", "from 1 to"), (3, "  ", "empty")],
)
def test_bad_queries(folder: Path, count: int, query: str, sentence: str) -> None:
    with pytest.raises(ArrCocError, match=sentence):
        Index(folder, encoder=Colours()).find(query, count)


def test_bad_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no index"):
        Index(folder).find("red")
    with pytest.raises(DataError, match="not a folder"):
        Index(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected pictures"):
        Index(tmp_path / "empty", encoder=Colours()).update()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="which is a file"):
        Index(folder, place=tmp_path / "file")


def test_a_second_writer_is_refused_and_readers_are_not(folder: Path) -> None:
    Index(folder, encoder=FAKE).update()
    with locked(folder / indexing.FOLDER):
        with pytest.raises(DataError, match="another process is writing"):
            Index(folder, encoder=FAKE).update()
        assert Index(folder).find("red")[0].path.name == "red's.png"
    assert (folder / indexing.FOLDER / LOCK).exists()
    Index(folder, encoder=FAKE).update()


def test_a_reader_sees_what_another_process_adds(folder: Path) -> None:
    reader = Index(folder, encoder=FAKE)
    Index(folder, encoder=FAKE).update()
    assert len(reader.find("cyan", 10)) == 4
    patch(folder / "cyan.png", "cyan")
    Index(folder, encoder=FAKE).update()
    assert reader.find("cyan", 10)[0].path.name == "cyan.png"


def test_an_interrupted_run_keeps_what_is_done(folder: Path) -> None:
    for number in range(20):
        patch(folder / f"{number}.png", "white")
    encoder = Colours()
    index = Index(folder, encoder=encoder)

    def interrupt(done: int, total: int) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.update(progress=interrupt)
    assert len(index) == 16
    assert index.update().added == 8
    assert encoder.pictures == 24


KILLED = """
import sys, time
from pathlib import Path
from arr_coc.find import index as indexing
from tests.embedding.fake import Colours

class Slow(Colours):
    def encode(self, pixels, mode):
        time.sleep(0.02)
        return super().encode(pixels, mode)

indexing.COMMIT_EVERY = 0.0
indexing.Index(sys.argv[1], encoder=Slow()).update(progress=lambda done, total: print(done, flush=True))
"""


def test_a_killed_process_leaves_a_whole_index(folder: Path) -> None:
    for number in range(60):
        patch(folder / f"{number}.png", "white")
    encoder = Colours()
    index = Index(folder, encoder=encoder)
    for after in (8, 16):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        before = len(index)
        while (line := process.stdout.readline()) and int(line) < after:
            pass
        time.sleep(0.03)  # in the middle of a commit, or of a block
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kept = len(Index(folder, encoder=Colours()))
        assert kept >= before + after - 8
        assert all(one.path.exists() for one in Index(folder, encoder=Colours()).find("white", 100))
    assert 0 < kept < 64
    assert index.update().images == 64
    assert encoder.pictures == 64 - kept
    names = [one.path for one in index.find("white", 100)]
    assert len(names) == len(set(names)) == 64


def test_workers_need_an_encoder_by_name(folder: Path) -> None:
    def here(make, run, tasks):  # type: ignore[no-untyped-def]
        state = make()
        return (run(state, task) for task in tasks)

    with pytest.raises(ArrCocError, match="as a name"):
        Index(folder, encoder=Colours()).update(workers=here)
    assert Index(folder, encoder=CellEncoder(FAKE)).update(workers=here).images == 4
    patch(folder / "new.png", "cyan")
    with pytest.raises(DataError, match="made with colours-0"):
        Index(folder, encoder="tests.embedding.fake:other").update(workers=here)
    assert Index(folder).update(workers=here).added == 1


def test_windows_need_a_projection(folder: Path) -> None:
    with pytest.raises(ArrCocError, match="expected the mode 'fast'"):
        Index(folder, encoder=CellEncoder(FAKE, mode="native")).update()


def test_boxes_are_parts_of_near_best_cells() -> None:
    scores = torch.zeros(4, 4)
    scores[0, 0], scores[0, 1], scores[3, 3] = 1.0, 0.8, 0.9
    assert best_boxes(scores, (40, 80)) == ((0, 0, 40, 10), (60, 30, 80, 40))
    assert best_boxes(torch.ones(3, 3), (30, 60)) == ((0, 0, 60, 30),)


def test_a_sheet_shows_the_images_with_their_boxes(folder: Path) -> None:
    index = Index(folder, encoder=Colours())
    index.update()
    found = index.find("red", 3)
    page = contact_sheet("red " * 100, [(one, one.image()) for one in found])
    assert page.size == (576, 664)  # two columns, two rows
    drawn = np.asarray(boxed(found[0], found[0].image(), 640)).astype(int)
    edge = drawn[2, 330]  # the red box begins in the middle of the upper edge
    assert abs(edge - (0xE5, 0x48, 0x4D)).max() < 8
    assert abs(np.asarray(found[0].heat()).astype(int) - np.asarray(found[0].image())).max() > 20


def test_index_is_a_public_name() -> None:
    assert arr_coc.Index is Index
