"""`Index`: which images of a folder show something, and where in them.

    index = arr_coc.Index("photos")  # opened or made in photos/.arr-coc-index
    index.update()  # encodes what is new or has changed; what an interrupted call has done stays
    for found in index.find("a dog on a sofa"):
        found.path, found.score, found.boxes

Each image is encoded once into a vector per cell. A query is one text encoding and a search for the images whose best cell
is nearest to it by cosine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from PIL import Image

from arr_coc.draw.overlay import heated
from arr_coc.embedding.embeddings import Embeddings
from arr_coc.embedding.encoder import Encoder, Mode, open_encoder
from arr_coc.errors import ArrCocError, DataError, ImageError, ProjectionError, whole_number
from arr_coc.find.store import Row, Store, erase, locked
from arr_coc.training.projection.gather import find_images
from arr_coc.types.grid import WHOLE
from arr_coc.types.image import read_picture
from arr_coc.types.question import check_question
from arr_coc.types.workers import WorkerMap

FOLDER = ".arr-coc-index"
FORMAT = 1
BLOCK = 8  # images of one task
COMMIT_EVERY = 10.0  # seconds: what a killed process loses at most
MAX_BOXES = 3
NEAR_BEST = 0.5  # a cell belongs to a box if its score is at least half-way from the median cell to the best one
MAX_COUNT = 10_000

Progress = Callable[[int, int], None]  # images done, images to do
Task = tuple[tuple[str, Path, str], ...]  # key, file and stamp of some images


@dataclass(frozen=True, eq=False)
class Found:
    """An image that a query found."""

    path: Path
    score: float  # cosine of the best cell and the query, from -1 to 1
    size: tuple[int, int]  # (width, height) in pixels
    boxes: tuple[tuple[int, int, int, int], ...]  # where: left, top, right, bottom in pixels, best first
    scores: torch.Tensor  # [h, w], of every cell

    def image(self, max_side: int = 1024) -> Image.Image:
        """The image, rotated as its EXIF orientation says."""
        pixels = read_picture(self.path, max_side=max_side).pixels
        return Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())

    def heat(self, max_side: int = 1024) -> Image.Image:
        """The image with a heat map of the cells' scores."""
        low, high = float(self.scores.median()), float(self.scores.max())
        values = ((self.scores - low) / max(high - low, 1e-6)).clamp(0, 1)
        return heated(read_picture(self.path, max_side=max_side).pixels, [(WHOLE, values)])

    def to_dict(self) -> dict[str, Any]:
        return {
            "image": str(self.path),
            "score": round(self.score, 4),
            "size": list(self.size),
            "boxes": [list(box) for box in self.boxes],
        }


@dataclass(frozen=True)
class IndexReport:
    """What `update` did. `unreadable`: file and reason; these are tried again by the next call."""

    images: int  # in the index now
    added: int = 0
    changed: int = 0
    removed: int = 0  # from the index, because their files are gone
    unreadable: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        unreadable = [{"image": file, "reason": reason} for file, reason in self.unreadable]
        return vars(self) | {"unreadable": unreadable}


@dataclass(frozen=True)
class CellEncoder:
    """An encoder by name: what a worker process needs to make vectors, and what an index keeps to be opened again."""

    name: str = "labels"
    projection: str | None = None  # a file of fit-embeddings; None: the one that ships, or else all dimensions
    mode: Mode = "fast"
    device: str = "cpu"

    def open(self) -> Embeddings | Encoder:
        encoder = open_encoder(self.name, self.device)
        try:
            return Embeddings(encoder, self.projection, mode=self.mode)
        except ProjectionError:
            if self.projection is not None:
                raise
            if self.mode != "fast":
                raise ArrCocError(
                    f"expected the mode 'fast' for {self.name!r}, which has no projection, got {self.mode!r}: fit one with "
                    "arr-coc fit-embeddings and pass it"
                ) from None
            return encoder  # none ships for it: vectors of all dimensions


class Index:
    """The images of a folder (recursively), to be found by what is in them. One process writes, any number read."""

    def __init__(
        self,
        folder: str | Path,
        *,
        encoder: Embeddings | Encoder | CellEncoder | str | None = None,
        place: str | Path | None = None,
    ) -> None:
        """Open the index of a folder; `update` makes one if there is none.

        encoder: the name of one for `open_encoder`, an `Encoder`, or `Embeddings`, whose vectors are compressed; by default
        the index's own, and "labels" for a new index. place: where the index is kept; by default `.arr-coc-index` in the
        folder.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(f"expected a folder of images, got {str(folder)!r}, which is not a folder")
        self.place = self.folder / FOLDER if place is None else Path(place)
        if self.place.exists() and not self.place.is_dir():
            raise DataError(f"expected a folder for the index, got {str(self.place)!r}, which is a file")
        self._store: Store | None = None
        self._given = CellEncoder(encoder) if isinstance(encoder, str) else encoder

    def __len__(self) -> int:
        store = self._opened()
        return 0 if store is None else len(store)

    @cached_property
    def encoder(self) -> Embeddings | Encoder:
        """The encoder of images and queries. It is loaded on first use, and must be the one that the index was made with."""
        store = self._opened()
        note = {} if store is None else store.note
        given = self._given
        if given is None:
            if note and note["encoder"] is None:
                raise DataError(
                    f"the index in {str(self.place)!r} was made with an encoder that was passed as an object "
                    f"({note['identity']}): pass it again as encoder="
                )
            given = CellEncoder(*note["encoder"]) if note else CellEncoder()
        opened = given.open() if isinstance(given, CellEncoder) else given
        if note and note["identity"] != opened.identity:
            raise DataError(
                f"the index in {str(self.place)!r} was made with {note['identity']}, got {opened.identity}: use that "
                "encoder, or make the index again with --fresh (fresh=True)"
            )
        return opened

    def update(
        self, *, workers: WorkerMap | None = None, progress: Progress | None = None, fresh: bool = False
    ) -> IndexReport:
        """Encode the images that are new or have changed, and remove those whose files are gone.

        What is done is kept every few seconds, so that an interrupted or killed call is continued by the next one.
        workers: processes that encode, such as `arr_coc.ray.Workers(2)`; the encoder must be given by name. progress: is
        called with the number of images done and to do. fresh: discard what there is.
        """
        if workers is not None and isinstance(self._given, Embeddings | Encoder):
            raise ArrCocError("workers open their own encoder: expected encoder= as a name, got an object")
        images = find_images([self.folder])
        progress = progress or (lambda done, total: None)
        with locked(self.place):
            if fresh:
                erase(self.place)
                self._store = None
                self.__dict__.pop("encoder", None)  # the new one need not be that of the old index
            store = self._store = Store.open(self.place)  # again: another process may have written since
            if store is None:
                store = self._store = Store.create(self.place, dims_of(self.encoder), self._note())
            known = store.stamps()
            names, wrong = self._names(images)
            gone = [name for name in known if name not in names]
            store.remove(gone)
            todo = [(name, path, stamp) for name, (path, stamp) in names.items() if known.get(name) != stamp]
            added, changed = 0, 0
            pending: list[Row] = []
            committed = time.monotonic()
            done = 0
            progress(0, len(todo))
            blocks = [tuple(todo[start : start + BLOCK]) for start in range(0, len(todo), BLOCK)]
            parts = self._encoded(blocks, workers)
            try:
                with closing(parts):
                    for rows, unreadable in parts:
                        pending += rows
                        wrong += unreadable
                        done += len(rows) + len(unreadable)
                        changed += sum(row.path in known for row in rows)
                        added += sum(row.path not in known for row in rows)
                        progress(done, len(todo))
                        if time.monotonic() - committed > COMMIT_EVERY:
                            store.put(pending)
                            pending, committed = [], time.monotonic()
            finally:  # also after ctrl-C
                store.put(pending)
            # An image that was readable when it was indexed and no longer is: its vectors describe another file.
            broken = [name for name, _ in wrong if name in known]
            store.remove(broken)
            if todo:
                store.compact()
            full = tuple((str(self.folder / name), reason) for name, reason in wrong)
            return IndexReport(len(store), added, changed, len(gone), full)

    def find(self, query: str, count: int = 10) -> list[Found]:
        """The `count` images that show most surely what the query names, best first, and where in them."""
        check_question(query)
        number = whole_number(count)
        if number is None or number > MAX_COUNT:
            raise ArrCocError(f"expected a count of images from 1 to {MAX_COUNT:,}, got {count!r}")
        store = self._opened()
        if store is None:
            raise DataError(
                f"there is no index in {str(self.place)!r}: make it with `arr-coc index {self.folder}` (Index.update())"
            )
        encoder = self.encoder
        texts = encoder.query([query]) if isinstance(encoder, Embeddings) else encoder.text([query])
        vector = texts[0].float().cpu().numpy()
        return [self._found(row, vector) for row in store.nearest(vector, number)]

    def _found(self, row: Row, vector: np.ndarray) -> Found:
        scores = torch.from_numpy((row.vectors.astype(np.float32) @ vector).reshape(row.grid))
        boxes = best_boxes(scores, row.size)
        return Found(self.folder / row.path, float(scores.max()), (row.size[1], row.size[0]), boxes, scores)

    def _note(self) -> dict[str, Any]:
        given = self._given or CellEncoder()
        # Without the device: the index may be searched on another machine.
        named = [given.name, given.projection, given.mode] if isinstance(given, CellEncoder) else None
        return {"format": FORMAT, "identity": self.encoder.identity, "encoder": named}

    def _opened(self) -> Store | None:
        """The store, opened when it is first needed: `update(fresh=True)` replaces one that cannot be opened."""
        if self._store is None:
            self._store = Store.open(self.place)
        return self._store

    def _names(self, images: Sequence[Path]) -> tuple[dict[str, tuple[Path, str]], list[tuple[str, str]]]:
        """File and stamp by the name inside the folder; and the files that cannot be named or are gone."""
        names: dict[str, tuple[Path, str]] = {}
        wrong = []
        for path in images:
            name = path.relative_to(self.folder).as_posix()
            try:
                name.encode()
                found = path.stat()
            except UnicodeEncodeError:
                name = name.encode(errors="backslashreplace").decode()
                wrong.append((name, f"{name!r}: the name of the file is not valid UTF-8"))
            except OSError as error:
                wrong.append((name, f"cannot read {str(path)!r}: {error.strerror or error}"))
            else:
                names[name] = path, f"{found.st_size} {found.st_mtime_ns}"
        return names, wrong

    def _encoded(
        self, blocks: Sequence[Task], workers: WorkerMap | None
    ) -> Generator[tuple[list[Row], list[tuple[str, str]]]]:
        if workers is None:
            yield from (encode_images(self.encoder, block) for block in blocks)
            return
        named = cast(Store, self._store).note["encoder"]
        if named is None:
            raise ArrCocError("workers open their own encoder, and this index was made with one passed as an object")
        given = CellEncoder(*named)
        if isinstance(self._given, CellEncoder):
            given = self._given
            assert self.encoder  # raises where it is not the index's own
        yield from workers(given.open, encode_images, blocks)


def encode_images(encoder: Embeddings | Encoder, images: Task) -> tuple[list[Row], list[tuple[str, str]]]:
    """The rows of some images, and name and reason of those that cannot be read."""
    rows, unreadable = [], []
    for name, path, stamp in images:
        try:
            pixels = read_picture(path, max_side=None).pixels
        except ImageError as error:
            unreadable.append((name, str(error)))
            continue
        size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        features = encoder.compressed(pixels) if isinstance(encoder, Embeddings) else encoder.dense(pixels).features
        vectors = features.float().flatten(1).T.cpu().numpy().astype(np.float16)  # [h * w, k]
        rows.append(Row(name, stamp, size, (int(features.shape[1]), int(features.shape[2])), vectors))
    return rows, unreadable


def dims_of(encoder: Embeddings | Encoder) -> int:
    return encoder.dims if isinstance(encoder, Embeddings) else encoder.width


def best_boxes(scores: torch.Tensor, size: tuple[int, int]) -> tuple[tuple[int, int, int, int], ...]:
    """The parts of an image of `size` (height, width) with the best cells of `[h, w]`, as pixel boxes, best first.

    >>> best_boxes(torch.tensor([[0.0, 0.0, 0.1, 0.1], [0.0, 0.0, 0.8, 0.9]]), (20, 40))
    ((20, 10, 40, 20),)
    """
    best, middle = float(scores.max()), float(scores.median())
    if best <= middle:  # all alike: the whole image
        return ((0, 0, size[1], size[0]),)
    marked = (scores >= middle + NEAR_BEST * (best - middle)).numpy().astype(np.uint8)
    count, labels = cv2.connectedComponents(marked, connectivity=4)
    parts = sorted(range(1, count), key=lambda part: -float(scores.numpy()[labels == part].max()))
    high, wide = size[0] / scores.shape[0], size[1] / scores.shape[1]
    boxes = []
    for part in parts[:MAX_BOXES]:
        rows, columns = np.nonzero(labels == part)
        edges = columns.min() * wide, rows.min() * high, (columns.max() + 1) * wide, (rows.max() + 1) * high
        boxes.append((round(edges[0]), round(edges[1]), round(edges[2]), round(edges[3])))
    return tuple(boxes)
