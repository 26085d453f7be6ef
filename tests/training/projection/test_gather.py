"""The moments of a folder: the same for any number of processes and after an interrupt, in constant memory."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.embedding.encoder import DenseFeatures, Encoder, Mode
from arr_coc.embedding.projection import Moments
from arr_coc.errors import ArrCocError, DataError
from arr_coc.training.projection import gather as gathering
from arr_coc.training.projection.gather import BLOCK, CellSampling, GatheredMoments, find_images, gather_moments
from arr_coc.types.image import ImageLike
from tests.embedding.fake import Colours, dying, make, photo, stamped

ENDINGS = (".png", ".jpg", ".bmp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pictures")
    (place / "more").mkdir()
    for number in range(27):
        inside = place / "more" if number % 5 == 0 else place
        photo(40 + number, 64, seed=number).save(inside / f"{number:03d}{ENDINGS[number % 3]}")
    return place


def test_pictures_are_found_once_and_in_order(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("not a picture, and not looked at")
    found = find_images([folder])
    assert len(found) == 27
    assert found == sorted(found, key=str)
    assert find_images([folder, folder / "more", found[0]]) == found
    (folder / "page.pdf").write_text("a format that is only written")
    assert find_images([folder]) == found
    odd = tmp_path / "picture"  # named explicitly, it counts with any suffix
    odd.write_bytes(found[0].read_bytes())
    assert find_images([odd]) == [odd]
    with pytest.raises(DataError, match="no file or folder '/no/such'"):
        find_images(["/no/such"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found none"):
        find_images([tmp_path / "empty"])


def test_moments_equal_those_of_all_cells(folder: Path) -> None:
    images, encoder = find_images([folder]), Colours()
    total, resumed = gather_moments(images, encoder)
    rows = torch.cat([encoder.dense(image).features.flatten(1).T for image in images])
    direct = Moments.of(rows)
    assert (total.pictures, total.features.count, resumed) == (27, 27 * 64, 0)
    torch.testing.assert_close(total.features.scatter, direct.scatter, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(total.features.mean, direct.mean, rtol=1e-12, atol=1e-12)


def test_workers_run_in_parallel_and_give_the_same_sums(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAMPS", str(tmp_path))
    images = find_images([folder])
    alone, _ = gather_moments(images, Colours())
    together, _ = gather_moments(images, Colours(), workers=2, make=stamped)
    assert together.pictures == 27
    stamps = sorted(tuple(map(int, path.name.split("-"))) for path in tmp_path.iterdir())
    assert len(stamps) == 27
    first, second = sorted({process for process, _, _ in stamps})
    meanwhile = [
        (a, b) for p, *a in stamps for q, *b in stamps if p == first and q == second and a[0] < b[1] and b[0] < a[1]
    ]
    assert len(meanwhile) > 3, "the two processes took turns"
    torch.testing.assert_close(together.features.scatter, alone.features.scatter, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(together.features.mean, alone.features.mean, rtol=1e-6, atol=1e-9)
    with pytest.raises(ArrCocError, match="make="):
        gather_moments(images, Colours(), workers=2)


def test_an_interrupted_run_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    images, state = find_images([folder]), tmp_path / "run.part"
    whole, _ = gather_moments(images, Colours())

    def stop(done: int, total: int) -> None:
        if done >= 2 * BLOCK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather_moments(images, Colours(), state=state, progress=stop)
    again = Colours()
    seen: list[tuple[int, int]] = []
    total, resumed = gather_moments(images, again, state=state, progress=lambda *now: seen.append(now))
    assert resumed == 2 * BLOCK
    assert again.pictures == 27 - 2 * BLOCK
    assert seen[0] == (2 * BLOCK, 27)
    assert seen[-1] == (27, 27)
    assert torch.equal(total.features.scatter, whole.features.scatter)
    assert torch.equal(total.features.mean, whole.features.mean)
    assert total.pictures == 27


def interrupted(images: list[Path], state: Path, rules: CellSampling = CellSampling()) -> None:  # noqa: B008
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather_moments(images, Colours(), rules, state=state, progress=stop)


def test_the_state_of_another_run_is_ignored(folder: Path, tmp_path: Path) -> None:
    images, state = find_images([folder]), tmp_path / "run.part"
    interrupted(images, state)
    left = state.read_bytes()

    def resumed(*run: Any, **options: Any) -> int:
        state.write_bytes(left)
        return gather_moments(*run, state=state, **options)[1]

    assert resumed(images, Colours()) == BLOCK
    assert resumed(images, Colours(), fresh=True) == 0
    assert resumed(images, Colours(seed=3)) == 0
    assert resumed(images, Colours(), CellSampling(sample=5)) == 0
    assert resumed(images[1:], Colours()) == 0
    left = left[:-4]
    assert resumed(images, Colours()) == 0


def test_a_changed_picture_starts_another_run(folder: Path, tmp_path: Path) -> None:
    images, state = find_images([folder]), tmp_path / "run.part"
    interrupted(images, state)
    photo(50, 64, seed=99).save(images[-1])
    assert gather_moments(images, Colours(), state=state)[1] == 0


def test_a_state_that_cannot_be_written_warns(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SAVE_EVERY", 0.0)
    with pytest.warns(UserWarning, match="cannot be kept"):
        total, _ = gather_moments(find_images([folder]), Colours(), state=tmp_path / "nowhere" / "run.part")
    assert total.pictures == 27


def test_sampled_cells_are_the_same_every_time(folder: Path) -> None:
    images = find_images([folder])
    some = [gather_moments(images, Colours(), CellSampling(sample=9, seed=seed))[0] for seed in (0, 0, 1)]
    assert some[0].features.count == 27 * 9
    assert torch.equal(some[0].features.scatter, some[1].features.scatter)
    assert not torch.equal(some[0].features.scatter, some[2].features.scatter)
    torch.testing.assert_close(
        some[0].features.mean, gather_moments(images, Colours())[0].features.mean, atol=0.03, rtol=0
    )


def test_unreadable_files_are_named_and_skipped(tmp_path: Path) -> None:
    for number in range(12):
        photo(seed=number).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "03.png").write_bytes(b"")
    (tmp_path / "07.png").write_bytes((tmp_path / "07.png").read_bytes()[:200])
    (tmp_path / "08.jpg").write_text("no picture at all")
    total, _ = gather_moments(find_images([tmp_path]), Colours())
    assert total.pictures == 10
    assert [Path(file).name for file, _ in total.unreadable] == ["03.png", "07.png", "08.jpg"]
    assert "empty (0 bytes)" in total.unreadable[0][1]
    intact = [p for p in find_images([tmp_path]) if p.name not in ("03.png", "07.png", "08.jpg")]
    torch.testing.assert_close(total.features.scatter, gather_moments(intact, Colours())[0].features.scatter)


class Numbers(Encoder):
    """Features from the file's name alone, so that a hundred thousand pictures need no disk."""

    name = "numbers"
    width = 24

    @property
    def identity(self) -> str:
        return "numbers"

    def dense(self, image: ImageLike, mode: Mode = "fast") -> DenseFeatures:
        dice = torch.Generator().manual_seed(zlib.crc32(str(image).encode()))
        return DenseFeatures(torch.randn(24, 4, 4, generator=dice))

    def encode(self, pixels: torch.Tensor, mode: Mode) -> torch.Tensor:
        raise NotImplementedError

    def embed(self, questions: list[str]) -> torch.Tensor:
        raise NotImplementedError


def resident() -> float:
    """This process's memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_memory_does_not_grow_with_the_pictures(tmp_path: Path) -> None:
    """16,000 pictures of 16 cells: their features alone would take 25 MB, with the block's moments kept 60 MB more."""
    images = [Path(f"{number}.jpg") for number in range(16_000)]
    seen: list[float] = []

    def tick(done: int, total: int) -> None:
        if done % 2000 == 0:
            seen.append(resident())

    total, _ = gather_moments(images, Numbers(), state=tmp_path / "run.part", progress=tick)
    assert total.pictures == 16_000
    assert total.features.count == 256_000
    assert max(seen[2:]) - seen[1] < 8, seen


def test_a_worker_that_dies_is_one_sentence(folder: Path) -> None:
    with pytest.raises(ArrCocError, match=r"a worker process died.*fewer --workers"):
        gather_moments(find_images([folder]), Colours(), workers=2, make=dying)


def test_a_single_block_needs_no_workers(folder: Path) -> None:
    images = find_images([folder])[:3]
    assert torch.equal(
        gather_moments(images, Colours(), workers=4, make=make)[0].features.scatter,
        gather_moments(images, Colours())[0].features.scatter,
    )


def test_parts_add_up() -> None:
    a = GatheredMoments(Moments.of(torch.ones(2, 3)), 1, (("a", "why"),))
    b = GatheredMoments(Moments.of(torch.zeros(1, 3)), 2)
    both = a + b
    assert (both.pictures, both.features.count, both.unreadable) == (3, 3, (("a", "why"),))


def test_16_bit_and_tiny_pictures_are_read(tmp_path: Path) -> None:
    Image.fromarray(np.full((20, 30), 40_000, np.uint16)).save(tmp_path / "deep.png")
    Image.new("RGBA", (1, 1), (255, 0, 0, 0)).save(tmp_path / "one.png")
    total, _ = gather_moments(find_images([tmp_path]), Colours())
    assert (total.pictures, total.unreadable) == (2, ())
