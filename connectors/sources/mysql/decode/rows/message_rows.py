"""Reads the messages that others send to the service: rows that they insert into the tables of stamps and signals."""

from collections.abc import Iterator
from functools import lru_cache

from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.events import RowsEvent, TableMap
from changelog.connectors.sources.mysql.decode.events.table_maps.table_description import describe
from changelog.connectors.sources.mysql.decode.rows.row_images import images

_NUMBER, _CONTENT = "id", "content"


def message_rows(table_map: TableMap, event: RowsEvent) -> Iterator[tuple[int, bytes]]:
    """Yields the number (`id`) and the text (`content`) of each row; nothing if the table lacks either column."""
    places = _places(table_map.body, table_map.dialect)
    if places is None:
        return
    for _, after in images(table_map, event):
        number, content = (None if after is None else after[place] for place in places)
        if isinstance(content, memoryview) and isinstance(number, memoryview):
            yield int.from_bytes(number, "little"), bytes(content)


@lru_cache(maxsize=64)
def _places(body: bytes, dialect: Dialect) -> tuple[int, int] | None:
    """Returns where the two columns are in a table whose description is `body`; None if the table lacks one of them."""
    names = [column.name for column in describe(body, dialect).columns or ()]
    return (names.index(_NUMBER), names.index(_CONTENT)) if {_NUMBER, _CONTENT} <= {*names} else None
