"""Reads the messages to the service in rows that were inserted into the tables of stamps and signals."""

from collections.abc import Iterator

from changelog.connectors.sources.mysql.decode.events.events import Rows, TableMap
from changelog.connectors.sources.mysql.decode.rows.row_images import images

_NUMBER, _CONTENT = "id", "content"


def message_rows(table_map: TableMap, event: Rows) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the text of each row; none if the table lacks their columns, `id` and `content`."""
    places = {column.name: place for place, column in enumerate(table_map.columns or ())}
    if not {_NUMBER, _CONTENT} <= places.keys():
        return
    for _, after in images(table_map, event):
        number, content = (None if after is None else after[places[name]] for name in (_NUMBER, _CONTENT))
        if isinstance(content, memoryview) and isinstance(number, memoryview):
            yield int.from_bytes(number, "little"), bytes(content)
