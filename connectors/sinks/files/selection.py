"""Says which rows a reader wants, and which parts of a file cannot hold such rows.

A reader skips a file of the archive if the manifest shows that the file cannot hold such rows. It skips a row group of
a Parquet file if the group's statistics or Bloom filters show this.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks.files.manifest import ArchiveFile
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.position import Position


def texts(values: Sequence[str]) -> pa.StringArray:
    """Returns an Arrow array of these texts.

    `pyarrow.array` is not used, because it imports pandas if pandas is installed, and this import takes longer than a
    search for a key.
    """
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


_SCHEMAS = texts([SCHEMAS])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows that a reader asked for. Without `entities`, these may be rows of every entity but `schemas`.

    If `ordered` is True, the rows are sorted by their positions. Otherwise, archived rows come file by file, in the
    order in which the manifest lists the files. If `trusts_key_ranges` is False, a file is searched even if `key` is
    outside the range of keys that the manifest has for the file.
    """

    entities: Sequence[str] | None = None
    key: str | None = None
    after: Position | None = None
    identifier: str | None = None
    ordered: bool = True
    trusts_key_ranges: bool = True

    @property
    def is_rare(self) -> bool:
        """Whether few rows of a file are selected. If so, a reader looks for them before it reads whole rows."""
        return self.key is not None or self.identifier is not None

    def columns(self) -> list[str]:
        """Returns the names of the columns that decide whether a row is selected."""
        values = {"key": self.key, "position": self.after, "identifier": self.identifier}
        return ["entity", *(name for name, value in values.items() if value is not None)]

    def may_be_in_file(self, file: ArchiveFile) -> bool:
        """Returns False if the manifest's entry of a file shows that the file holds no selected row."""
        if self.entities is not None and file.entity not in self.entities:
            return False
        if self.after is not None and file.last <= str(self.after):
            return False
        if self.key is None or file.keys is None or not self.trusts_key_ranges:
            return True
        return file.keys[0] <= self.key <= file.keys[1]

    def may_be_in_group(self, group: Any, may_hold: Callable[[Any, str], bool]) -> bool:
        """Returns False if the metadata of a row group shows that the group holds no selected row.

        `may_hold` takes a column's metadata and a value, and tests the value with the column's Bloom filter.
        """
        if self.entities is not None and not any(_is_within(_column(group, "entity"), name) for name in self.entities):
            return False
        if self.after is not None and not _is_after(_column(group, "position"), self.after):
            return False
        if self.key is not None and not _is_within(_column(group, "key"), self.key):
            return False
        return all(may_hold(_column(group, name), value) for name, value in self._texts())

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray | None:
        """Returns a mask that is true for the selected rows, None if all rows are selected."""
        tests = [pc.equal(rows.column(name), texts([value])[0]) for name, value in self._texts()]
        if self.entities is not None:
            tests.append(pc.is_in(rows.column("entity"), texts(self.entities)))
        elif pc.index(rows.column("entity"), _SCHEMAS).as_py() >= 0:
            tests.append(pc.not_equal(rows.column("entity"), _SCHEMAS))
        if self.after is not None:
            tests.append(pc.greater(rows.column("position"), texts([str(self.after)])[0]))
        return reduce(pc.and_, tests) if tests else None

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yields each column that must have a certain value in a selected row, with that value."""
        if self.key is not None:
            yield "key", self.key
        if self.identifier is not None:
            yield "identifier", self.identifier


_INDEXES = {name: index for index, name in enumerate(SCHEMA.names)}


def _column(group: Any, name: str) -> Any:
    return group.column(_INDEXES[name])


def _bounds(column: Any) -> tuple[str, str] | None:
    """Returns the least and the greatest value of a column of a row group, None if the file does not have them."""
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics and statistics.has_min_max else None


def _is_within(column: Any, value: str) -> bool:
    bounds = _bounds(column)
    return bounds is None or bounds[0] <= value <= bounds[1]


def _is_after(column: Any, position: Position) -> bool:
    bounds = _bounds(column)
    return bounds is None or bounds[1] > str(position)
