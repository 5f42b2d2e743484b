"""Reads the events of MongoDB. They contain documents, as JSON text, where other databases have rows.

A document becomes a row of two columns: `id`, which is the `_id` of the document, and `document`, which is the whole
document. Both columns are JSON. An update may come without the document; then the column `document` is unavailable.
https://debezium.io/documentation/reference/stable/connectors/mongodb.html
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.decode.events import Row
from changelog.connectors.sources.debezium.decode.layouts import Layout, Layouts, Name, TableRows
from changelog.envelope.connect.schema import ConnectSchema

CONNECTOR: Final = "mongodb"
KEY: Final = ("id",)

_DOCUMENT: Final = ConnectSchema(type="string", name="io.debezium.data.Json", optional=True)
_strings: Final = msgspec.json.Decoder(str)


class _Id(msgspec.Struct):
    id: Raw = msgspec.field(name="_id")


_ids: Final = msgspec.json.Decoder(_Id)


class Documents:
    """Reads documents. `layouts` describes the collections."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts

    def rows(self, layout: Layout, name: Name) -> TableRows:
        """Returns the description of the table that stands for a collection."""
        fields: Callable[[], Any] = lambda: [("id", _DOCUMENT), ("document", _DOCUMENT)]  # noqa: E731
        return self._layouts.rows(layout, name, KEY, CONNECTOR, (), fields)

    @staticmethod
    def row(document: Any) -> Row:
        """Returns the row of a document. `document` is the document's text, or that text as a JSON string (`Raw`).

        Raises ValueError.
        """
        text = (_strings.decode(document) if isinstance(document, Raw) else document).encode()
        return bytes(_ids.decode(text).id), text

    @staticmethod
    def unknown(key: tuple[Value, ...]) -> Row | None:
        """Returns the row of a document if only its key is known; None if the message has no key."""
        return (key[0], UNCHANGED) if key else None
