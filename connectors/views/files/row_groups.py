"""Reads row groups of Parquet files, and keeps in memory those that were used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.sinks.files.layout import NotWholeError, opened

GROUPS_BYTES = 256 << 20
"""How many bytes of row groups are kept at most. A larger row group is read again for each request."""

FOOTERS_MAX = 256
"""How many footers are kept at most. The footer of a large file takes about a megabyte."""

READ_COLUMNS = ("key", "position", "op", "committed_at", "provenance", "service_name", "current")
"""The columns that are read from a row group. The state of a row is made from them."""

DAMAGED = "restore the file from a copy"

_Name = TypeVar("_Name")
_Content = TypeVar("_Content")


class RecentlyUsed(Generic[_Name, _Content]):
    """Keeps the contents that were used last. Their sizes add up to at most `most`. `size` returns the size of a
    content, by default 1.

    Any thread may use this object. Two threads that need the same content at once may both make it.
    """

    def __init__(self, most: int, size: Callable[[_Content], int] = lambda _: 1) -> None:
        self._most, self._size, self._total = most, size, 0
        self._contents: OrderedDict[_Name, _Content] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: _Name, make: Callable[[], _Content]) -> _Content:
        """Returns the content with this name. If it is not kept, `make` makes it."""
        with self._lock:
            if name in self._contents:
                self._contents.move_to_end(name)
                return self._contents[name]
        content = make()
        with self._lock:
            if name not in self._contents:
                self._contents[name] = content
                self._total += self._size(content)
            while self._total > self._most:
                _, oldest = self._contents.popitem(last=False)
                self._total -= self._size(oldest)
        return content


class RowGroups:
    """The row groups and footers of the files of one changelog. Files are never changed, only removed."""

    def __init__(self) -> None:
        self._groups: RecentlyUsed[tuple[Path, int], pa.RecordBatch] = RecentlyUsed(
            GROUPS_BYTES, lambda rows: int(rows.nbytes)
        )
        self._footers: RecentlyUsed[Path, Any] = RecentlyUsed(FOOTERS_MAX)

    def footer(self, file: Path) -> Any:
        """Returns the Parquet metadata of a file. Raises the errors of `read`."""
        return self._footers.get(file, lambda: _footer(file))

    def read(self, file: Path, group: int) -> pa.RecordBatch:
        """Returns `READ_COLUMNS` of a row group.

        Raises ChangelogError: MALFORMED if the file is damaged, STORAGE if it cannot be read.
        """
        return self._groups.get((file, group), lambda: _group(file, group, self.footer(file)))


def read_columns(file: Path, columns: Sequence[str]) -> list[pa.RecordBatch]:
    """Returns these columns of a file, with a batch for each row group. Raises the errors of `RowGroups.read`."""
    try:
        with opened(file, page_checksum_verification=True, pre_buffer=False) as parquet:
            return [_of_group(parquet, group, columns) for group in range(parquet.metadata.num_row_groups)]
    except NotWholeError as damage:
        raise damage.error(DAMAGED) from damage


def _footer(file: Path) -> Any:
    try:
        with opened(file) as parquet:
            return parquet.metadata
    except NotWholeError as damage:
        raise damage.error(DAMAGED) from damage


def _group(file: Path, group: int, footer: Any) -> pa.RecordBatch:
    try:
        with opened(file, metadata=footer, page_checksum_verification=True, pre_buffer=False) as parquet:
            return _of_group(parquet, group, READ_COLUMNS)
    except NotWholeError as damage:
        raise damage.error(DAMAGED) from damage


def _of_group(parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.RecordBatch:
    table = parquet.read_row_group(group, columns=list(columns), use_threads=False).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
