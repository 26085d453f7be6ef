"""The table of an index: one row per image, with the vectors of its cells, in LanceDB.

- A commit is atomic: a process that is killed leaves the last commit, and readers see one commit or the next.
- One process writes at a time, by a lock on a file. The lock ends with the process, however it ends.
- A search is exact: the best cell of every image is compared.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.errors import ArrCocError, DataError, raise_as

try:
    import fcntl
except ImportError:  # pragma: no cover - not a Unix: no lock there
    fcntl = None  # type: ignore[assignment]

TABLE, LOCK, NOTE = "images", "lock", b"arr_coc"
PATHS_PER_DELETE = 500
COMMITS_PER_COMPACTION = 200  # every commit lists all files of the table, so many small files slow it down


def import_lancedb() -> Any:
    try:
        import lancedb
    except ImportError:
        raise ArrCocError("an index needs lancedb, which is not installed: pip install 'arr-coc[find]'") from None
    return lancedb


@dataclass(frozen=True, eq=False)
class Row:
    """One image. `stamp` changes with its file; `size` is (height, width); `vectors` are float16 `[rows * columns, k]`."""

    path: str
    stamp: str
    size: tuple[int, int]
    grid: tuple[int, int]
    vectors: np.ndarray


class Store:
    """The table in a folder. `note` describes what made the vectors; it is written with the table and never changes."""

    def __init__(self, folder: Path, dims: int, table: Any, note: Mapping[str, Any]) -> None:
        self.folder, self.dims, self.note = folder, dims, note
        self._table = table
        self._commits = 0

    @classmethod
    def open(cls, folder: Path) -> Store | None:
        """The store in `folder`, or None if there is none."""
        lancedb = import_lancedb()
        if not (folder / f"{TABLE}.lance").is_dir():
            return None
        with raise_as(DataError, f"cannot read the index in {str(folder)!r}, make it again with --fresh"):
            table = lancedb.connect(str(folder)).open_table(TABLE)
            note = json.loads(table.schema.metadata[NOTE])
            return cls(folder, int(note["dims"]), table, note)

    @classmethod
    def create(cls, folder: Path, dims: int, note: Mapping[str, Any]) -> Store:
        lancedb = import_lancedb()
        note = {**note, "dims": dims}
        with raise_as(DataError, f"cannot write the index into {str(folder)!r}"):
            table = lancedb.connect(str(folder)).create_table(TABLE, schema=_schema(dims, note))
        return cls(folder, dims, table, note)

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def stamps(self) -> dict[str, str]:
        """The stamp of every image."""
        if not len(self):
            return {}
        found = self._table.search().select(["path", "stamp"]).limit(len(self)).to_arrow()
        return dict(zip(found["path"].to_pylist(), found["stamp"].to_pylist(), strict=True))

    def put(self, rows: Sequence[Row]) -> None:
        """Add images, or replace those with the same path, in one commit."""
        if not rows:
            return
        with raise_as(DataError, f"cannot write the index into {str(self.folder)!r}"):
            merge = self._table.merge_insert("path").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(_arrow_table(rows, self.dims, self._table.schema))
            self._commits += 1
            if self._commits % COMMITS_PER_COMPACTION == 0:
                self.compact()

    def remove(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), PATHS_PER_DELETE):
            quoted = ", ".join("'" + path.replace("'", "''") + "'" for path in paths[start : start + PATHS_PER_DELETE])
            with raise_as(DataError, f"cannot write the index into {str(self.folder)!r}"):
                self._table.delete(f"path IN ({quoted})")

    def compact(self) -> None:
        """Merge small files. Readers of an older version are not disturbed: its files stay for a week."""
        self._table.optimize()

    def nearest(self, query: np.ndarray, count: int) -> list[Row]:
        """The `count` images whose best cell is nearest to a vector `[k]`, best first."""
        with raise_as(DataError, f"cannot read the index in {str(self.folder)!r}, make it again with --fresh"):
            self._table.checkout_latest()  # another process may have added images
            if not len(self):
                return []
            search = self._table.search(query.astype(np.float16), vector_column_name="vectors")
            found = search.distance_type("cosine").limit(count).to_arrow().combine_chunks()
        names = ("path", "stamp", "height", "width", "rows", "columns")
        columns = zip(*(found[name].to_pylist() for name in names), strict=True)
        cells = found["vectors"].chunk(0)
        flat = cells.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dims)
        counts = np.diff(cells.offsets.to_numpy())
        vectors = np.split(flat, np.cumsum(counts)[:-1])
        return [
            Row(path, stamp, (height, width), (rows, wide), some)
            for (path, stamp, height, width, rows, wide), some in zip(columns, vectors, strict=True)
        ]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of the index in `folder` while the block runs."""
    with raise_as(DataError, f"cannot write the index into {str(folder)!r}"):
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"another process is writing the index in {str(folder)!r}: wait for it; what it has done can be searched"
                ) from None
        yield
    finally:
        os.close(file)


def erase(folder: Path) -> None:
    """Remove the table in `folder`, if there is one; call it under the lock."""
    table = folder / f"{TABLE}.lance"
    if table.exists():
        with raise_as(DataError, f"cannot remove the index in {str(folder)!r}"):
            shutil.rmtree(table)


def _schema(dims: int, note: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    fields = [
        ("path", pa.string()),
        ("stamp", pa.string()),
        *((name, pa.int32()) for name in ("height", "width", "rows", "columns")),
        ("vectors", pa.list_(pa.list_(pa.float16(), dims))),
    ]
    return pa.schema(fields, metadata={NOTE: json.dumps(note).encode()})


def _arrow_table(rows: Sequence[Row], dims: int, schema: Any) -> Any:
    import pyarrow as pa

    flat = np.concatenate([row.vectors.astype(np.float16).reshape(-1) for row in rows])
    offsets = np.cumsum([0, *(len(row.vectors) for row in rows)]).astype(np.int32)
    vectors = pa.ListArray.from_arrays(pa.array(offsets), pa.FixedSizeListArray.from_arrays(pa.array(flat), dims))
    columns = {
        "path": [row.path for row in rows],
        "stamp": [row.stamp for row in rows],
        "height": [row.size[0] for row in rows],
        "width": [row.size[1] for row in rows],
        "rows": [row.grid[0] for row in rows],
        "columns": [row.grid[1] for row in rows],
        "vectors": vectors,
    }
    return pa.table(columns, schema=schema)
