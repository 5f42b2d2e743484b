"""Sorts rows by their positions, in limited memory.

Files of an archive are sorted by key, so rows that follow each other in the changelog are far apart in such files. Rows
that fit into memory are sorted there. If there are more rows, they are sorted in parts that fit. All sorted parts are
written to one temporary file, and then merged.
"""

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.errors import ChangelogError, Kind

SORTED_BYTES = 128 << 20
"""The most bytes of rows that are sorted at once. Sorting needs about three times as much memory."""

_CHUNKS = 512
"""A merge reads at most `SORTED_BYTES / _CHUNKS` bytes of each part at once, so a merge of fewer than `_CHUNKS` parts
needs less memory than sorting."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def in_order(
    batches: Iterable[pa.RecordBatch], *, rows_max: int, bytes_max: int = SORTED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `batches` (`changelog.envelope.columnar.batch.SCHEMA`) in the order of position and partition.

    The yielded batches have at most `rows_max` rows. If the rows have `bytes_max` bytes or more, they are written to a
    temporary file, which is deleted at the end. Raises ChangelogError (STORAGE) if the file cannot be written.
    """
    unsorted_batches: list[pa.RecordBatch] = []
    size = 0
    with _TemporaryRows(bytes_max) as parts:
        for rows in batches:
            unsorted_batches.append(rows)
            size += rows.nbytes
            if size >= bytes_max:
                parts.write(_sorted(unsorted_batches))
                unsorted_batches, size = [], 0
        if not parts.written:
            yield from _sorted(unsorted_batches).to_batches(max_chunksize=rows_max)
            return
        parts.write(_sorted(unsorted_batches))
        for rows_in_order in _merged([_Part(parts, chunks) for chunks in parts.written if chunks]):
            yield from rows_in_order.to_batches(max_chunksize=rows_max)


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    # `Table.sort_by` does the same, but first imports Arrow's engine for queries, which takes longer than a small sort.
    return table.take(pc.sort_indices(table, sort_keys=[("position", "ascending"), ("partition", "ascending")]))


class _TemporaryRows:
    """Sorted rows in a temporary file without a name. `written` says, for each part, where its chunks are."""

    def __init__(self, bytes_max: int) -> None:
        self._chunk_bytes = max(bytes_max // _CHUNKS, 1)
        self._file: IO[bytes] | None = None
        self.written: list[list[tuple[int, int]]] = []

    def __enter__(self) -> "_TemporaryRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, rows: pa.Table) -> None:
        """Writes one sorted part as chunks of similar size."""
        chunk_rows = max(rows.num_rows * self._chunk_bytes // max(rows.nbytes, 1), 1)
        try:
            self.written.append(
                [self._write(rows.slice(start, chunk_rows)) for start in range(0, rows.num_rows, chunk_rows)]
            )
        except OSError as error:
            folder = tempfile.gettempdir()
            raise ChangelogError(
                Kind.STORAGE,
                f"cannot write a temporary file to sort the archive's rows in {folder}: {error.strerror}",
                hint="free space there, or name another folder in the environment variable TMPDIR",
            ) from error

    def _write(self, rows: pa.Table) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="changelog-", buffering=0)  # noqa: SIM115 - `__exit__` closes it
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, SCHEMA, options=_COMPRESSED) as writer:
            writer.write_table(rows)
        content = memoryview(out.getvalue())
        start = self._file.tell()
        while content:
            content = content[self._file.write(content) :]
        return start, self._file.tell() - start

    def read(self, chunk: tuple[int, int]) -> pa.Table:
        """Reads a chunk that `write` wrote."""
        assert self._file is not None
        start, size = chunk
        return pa.ipc.open_stream(os.pread(self._file.fileno(), size, start)).read_all()


@dataclass(slots=True)
class _Part:
    """A sorted part that is being merged.

    `chunks` says where in the temporary file the chunks are that have not been read. `rows` is the chunk that was read
    last, and `places` has the position and the partition of each of its rows. The rows before `next_index` are merged
    already.
    """

    source: _TemporaryRows
    chunks: list[tuple[int, int]]
    rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    places: list[tuple[str, int]] = field(default_factory=list)
    next_index: int = 0

    def advance(self) -> bool:
        """Reads the next chunk if the current one is merged; returns False at the end of the part."""
        if self.next_index < len(self.places):
            return True
        if not self.chunks:
            return False
        self.rows = self.source.read(self.chunks.pop(0))
        columns = (self.rows.column(name).to_pylist() for name in ("position", "partition"))
        self.places, self.next_index = list(zip(*columns, strict=True)), 0
        return True

    def take(self, last: tuple[str, int]) -> pa.Table:
        """Returns the chunk's next rows up to `last` (a position and a partition), and counts them as merged."""
        start, self.next_index = self.next_index, bisect_right(self.places, last, self.next_index)
        return self.rows.slice(start, self.next_index - start)


def _merged(parts: list[_Part]) -> Iterator[pa.Table]:
    """Merges sorted parts.

    Each part has a current chunk. This function compares the last rows of these chunks. All rows up to the earliest of
    the last rows are in the current chunks, so the function can sort and yield them. Then at least one chunk is used
    up, and the part that it belongs to reads its next chunk.
    """
    while parts := [part for part in parts if part.advance()]:
        last = min(part.places[-1] for part in parts)
        yield _sorted([rows for part in parts for rows in part.take(last).to_batches()])
