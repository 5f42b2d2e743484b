"""Reads the keys of Debezium's messages, in JSON or in Avro."""

from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode.avro.messages import AvroReader, Headers
from changelog.connectors.sources.debezium.decode.events import Row, SourceRecord
from changelog.connectors.sources.debezium.decode.json_messages import MEMBER, JsonSplitter, check_utf8
from changelog.connectors.sources.debezium.decode.layouts import Layout, Layouts, TableRows
from changelog.connectors.sources.debezium.decode.tables import UNFIT, RowsReader, unfit

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_raws: Final = msgspec.json.Decoder(Raw)


class Key(msgspec.Struct, frozen=True, gc=False):
    """The key of a message: the names of its fields, and their values as they arrived.

    `own` reads the values if the key has a schema of its own. Otherwise the values have the types of the table's
    columns.
    """

    names: tuple[str, ...]
    content: Any
    own: RowsReader | None

    def values(self, rows: TableRows) -> Row:
        """Returns the values of the key, in the order of `names`. Raises ChangelogError (MALFORMED)."""
        if self.own is not None:
            return self.own.read(self.content)
        values: list[Value] = []
        for name, token in self.content.items():
            try:
                values.append(rows.rows.converters[name](bytes(token)))
            except UNFIT:
                raise unfit(name) from None
        return tuple(values)


def _is_plain(content: bytes) -> bool:
    """Returns whether `content`, if it is JSON at all, is certainly an object without a schema."""
    return content[:1] == b"{" and MEMBER not in content and content.isascii()


NO_KEY: Final = Key((), {}, None)


class KeyReader:
    """Reads keys, in JSON with or without a schema, or in Avro."""

    def __init__(self, json: JsonSplitter, avro: AvroReader, layouts: Layouts) -> None:
        self._json, self._avro, self._layouts = json, avro, layouts
        self._readers: dict[int, tuple[Layout, tuple[str, ...], RowsReader]] = {}

    def read(self, message: SourceRecord) -> Key:
        """Returns the key of a message. If the message has no key, or one that is not an object, returns `NO_KEY`."""
        content, schema = message.key, message.key_schema
        if schema is None:
            return self._read(message.topic, content, message.headers)
        if not content or content[:1] != b"{":
            return NO_KEY
        check_utf8(content)
        return self._of_record(self._json.layout(schema), content)

    def _read(self, topic: str, content: bytes | None, headers: Headers) -> Key:
        if not content:
            return NO_KEY
        if _is_plain(content):
            members = _members.decode(content)
            return Key(tuple(members), members, None)
        if self._avro.has(content, headers, "key"):
            layout, payload = self._avro.read(content, headers, "key")
            is_record = isinstance(payload, dict)
        else:
            check_utf8(content)
            layout, payload = self._json.split(f"key of {topic}", content, _raws.decode)
            is_record = bytes(payload)[:1] == b"{"
        return self._of_record(layout, payload) if is_record else NO_KEY

    def _of_record(self, layout: Layout, payload: Any) -> Key:
        if layout.schema is None:
            members = _members.decode(payload)
            return Key(tuple(members), members, None)
        names, rows = self._reader(layout)
        return Key(names, payload, rows)

    def document(self, key: Key) -> Key:
        """Returns the key of a MongoDB document with each value as a JSON token, because the column `id` is JSON. A key
        without a schema already has such tokens, and is returned as it is.
        """
        if key.own is None:
            return key
        content = key.content
        members = content if isinstance(content, dict) else _members.decode(content)
        tokens = {
            name: value if isinstance(value, Raw) else msgspec.json.encode(value) for name, value in members.items()
        }
        return Key(key.names, tokens, None)

    def in_header(self, topic: str, content: bytes | None) -> Key:
        """Returns the key in a header; `NO_KEY` if the header's converter wrote neither JSON nor Avro."""
        try:
            return self._read(f"header of {topic}", content, ())
        except (msgspec.DecodeError, UnicodeDecodeError):
            return NO_KEY

    def _reader(self, layout: Layout) -> tuple[tuple[str, ...], RowsReader]:
        reader = self._readers.get(id(layout))
        if reader is None:
            assert layout.schema is not None
            columns = self._layouts.columns(("", ""), layout.schema.fields, "")
            names = tuple(column.name for column in columns)
            reader = self._readers[id(layout)] = (layout, names, RowsReader(columns, self._layouts.placeholders))
        return reader[1], reader[2]
