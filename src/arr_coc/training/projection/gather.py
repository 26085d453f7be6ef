"""The moments of a folder's features: picture by picture, in any number of processes, to be gone on with after a stop.

Notable:
- pictures are taken in blocks in a fixed order, and the blocks' moments are merged in that order, so that any number of
  processes gives the same sums, and so does a run that was interrupted;
- of each picture only its moments stay: memory is that of a block, however many pictures there are;
- a file that cannot be read is left out and named.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from arr_coc.embedding import storage
from arr_coc.embedding.encoder import Encoder, Mode
from arr_coc.embedding.moments import Moments
from arr_coc.errors import ArrCocError, DataError, ImageError

BLOCK = 8  # pictures
SAVE_EVERY = 10.0  # seconds
FORMAT = "gathered embeddings"

Tick = Callable[[int, int], None]  # pictures done, of how many


@dataclass(frozen=True, eq=False)
class Part:
    """What is known of some pictures' features."""

    features: Moments
    pictures: int = 0  # that could be read
    unreadable: tuple[tuple[str, str], ...] = ()  # file and why

    def __add__(self, other: Part) -> Part:
        return Part(self.features + other.features, self.pictures + other.pictures, self.unreadable + other.unreadable)


@dataclass(frozen=True)
class Rules:
    """How pictures become cells."""

    mode: Mode = "fast"
    sample: int | None = None  # cells of each picture, drawn at random; None: all of them
    seed: int = 0


def find_images(places: Sequence[str | Path]) -> list[Path]:
    """The pictures in folders (and in theirs) and files, each once, in a fixed order.

    In a folder, files count whose ending is that of an image format that can be read; a file that is named itself counts
    whatever its ending.
    """
    endings = {ending for ending, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    found: dict[str, Path] = {}
    for place in map(Path, places):
        if place.is_file():
            found[str(place)] = place
            continue
        if not place.is_dir():
            raise DataError(f"there is no file or folder {str(place)!r}")
        for folder, _, names in os.walk(place):
            some = [name for name in names if Path(name).suffix.lower() in endings]
            found.update({os.path.join(folder, name): Path(folder, name) for name in some})
    if not found:
        raise DataError(f"expected pictures in {', '.join(repr(str(p)) for p in places)}, found none")
    return [found[name] for name in sorted(found)]


def gather(
    images: Sequence[Path],
    encoder: Encoder,
    rules: Rules = Rules(),  # noqa: B008
    *,
    workers: int = 1,
    make: Callable[[], Encoder] | None = None,
    state: Path | None = None,
    fresh: bool = False,
    tick: Tick | None = None,
) -> tuple[Part, int]:
    """The moments of all cells of `images`; and how many pictures an earlier, interrupted run had done.

    `workers` processes share the work; `make` opens the encoder once in each of them. `state` is a file that keeps what is
    done, so that an interrupted run goes on; with `fresh` it is not looked at.
    """
    if workers > 1 and make is None:
        raise ArrCocError("several workers each open an encoder of their own: pass make=, a function that does it")
    blocks = [images[start : start + BLOCK] for start in range(0, len(images), BLOCK)]
    run = _fingerprint(images, encoder.identity, rules)
    done, known = (0, None) if state is None or fresh else _resumed(state, run)
    total = known or Part(Moments.none(encoder.width))
    resumed = len(images[: done * BLOCK])
    report = tick or (lambda now, of: None)
    report(resumed, len(images))
    saved = time.monotonic()
    kept = True  # as far as is known
    try:
        with _results(blocks[done:], encoder, rules, workers, make) as parts:
            for part in parts:
                total, done = total + part, done + 1
                report(len(images[: done * BLOCK]), len(images))
                if state is not None and time.monotonic() - saved > SAVE_EVERY:
                    kept = _save(state, run, done, total, say=kept)
                    saved = time.monotonic()
    finally:  # when all is done, too: what follows may be interrupted as well
        if state is not None and done:
            _save(state, run, done, total, say=kept)
    return total, resumed


def block_moments(images: Sequence[Path], encoder: Encoder, rules: Rules) -> Part:
    """The moments of a few pictures."""
    part = Part(Moments.none(encoder.width))
    for image in images:
        try:
            features = encoder.dense(image, rules.mode).features.flatten(1).T  # [N, D]
        except ImageError as error:
            part = part + Part(Moments.none(encoder.width), 0, ((str(image), str(error)),))
            continue
        part = part + Part(Moments.of(_drawn(features, image.name, rules)), 1)
    return part


def _drawn(features: torch.Tensor, name: str, rules: Rules) -> torch.Tensor:
    """Some of a picture's cells, always the same ones of a file of that name."""
    if rules.sample is None or rules.sample >= len(features):
        return features
    dice = torch.Generator().manual_seed(zlib.crc32(name.encode()) + rules.seed)
    return features[torch.randperm(len(features), generator=dice)[: rules.sample].to(features.device)]


@contextmanager
def _results(
    blocks: Sequence[Sequence[Path]], encoder: Encoder, rules: Rules, workers: int, make: Callable[[], Encoder] | None
) -> Iterator[Iterator[Part]]:
    """The blocks' moments in order, worked out here or in other processes."""
    if make is None or workers <= 1 or len(blocks) <= 1:
        yield (block_moments(block, encoder, rules) for block in blocks)
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(workers, len(blocks)), multiprocessing.get_context("spawn"), _start_worker, (make, rules, workers)
    )
    try:
        yield _in_order(pool, blocks, 2 * workers)
        pool.shutdown()
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:  # they would finish their blocks first
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise ArrCocError(
                "a worker process died, perhaps for lack of memory: try fewer --workers; what was done is kept"
            ) from None
        raise


def _in_order(pool: ProcessPoolExecutor, blocks: Sequence[Sequence[Path]], ahead: int) -> Iterator[Part]:
    """Results in the order of the blocks, with no more than `ahead` of them under way: the rest must not pile up."""
    waiting: deque[Future[Part]] = deque()
    for block in blocks:
        with _interrupts_held():  # a process may be started here
            waiting.append(pool.submit(_work, block))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile never hear ctrl-C, not even while they import; the parent hears it right after."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_own: dict[str, Any] = {}  # a worker process's encoder and rules


def _start_worker(make: Callable[[], Encoder], rules: Rules, workers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and says what is to be said
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _own.update(encoder=make(), rules=rules)


def _work(block: Sequence[Path]) -> Part:
    return block_moments(block, _own["encoder"], _own["rules"])


def _fingerprint(images: Sequence[Path], encoder: str, rules: Rules) -> str:
    """A name for a run: the same pictures, encoder and rules have the same one."""
    digest = hashlib.sha256(f"{encoder}\n{rules}\n{BLOCK}\n".encode())
    for image in images:
        try:
            found = image.stat()
            digest.update(f"{image} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{image}\n".encode())
    return digest.hexdigest()


def _save(state: Path, run: str, done: int, total: Part, say: bool) -> bool:
    """Keep what is done so far; a disk that cannot is not worth losing the run for, but worth a word, said once."""
    note = {
        "format": FORMAT, "run": run, "blocks": done, "pictures": total.pictures,
        "unreadable": [list(pair) for pair in total.unreadable],
    }  # fmt: skip
    try:
        storage.write(state, total.features.tensors("features"), note)
    except OSError as error:
        if say:
            why = f"what is done cannot be kept in {str(state)!r} ({error.strerror or error}): do not interrupt the run"
            warnings.warn(why, stacklevel=3)
        return False
    return True


def _resumed(state: Path, run: str) -> tuple[int, Part | None]:
    """Blocks done by an interrupted run and what they gave; nothing where the file is another run's or broken."""
    try:
        tensors, note = storage.read(state)
        if note.get("format") != FORMAT or note.get("run") != run:
            return 0, None
        features = Moments.read(tensors, "features")
        unreadable = tuple((str(file), str(why)) for file, why in note["unreadable"])
        return int(note["blocks"]), Part(features, int(note["pictures"]), unreadable)
    except (OSError, storage.Damaged, KeyError, ValueError, TypeError):
        return 0, None
