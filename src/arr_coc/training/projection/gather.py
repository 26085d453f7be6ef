"""The moments of the features of a folder of images, in any number of processes, with resume after an interrupt.

- Images are encoded in blocks, and the blocks' moments are added in a fixed order. So the result is the same for any
  number of processes and for an interrupted run.
- Only moments are kept: memory does not grow with the number of images.
- A file that cannot be read is skipped and named.
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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import torch
from PIL import Image

from arr_coc.embedding import storage
from arr_coc.embedding.encoder import Encoder, Mode
from arr_coc.embedding.projection import Moments
from arr_coc.errors import ArrCocError, DataError, ImageError
from arr_coc.types.workers import WorkerMap

BLOCK = 8  # images
SAVE_EVERY = 10.0  # seconds
FORMAT = "gathered embeddings"

Progress = Callable[[int, int], None]  # images done, images in total


@dataclass(frozen=True, eq=False)
class GatheredMoments:
    """The moments of some images' features."""

    features: Moments
    pictures: int = 0  # that could be read
    unreadable: tuple[tuple[str, str], ...] = ()  # file and reason

    def __add__(self, other: GatheredMoments) -> GatheredMoments:
        pictures, unreadable = self.pictures + other.pictures, self.unreadable + other.unreadable
        return GatheredMoments(self.features + other.features, pictures, unreadable)


@dataclass(frozen=True)
class CellSampling:
    """Which cells of an image are used."""

    mode: Mode = "fast"
    sample: int | None = None  # cells drawn at random from each image; None: all
    seed: int = 0


def find_images(places: Sequence[str | Path]) -> list[Path]:
    """The images in folders (recursively) and files, each once, sorted.

    In a folder, files with the suffix of a readable image format count; a file that is named explicitly always counts.
    """
    suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    found: dict[str, Path] = {}
    for place in map(Path, places):
        if place.is_file():
            found[str(place)] = place
            continue
        if not place.is_dir():
            raise DataError(f"there is no file or folder {str(place)!r}")
        for folder, _, names in os.walk(place):
            paths = [Path(folder, name) for name in names]
            found.update({str(path): path for path in paths if path.suffix.lower() in suffixes})
    if not found:
        raise DataError(f"expected pictures in {', '.join(repr(str(p)) for p in places)}, found none")
    return [found[name] for name in sorted(found)]


def gather_moments(
    images: Sequence[Path],
    encoder: Encoder,
    sampling: CellSampling = CellSampling(),  # noqa: B008
    *,
    workers: int | WorkerMap = 1,
    make: Callable[[], Encoder] | None = None,
    state: Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> tuple[GatheredMoments, int]:
    """The moments of the cells of `images`, and how many images an interrupted run had done before.

    `workers` processes share the work, or those of a `WorkerMap`; `make` opens the encoder once in each. `state` is a file that keeps what is done
    for a later run; `fresh` ignores it.
    """
    if workers != 1 and make is None:
        raise ArrCocError("several workers each open their own encoder: pass make=, a function that opens one")
    blocks = [images[start : start + BLOCK] for start in range(0, len(images), BLOCK)]
    run = _run_id(images, encoder.identity, sampling)
    done, total = 0, GatheredMoments(Moments.empty(encoder.width))
    if state is not None and not fresh:
        done, total = _load_state(state, run) or (done, total)
    resumed = len(images[: done * BLOCK])
    progress = progress or (lambda now, of: None)
    progress(resumed, len(images))
    saved, saving = time.monotonic(), True
    try:
        with closing(_encode_blocks(blocks[done:], encoder, sampling, workers, make)) as parts:
            for part in parts:
                total, done = total + part, done + 1
                progress(len(images[: done * BLOCK]), len(images))
                if state is not None and time.monotonic() - saved > SAVE_EVERY:
                    saving = _save_state(state, run, done, total, warn=saving)
                    saved = time.monotonic()
    finally:  # also after the last block: the validation that follows may be interrupted
        if state is not None and done:
            _save_state(state, run, done, total, warn=saving)
    return total, resumed


def block_moments(images: Sequence[Path], encoder: Encoder, sampling: CellSampling) -> GatheredMoments:
    features, unreadable = Moments.empty(encoder.width), []
    for image in images:
        try:
            cells = encoder.dense(image, sampling.mode).features.flatten(1).T  # [N, D]
        except ImageError as error:
            unreadable.append((str(image), str(error)))
            continue
        if sampling.sample is not None and sampling.sample < len(cells):
            # The seed depends on the file's name, so a file always gives the same cells.
            generator = torch.Generator().manual_seed(zlib.crc32(image.name.encode()) + sampling.seed)
            drawn = torch.randperm(len(cells), generator=generator)[: sampling.sample]
            cells = cells[drawn.to(cells.device)]
        features = features + Moments.of(cells)
    return GatheredMoments(features, len(images) - len(unreadable), tuple(unreadable))


def _block_moments_by(sampling: CellSampling, encoder: Encoder, images: Sequence[Path]) -> GatheredMoments:
    return block_moments(images, encoder, sampling)


def _encode_blocks(
    blocks: Sequence[Sequence[Path]],
    encoder: Encoder,
    sampling: CellSampling,
    workers: int | WorkerMap,
    make: Callable[[], Encoder] | None,
) -> Generator[GatheredMoments]:
    """The blocks' moments in order, computed here or in worker processes."""
    if make is not None and not isinstance(workers, int):
        yield from workers(make, partial(_block_moments_by, sampling), blocks)
        return
    if make is None or not isinstance(workers, int) or workers <= 1 or len(blocks) <= 1:
        for block in blocks:
            yield block_moments(block, encoder, sampling)
        return
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(blocks)), context, _start_worker, (make, sampling, workers))
    pending: deque[Future[GatheredMoments]] = deque()
    try:
        for block in blocks:
            with _interrupts_blocked():  # this may start a process
                pending.append(pool.submit(_work, block))
            if len(pending) >= 2 * workers:  # bounded, so that results do not pile up
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:  # they would finish their blocks first
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise ArrCocError(
                "a worker process died, perhaps for lack of memory: try fewer --workers; what was done is kept"
            ) from None
        raise
    pool.shutdown()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in this block never receive ctrl-C, not even during their imports; this process does after it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: tuple[Encoder, CellSampling]  # of a worker process


def _start_worker(make: Callable[[], Encoder], sampling: CellSampling, workers: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _worker = make(), sampling


def _work(block: Sequence[Path]) -> GatheredMoments:
    return block_moments(block, *_worker)


def _run_id(images: Sequence[Path], encoder: str, sampling: CellSampling) -> str:
    """The same images, encoder and sampling give the same id."""
    digest = hashlib.sha256(f"{encoder}\n{sampling}\n{BLOCK}\n".encode())
    for image in images:
        try:
            found = image.stat()
            digest.update(f"{image} {found.st_size} {found.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{image}\n".encode())
    return digest.hexdigest()


def _save_state(state: Path, run: str, done: int, total: GatheredMoments, warn: bool) -> bool:
    """Save what is done so far. A failed write is not fatal: it returns False, after a warning if `warn`."""
    unreadable = [list(pair) for pair in total.unreadable]
    note = {"format": FORMAT, "run": run, "blocks": done, "pictures": total.pictures, "unreadable": unreadable}
    try:
        storage.write(state, total.features.to_tensors("features"), note)
    except OSError as error:
        if warn:
            why = f"what is done cannot be kept in {str(state)!r} ({error.strerror or error}): do not interrupt the run"
            warnings.warn(why, stacklevel=3)
        return False
    return True


def _load_state(state: Path, run: str) -> tuple[int, GatheredMoments] | None:
    """The number of blocks done by an interrupted run, and their moments; None if the file is of another run."""
    try:
        tensors, note = storage.read(state)
        if note.get("format") != FORMAT or note.get("run") != run:
            return None
        unreadable = tuple((str(file), str(why)) for file, why in note["unreadable"])
        features = Moments.from_tensors(tensors, "features")
        return int(note["blocks"]), GatheredMoments(features, int(note["pictures"]), unreadable)
    except (OSError, storage.DamagedFileError, KeyError, ValueError, TypeError):
        return None
