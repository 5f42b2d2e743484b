"""Splits the rows of an event into the raw bytes of each value. `row_layout` does the same faster, for usual rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from changelog.connectors.capture.rows.row_change import UNCHANGED, Unchanged
from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import describe
from changelog.connectors.sources.mysql.decode.rows.value_framing import Framing, framing
from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialJson:
    """What changed in a JSON value. To get the new value, the `diffs` are applied to the old one, one after another."""

    diffs: memoryview


RawValue = memoryview | PartialJson | Unchanged | None
"""A value as it is stored, without its length; None for NULL, and `UNCHANGED` for a column that the event lacks."""

Image = tuple[RawValue, ...]
"""A row: one value for each column of the table map."""


def images(table_map: TableMap, rows: RowsEvent) -> Iterator[tuple[Image | None, Image | None]]:
    """Yields the old and the new row of each change; None where an insert has no old row, or a delete no new row.

    `rows` must have the table id of `table_map`, and must belong to the same statement. The values are views of the
    event's packet, which stays in memory as long as they do. If only defaults are inserted, and `binlog_row_image` is
    MINIMAL, the rows in the log have no column at all. Then the log does not say how many rows there were, and this
    function yields one change.

    Raises ChangelogError: MALFORMED, with the offset in the event's rows, if the rows cannot be read; PRECONDITION if
    the table map has no names of columns.
    """
    columns = table_map.columns
    if columns is None:
        raise ChangelogError(
            Kind.PRECONDITION,
            f"the binary log has no names of the columns of the table {table_map.schema}.{table_map.table}",
            hint="SET GLOBAL binlog_row_metadata = FULL",
        )
    cursor = Cursor(rows.body, what="event's rows")
    if rows.width != len(columns):
        raise cursor.malformed(f"rows of {rows.width} columns for a table of {len(columns)}")
    body, dialect = table_map.body, table_map.dialect
    before = None if rows.before is None else _reader(body, dialect, rows.before, partial=False)
    after = None if rows.after is None else _reader(body, dialect, rows.after, partial=rows.partial)
    while True:
        begin = cursor.at
        yield before.read(cursor) if before else None, after.read(cursor) if after else None
        if not cursor.left:
            return
        if cursor.at == begin:
            raise cursor.malformed(f"{cursor.left} bytes for rows without columns")


_PARTIAL_JSON = 1
_DIFFS = Framing(prefix=4)


@lru_cache(maxsize=256)
def _reader(body: bytes, dialect: Dialect, bitmap: bytes, *, partial: bool) -> "_Reader":
    """Returns the reader for rows of a table whose description is `body`, with the columns in `bitmap`."""
    return _Reader(describe(body, dialect).columns or (), bitmap, partial=partial)


class _Reader:
    """Reads rows that contain the columns of one bitmap."""

    def __init__(self, columns: Sequence[LogColumn], bitmap: bytes, *, partial: bool) -> None:
        present = int.from_bytes(bitmap, "little")
        self._present = [(index, framing(column)) for index, column in enumerate(columns) if present >> index & 1]
        self._json = [index for index, column in enumerate(columns) if column.type == TypeCode.JSON]
        self._width, self._partial = len(columns), partial

    def read(self, cursor: Cursor) -> Image:
        diffs = self._columns_with_diffs(cursor) if self._partial else ()
        nulls = cursor.number((len(self._present) + 7) // 8)
        image: list[RawValue] = [UNCHANGED] * self._width
        view, at = memoryview(cursor.data), cursor.at
        for position, (index, frame) in enumerate(self._present):
            if nulls >> position & 1:
                image[index] = None
                continue
            form = _DIFFS if index in diffs else frame
            begin = at + form.prefix
            end = begin + (int.from_bytes(view[at:begin], "little") if form.prefix else form.size)
            if end > cursor.end:
                cursor.at = at
                cursor.skip(cursor.number(form.prefix) if form.prefix else form.size)  # raises the error
            value, at = view[begin:end], end
            image[index] = PartialJson(diffs=value) if form is _DIFFS else value
        cursor.at = at
        return tuple(image)

    def _columns_with_diffs(self, cursor: Cursor) -> Sequence[int]:
        """Reads which columns have diffs: a bit for each JSON column of the table, even if the row lacks the column."""
        begin = cursor.at
        options = cursor.length()
        if options & ~_PARTIAL_JSON:
            raise cursor.malformed(f"the unknown options {options:#x} of a row", begin)
        if not options:
            return ()
        bits = cursor.number((len(self._json) + 7) // 8)
        return [index for position, index in enumerate(self._json) if bits >> position & 1]
