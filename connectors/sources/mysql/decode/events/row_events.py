"""Decodes table maps, and the fixed part of events with rows.

Source: MySQL's `rows_event.h`, classes `Table_map_event` and `Rows_event`; MariaDB's `log_event.h`.
"""

from collections.abc import Callable

from changelog.connectors.sources.mysql.decode.events.compressed import inflate
from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.events import Operation, RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.events.header import Header
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import read_names

_TABLE_ID_BYTES = 6


def table_map(cursor: Cursor, header: Header, dialect: Dialect) -> TableMap:
    """Decodes the names of a TABLE_MAP; `TableMap.description` decodes its columns."""
    table_id, flags = cursor.number(_TABLE_ID_BYTES), cursor.number(2)
    body = bytes(cursor.data[cursor.at : cursor.end])
    schema, table = read_names(cursor)
    cursor.skip(cursor.left)
    return TableMap(
        header=header,
        table_id=table_id,
        flags=flags,
        schema=schema,
        table=table,
        body=body,
        dialect=dialect,
    )


def rows(
    operation: Operation, *, extra: bool = False, partial: bool = False, compressed: bool = False
) -> Callable[[Cursor, Header], RowsEvent]:
    """Returns the decoder of a type of event with rows.

    `extra` says that events of the type have extra data before the number of columns. Only the types whose names end
    with `V1` have none.
    """

    def decode(cursor: Cursor, header: Header) -> RowsEvent:
        table_id, flags = cursor.number(_TABLE_ID_BYTES), cursor.number(2)
        if extra:
            _skip_extra_data(cursor)
        width = cursor.length()
        before = None if operation is Operation.INSERT else _bitmap(cursor, width)
        after = None if operation is Operation.DELETE else _bitmap(cursor, width)
        offset = cursor.at
        return RowsEvent(
            header=header,
            table_id=table_id,
            operation=operation,
            flags=flags,
            width=width,
            before=before,
            after=after,
            partial=partial,
            body=memoryview(inflate(cursor)) if compressed else _rest(cursor),
            offset=offset,
        )

    return decode


def _skip_extra_data(cursor: Cursor) -> None:
    """Skips the extra data. It begins with its size in two bytes, and this size counts the two bytes too."""
    begin = cursor.at
    size = cursor.number(2)
    if size < 2:
        raise cursor.malformed(f"an invalid size of extra data, {size}", begin)
    cursor.skip(size - 2)


def _rest(cursor: Cursor) -> memoryview:
    begin = cursor.skip(cursor.left)
    return memoryview(cursor.data)[begin : cursor.end]


def _bitmap(cursor: Cursor, width: int) -> bytes:
    """Reads a bit for each column. The server sets the unused bits of the last byte; here they become 0."""
    bitmap = cursor.take((width + 7) // 8)
    unused = -width % 8
    return bitmap[:-1] + bytes([bitmap[-1] & 0xFF >> unused]) if unused else bitmap
