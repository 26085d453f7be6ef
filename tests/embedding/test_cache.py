"""The cache: keyed by content, bounded, safe between threads and processes, and never a reason to fail."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc import files as file_module
from arr_coc.embedding import cache as cache_module
from arr_coc.embedding import storage
from arr_coc.embedding.cache import CacheWarning, DiskCache, EmbeddingCache, content_key
from arr_coc.errors import ArrCocError
from arr_coc.types.image import read_picture
from tests.conftest import noise


def value(number: int, cells: int = 64) -> torch.Tensor:
    """`[1, 1, cells]`: 4 bytes a cell."""
    return torch.full((1, 1, cells), float(number))


def never() -> torch.Tensor:
    raise AssertionError("computed a value that should be cached")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def key(number: int) -> str:
    return f"{number:064x}"


# In memory


@settings(max_examples=80, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=60), room=st.integers(0, 60),
)  # fmt: skip
def test_memory_is_a_bounded_lru(asked: list[tuple[int, int]], room: int) -> None:
    """Compared with a simple model: a list of used keys, oldest first."""
    cache = EmbeddingCache(memory=4 * room)
    model: list[tuple[str, int]] = []
    made = 0
    for number, cells in asked:
        name = f"{number} {cells}"  # the same key always has the same size
        found = cache.get(name, lambda n=number, c=cells: value(n, c))  # type: ignore[misc]
        assert torch.equal(found, value(number, cells))
        if (name, cells) in model:
            model.remove((name, cells))
            model.append((name, cells))
        else:
            made += 1
            if cells <= room:
                model.append((name, cells))
                while sum(size for _, size in model) > room:
                    model.pop(0)
        assert cache.counts.made == made
        assert cache.bytes == 4 * sum(size for _, size in model) <= 4 * room
        assert len(cache) == len(model)


def test_get_returns_a_copy() -> None:
    cache = EmbeddingCache()
    given_in = value(3)
    cache.get("a", lambda: given_in).zero_()
    given_in.zero_()
    cache.get("a", never).fill_(7)
    assert torch.equal(cache.get("a", never), value(3))


def test_concurrent_requests_compute_a_value_once() -> None:
    cache = EmbeddingCache(memory=0)  # nothing is kept: those who come meanwhile still share
    gate = threading.Barrier(8)
    made: list[int] = []

    def slow() -> torch.Tensor:
        made.append(1)
        time.sleep(0.2)
        return value(5)

    def ask() -> None:
        gate.wait()
        assert torch.equal(cache.get("a", slow), value(5))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert cache.counts.memory == 7


def test_threads_with_many_keys_agree() -> None:
    cache = EmbeddingCache(memory=4 * 64 * 5)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 300):
            if not torch.equal(cache.get(str(number), lambda n=number: value(int(n))), value(int(number))):  # type: ignore[misc]
                wrong.append(int(number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.bytes <= 4 * 64 * 5
    assert cache.counts.made + cache.counts.memory == 1800


def test_an_error_is_raised_and_not_cached() -> None:
    cache = EmbeddingCache()
    with pytest.raises(AssertionError, match="should be cached"):
        cache.get("a", never)
    assert torch.equal(cache.get("a", lambda: value(1)), value(1))
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1 GB", True])
def test_limits_are_numbers_of_bytes(wrong: object) -> None:
    with pytest.raises(ArrCocError, match="number of bytes"):
        EmbeddingCache(memory=wrong)  # type: ignore[arg-type]


# Keys


def test_the_key_does_not_depend_on_the_image_format(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    forms = [tmp_path / "a.png", Image.fromarray(array), array, tensor, tensor.float() / 255, tensor.double() / 255]
    forms.append(tensor.float() * torch.tensor(1 / 255))  # how a GPU divides
    keys = {content_key(read_picture(form, max_side=None).pixels, "e", "p", "fast") for form in forms}
    assert len(keys) == 1


def test_the_key_depends_on_pixels_size_and_settings() -> None:
    pixels = noise(12, 18)
    first = content_key(pixels, "e", "p", "fast")
    one = pixels.clone()
    one[2, 11, 17] += 1e-6
    others = [
        content_key(one, "e", "p", "fast"), content_key(pixels.reshape(3, 18, 12), "e", "p", "fast"),
        content_key(pixels.flip(0), "e", "p", "fast"), content_key(pixels, "f", "p", "fast"),
        content_key(pixels, "e", "q", "fast"), content_key(pixels, "e", "p", "native"), content_key(pixels, "ep", "", "fast"),
    ]  # fmt: skip
    assert len({first, *others}) == 8
    large = torch.zeros(3, 200, 200)  # several portions; a value between two 255ths in the last of them
    small = large.clone()
    small[2, 199, 199] = 0.5 / 255
    one_255th = large.clone()
    one_255th[2, 199, 199] = 1 / 255
    assert len({content_key(one, "e") for one in (large, small, one_255th)}) == 3
    assert content_key(pixels.clone(), "e", "p", "fast") == first


# On disk


def test_a_second_cache_reads_the_file(tmp_path: Path) -> None:
    EmbeddingCache(folder=tmp_path).get(key(1), lambda: value(1))
    again = EmbeddingCache(folder=tmp_path)
    assert torch.equal(again.get(key(1), never), value(1))
    assert (again.counts.disk, again.counts.made) == (1, 0)
    assert torch.equal(again.get(key(1), never), value(1))
    assert again.counts.memory == 1
    assert [path.suffix for path in files(tmp_path)] == [".safetensors"]


def damaged(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "one bit":
        data[-3] ^= 4
    elif how == "truncated":
        data = data[:-10]
    elif how == "empty":
        data = bytearray()
    elif how == "longer":
        data += b"x"
    elif how == "another's":
        storage.write(path, {"features": value(9)}, {"key": key(9)})
        return
    elif how == "another shape":
        found = path.read_bytes().replace(b"[1,1,64]", b"[1,64,1]")
        assert found != path.read_bytes()
        path.write_bytes(found)
        return
    elif how == "no features":
        storage.write(path, {"else": value(1)}, storage.read(path)[1])
        return
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how", ["one bit", "truncated", "empty", "longer", "another's", "another shape", "no features"]
)
def test_a_damaged_file_is_deleted_and_computed_again(tmp_path: Path, how: str) -> None:
    EmbeddingCache(folder=tmp_path).get(key(1), lambda: value(1))
    damaged(files(tmp_path)[0], how)
    cache = EmbeddingCache(folder=tmp_path)
    with pytest.warns(CacheWarning, match="damaged"):
        assert torch.equal(cache.get(key(1), lambda: value(1)), value(1))
    assert (cache.counts.damaged, cache.counts.made, cache.on_disk) == (1, 1, True)
    assert torch.equal(EmbeddingCache(folder=tmp_path).get(key(1), never), value(1))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_full_disk_warns_once_and_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    cache = EmbeddingCache(folder=tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(CacheWarning, match=f"not kept on disk any more.*{os.strerror(number)}"):
        assert torch.equal(cache.get(key(0), lambda: value(0)), value(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cache.get(key(1), lambda: value(1)), value(1))
    assert not cache.on_disk
    assert not files(tmp_path), "a temporary file was left"
    assert torch.equal(cache.get(key(1), never), value(1))


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = EmbeddingCache(folder=tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match="not kept on disk"):
        assert torch.equal(cache.get(key(1), lambda: value(1)), value(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cache.get(key(2), lambda: value(2)), value(2))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_read_only_folder(tmp_path: Path) -> None:
    EmbeddingCache(folder=tmp_path).get(key(1), lambda: value(1))
    for path in [*tmp_path.rglob("*"), tmp_path]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache = EmbeddingCache(folder=tmp_path)
    assert torch.equal(cache.get(key(1), never), value(1))
    with pytest.warns(CacheWarning):
        cache.get(key(300), lambda: value(2))


def test_the_folder_stays_below_its_limit_and_evicts_the_oldest(tmp_path: Path) -> None:
    """Entries of about 4.3 kB with room for about 23 of them."""
    room = 100_000
    cache = EmbeddingCache(memory=0, folder=tmp_path, disk=room)
    for number in range(60):
        cache.get(key(number), lambda n=number: value(n, 1024))  # type: ignore[misc]
        if number >= 10:
            cache.get(key(3), lambda: value(3, 1024))  # asked for again and again
        assert sum(path.stat().st_size for path in files(tmp_path)) <= room
    left = {int(path.stem, 16) for path in files(tmp_path)}
    assert {3, 59, 58, 57, 50} <= left
    assert not {0, 1, 2, 10, 20} & left
    assert cache.counts.made == 60


def test_a_value_above_the_limit_is_not_written(tmp_path: Path) -> None:
    cache = EmbeddingCache(memory=0, folder=tmp_path, disk=1000)
    assert cache.get(key(1), lambda: value(1, 1024)).numel() == 1024
    assert not files(tmp_path)


def test_abandoned_temporary_files_are_deleted(tmp_path: Path) -> None:
    old, fresh = (tmp_path / "00" / f"{key(n)}.safetensors{file_module.TEMPORARY}1-ab" for n in (7, 8))
    old.parent.mkdir()
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * cache_module.ABANDONED,) * 2)
    DiskCache(tmp_path, 10_000).write(key(1), value(1))
    assert not old.exists()
    assert fresh.exists()


def test_other_files_are_not_evicted(tmp_path: Path) -> None:
    others = [
        tmp_path / "model.safetensors",
        tmp_path / "00" / "model.safetensors",
        tmp_path / "ab" / f"{key(1)}.safetensors",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(50_000))
        os.utime(path, (0, 0))
    cache = EmbeddingCache(memory=0, folder=tmp_path, disk=10_000)
    for number in range(10):
        cache.get(key(number), lambda n=number: value(n, 1024))  # type: ignore[misc]
    assert all(path.exists() for path in others)
    assert sum(path.stat().st_size for path in files(tmp_path) if path not in others) <= 10_000


def _busy(folder: str, seed: int, found: object) -> None:
    """One of several processes on one folder, with too little room for all values."""
    cache = EmbeddingCache(memory=0, folder=folder, disk=40_000)
    wrong = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in np.random.default_rng(seed).integers(0, 16, 200):
            got = cache.get(key(int(number)), lambda n=number: value(int(n), 1024))  # type: ignore[misc]
            wrong += not torch.equal(got, value(int(number), 1024))
    found.put((seed, wrong, cache.counts.disk, cache.on_disk))  # type: ignore[attr-defined]


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    workers = [context.Process(target=_busy, args=(str(tmp_path), seed, found)) for seed in range(3)]
    for worker in workers:
        worker.start()
    said = [found.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert [wrong for _, wrong, _, _ in said] == [0, 0, 0]
    assert all(on for *_, on in said)
    assert sum(hits for _, _, hits, _ in said) > 50
    assert not [path for path in files(tmp_path) if file_module.TEMPORARY in path.name]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 40_000 * 1.2


def test_a_pickled_cache_has_the_same_limits_and_an_empty_memory(tmp_path: Path) -> None:
    cache = EmbeddingCache(memory=5000, folder=tmp_path)
    cache.get(key(1), lambda: value(1))
    there = pickle.loads(pickle.dumps(cache))
    assert (there.memory, len(there), there.on_disk) == (5000, 0, True)
    assert torch.equal(there.get(key(1), never), value(1))
