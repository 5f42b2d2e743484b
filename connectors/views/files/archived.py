"""Finds changes in the files of an archive."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks.files.bloom import bloom_filters
from changelog.connectors.sinks.files.manifest import ArchiveFile
from changelog.connectors.sinks.files.selection import Selection
from changelog.connectors.views.files.row_groups import RowGroups

_KEY = 2
"""The index of the column `key` in the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRows:
    """The archived changes of one entity: its `files`, in the folder `path`."""

    path: Path
    files: Sequence[ArchiveFile]
    groups: RowGroups

    def batches_of(self, key: str) -> Iterator[tuple[Sequence[pa.RecordBatch], str]]:
        """Yields, for each file with changes of the key, these changes and a position. No file that follows has a
        change after this position.

        The files with the newest changes come first. But the ranges of positions of two files may overlap, so the next
        file can have changes that are newer than some of these. If no file follows, the position is an empty text.
        """
        selection = Selection(key=key)
        files = sorted(filter(selection.may_be_in_file, self.files), key=lambda file: file.last, reverse=True)
        ends = [*(file.last for file in files[1:]), ""]
        for file, end in zip(files, ends, strict=False):
            if batches := list(self._search(self.path / file.path, selection, key)):
                yield batches, end

    def keys_from(self, begin: str) -> Iterator[str]:
        """Yields the keys from `begin` on in ascending order; a key may come several times.

        A file is opened only when its first key may be the next one.
        """
        unopened = sorted(
            (max(file.keys[0], begin) if file.keys else begin, file.path)
            for file in self.files
            if file.keys is None or file.keys[1] >= begin
        )
        heap: list[tuple[str, str, Iterator[str]]] = []
        while unopened or heap:
            while unopened and (not heap or unopened[0][0] <= heap[0][0]):
                path = unopened.pop(0)[1]
                _push(heap, path, self._keys_of_file(self.path / path, begin))
            if heap:
                key, path, rest = heapq.heappop(heap)
                yield key
                _push(heap, path, rest)

    def _search(self, file: Path, selection: Selection, key: str) -> Iterator[pa.RecordBatch]:
        footer = self.groups.footer(file)
        with bloom_filters(file) as filters:
            for group in range(footer.num_row_groups):
                if selection.may_be_in_group(footer.row_group(group), filters.may_hold):
                    rows = self.groups.read(file, group)
                    selected = rows.filter(pc.equal(rows.column("key"), key))
                    if len(selected):
                        yield selected

    def _keys_of_file(self, file: Path, begin: str) -> Iterator[str]:
        footer = self.groups.footer(file)
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(_KEY).statistics
            if statistics is None or not statistics.has_min_max or statistics.max >= begin:
                keys = pc.unique(self.groups.read(file, group).column("key"))
                yield from keys.filter(pc.greater_equal(keys, begin)).to_pylist()


def _push(heap: list[tuple[str, str, Any]], path: str, keys: Iterator[str]) -> None:
    key = next(keys, None)
    if key is not None:
        heapq.heappush(heap, (key, path, keys))
