"""Reads flat rows, as the transformation ExtractNewRecordState makes them from events.

The transformation keeps the row and drops the rest of the event. Its settings can name facts that it then adds as
fields of the row, or as headers: `add.fields = op,source.ts_ms` adds `__op` and `__source_ts_ms`. It can also be set to
turn a delete into a row, with the values that were deleted; the field `__deleted` marks such a row.
https://debezium.io/documentation/reference/stable/transformations/event-flattening.html
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.facts import SourceBlock, table_of
from changelog.connectors.sources.debezium.decode.layouts import Layout, Name
from changelog.envelope.connect.schema import ConnectSchema

DELETED: Final = "__deleted"
"""The field of rewritten deletes; no setting changes its name."""

_SOURCE: Final = "source_"
_FIELDS: Final = frozenset(SourceBlock.__struct_fields__)
_OTHERS: Final = (
    frozenset({"status", "id", "event_count"}),
    frozenset({"op", "source", "message"}),
    frozenset({"ddl"}),
)
"""The kinds of messages that the transformation leaves as they are: those about transactions and tables, and logical
messages. Each kind has a set of members here. A message that has all members of a set is of that kind.
"""

_members: Final = msgspec.json.Decoder(dict[str, Raw])
_values: Final = msgspec.json.Decoder()


class FlatRow(msgspec.Struct):
    """A flat row. `members` has the values of its columns. `added` has the facts that the transformation added; their
    names are without the prefix.

    `members` is None if the message has no row. `fields` has the schemas of the row's columns, if the message has a
    schema.
    """

    members: dict[str, Any] | None
    added: dict[str, Any]
    fields: Sequence[tuple[str, ConnectSchema]] | None

    @property
    def op(self) -> str:
        """The operation: `d` for a delete. A message that names no operation is a `u`, which may also create a row."""
        op = self.added.get("op")
        if self.members is None or str(self.added.get("deleted", "")).lower() == "true":
            return "d"
        return op if isinstance(op, str) else "u"

    def source(self) -> SourceBlock:
        """Returns what the message says about its source. Raises msgspec.ValidationError."""
        members = {name: self.added[name] for name in _FIELDS if name in self.added and not name.startswith("ts_")}
        for name, value in self.added.items():
            member = name.removeprefix(_SOURCE)
            if member != name and member in _FIELDS:
                members[member] = value
        if not any(name.startswith("ts_") for name in members):
            members |= {name: self.added[name] for name in ("ts_ms", "ts_us", "ts_ns") if name in self.added}
        return msgspec.convert(
            {name: value for name, value in members.items() if value is not None}, SourceBlock, strict=False
        )

    def table(self, source: SourceBlock, topic: str) -> Name:
        """Returns the table. If the message names no table, the topic `prefix.schema.table` gives the table's schema
        and name. If the message names the table without its schema, the topic gives the schema.
        """
        name = table_of(source)
        if name is not None and name[0]:
            return name
        *_, schema, table = ("", *topic.split("."))
        return (schema, table) if name is None else (schema, name[1])


class FlatRows:
    """Separates rows from what the transformation added.

    `prefix` is the prefix of added fields and headers; `connector` is the connector of rows that do not name one.
    """

    def __init__(self, prefix: str, connector: str) -> None:
        self._prefix, self._connector = prefix, connector

    def is_other(self, members: Mapping[str, Any]) -> bool:
        """Returns whether a message is not a row, but one that the transformation left as it is (or a heartbeat)."""
        return any(names <= members.keys() for names in _OTHERS) or members.keys() == {"ts_ms"}

    def read(self, message: SourceRecord, layout: Layout | None, members: dict[str, Any] | None) -> FlatRow:
        """Returns the row of a message. `members` are JSON or values of Avro; None if the message has no value."""
        added: dict[str, Any] = {"connector": self._connector}
        added |= {
            self._name(name): _header(content)
            for name, content in message.headers
            if name.startswith(self._prefix) and content is not None
        }
        if members is None:
            return FlatRow(members=None, added=added, fields=None)
        names = [name for name in members if self._is_added(name)]
        for name in names:
            value = members.pop(name)
            added[self._name(name)] = _values.decode(value) if isinstance(value, Raw) else value
        schema = None if layout is None else layout.schema
        fields = (
            None if schema is None else [(name, inner) for name, inner in schema.fields if not self._is_added(name)]
        )
        return FlatRow(members=members, added=added, fields=fields)

    def _is_added(self, name: str) -> bool:
        if name == DELETED:
            return True
        if self._prefix:
            return name.startswith(self._prefix)
        return name == "op" or name.startswith(_SOURCE) or name in _FIELDS

    def _name(self, name: str) -> str:
        return "deleted" if name == DELETED else name.removeprefix(self._prefix)


def members_of(payload: Any) -> dict[str, Any] | None:
    """Returns the members of a message's value; None for a null. Raises msgspec.DecodeError or ValueError."""
    if isinstance(payload, dict):
        return dict(payload)
    return None if payload is None or bytes(payload) == b"null" else _members.decode(payload)


def _header(content: bytes) -> Any:
    """Returns the value of a header. Its content is JSON, or text from Connect's SimpleHeaderConverter."""
    try:
        value = _values.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content.decode("utf-8", "replace")
    return value["payload"] if isinstance(value, dict) and "payload" in value else value
