"""Translates Debezium's messages to the events that the module `events` defines. The module is pure: it does no I/O.

`docs/reference/debezium-events.md` says what each kind of message becomes.
https://debezium.io/documentation/reference/stable/connectors/index.html
"""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw

from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode import schemas
from changelog.connectors.sources.debezium.decode.avro.messages import AvroReader, payload_of
from changelog.connectors.sources.debezium.decode.cloud_events import CloudEvent, cloud_events
from changelog.connectors.sources.debezium.decode.documents import CONNECTOR as DOCUMENTS
from changelog.connectors.sources.debezium.decode.documents import Documents
from changelog.connectors.sources.debezium.decode.events import (
    Boundary,
    Changed,
    Emitted,
    Event,
    EventFacts,
    IgnoredRecord,
    Row,
    RowsTruncated,
    SourceRecord,
)
from changelog.connectors.sources.debezium.decode.facts import SourceBlock, facts_of, table_of, transaction_id
from changelog.connectors.sources.debezium.decode.json_messages import JsonSplitter, check_utf8
from changelog.connectors.sources.debezium.decode.keys import Key, KeyReader
from changelog.connectors.sources.debezium.decode.layouts import Layout, Layouts, Name, TableRows
from changelog.connectors.sources.debezium.decode.payloads import NULL, Payload, payloads
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import UNFIT
from changelog.connectors.sources.debezium.decode.unwrapped import FlatRow, FlatRows, members_of
from changelog.connectors.sources.debezium.values.declared_types import ENCODINGS
from changelog.envelope.errors import ChangelogError, Kind

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
"""If a row's key changes, Debezium sends a delete with the header `NEW_KEY`, and then a create with `OLD_KEY`."""

Op = Literal["c", "u", "d", "r"]
_OPS: Final[dict[str, Op]] = {"c": "c", "i": "c", "u": "u", "d": "d", "r": "r"}

_raws: Final = msgspec.json.Decoder(Raw)
_members: Final = msgspec.json.Decoder(dict[str, Raw])


class Translator:
    """Translates messages. It remembers schemas between messages, but the result does not depend on earlier messages.

    There is one exception: the tombstone of a flat row names no table, so it gets the table of the topic's last row.
    """

    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._layouts = Layouts(settings)
        self._json, self._avro = JsonSplitter(), AvroReader(settings.schema_of, settings.id_bytes)
        self._keys = KeyReader(self._json, self._avro, self._layouts)
        self._documents = Documents(self._layouts)
        self._flat_rows = FlatRows(settings.added_prefix, settings.connector)
        self._last_flat: dict[str, TableRows] = {}

    def translate(self, messages: Sequence[SourceRecord]) -> list[Event]:
        """Returns the event of each message.

        Raises ChangelogError: MALFORMED, with the topic, if a message is not an event of Debezium; PRECONDITION if a
        column has no type; and what `TranslationSettings.schema_of` raises.
        """
        return [self._translated(message) for message in messages]

    def _translated(self, message: SourceRecord) -> Event:
        try:
            return self._unwrapped(message) if self._settings.unwrapped else self._event(message)
        except ChangelogError as error:
            if error.kind is not Kind.MALFORMED:
                raise
            raise _malformed(message.topic, error.message) from None
        except (msgspec.DecodeError, *UNFIT):
            raise _malformed(message.topic, "Debezium writes no messages of this form") from None

    def _event(self, message: SourceRecord) -> Event:
        content = message.value
        if not content or content == b"null":
            return IgnoredRecord(reason="tombstone")
        if message.value_schema is not None:
            check_utf8(content)
            return self._of_payload(message, self._json.layout(message.value_schema), payloads.decode(content))
        if self._avro.has(content, message.headers, "value"):
            return self._of_payload(message, *self._avro.event(content, message.headers))
        check_utf8(content)
        try:
            layout, payload = self._json.split(message.topic, content, payloads.decode)
        except msgspec.ValidationError:
            return self._without_payload(message, content)
        return self._of_payload(message, layout, payload)

    def _without_payload(self, message: SourceRecord, content: bytes) -> Event:
        """Translates a message that lacks the members of an event: a null with a schema, or a CloudEvent."""
        layout, payload = self._json.split(message.topic, content, _raws.decode)
        if bytes(payload) == b"null" and layout.schema is not None:
            return IgnoredRecord(reason="tombstone")
        event = cloud_events.decode(payload)
        if bytes(event.data)[:1] == b'"':
            content = b64decode(msgspec.json.decode(event.data), validate=True)
            layout, value = self._avro.read(content, message.headers, "value")
            return self._of_payload(message, layout, _of_cloud(event, payload_of(value)))
        layout, data = self._json.split(f"data of {message.topic}", bytes(event.data), payloads.decode)
        return self._of_payload(message, layout, _of_cloud(event, data))

    def _of_payload(self, message: SourceRecord, layout: Layout, payload: Payload) -> Event:
        op = payload.op
        if op is None:
            return _without_op(payload)
        source = payload.source
        if source is None:
            raise ValueError("an event without the block source")
        facts = facts_of(source, payload.transaction, message.timestamp_ms)
        if op in _OPS:
            return self._changed(message, layout, payload, source, facts)
        if op == "m":
            return self._emitted(layout, payload, facts)
        if op == "t":
            return RowsTruncated(name=_table(source), facts=facts)
        raise ValueError("an unknown operation")

    def _changed(
        self, message: SourceRecord, layout: Layout, payload: Payload, source: SourceBlock, facts: EventFacts
    ) -> Event:
        name = _table(source)
        if self._is_other(name):
            return IgnoredRecord(reason="other table")
        assert payload.op is not None
        op = _OPS[payload.op]
        key = self._keys.read(message)
        if source.connector == DOCUMENTS:
            rows, key = self._documents.rows(layout, name), self._keys.document(key)
            before, after = (None if side == NULL else self._documents.row(side) for side in _sides(payload))
            if op == "u" and after is None:
                after = self._documents.unknown(key.values(rows))
        elif layout.row is None:
            rows, before, after = self._untyped(layout, payload, name, key, source.connector)
        else:
            row = layout.row
            rows = self._layouts.rows(layout, name, key.names, source.connector, (), lambda: row.fields)
            before, after = rows.rows.read_change(payload.before, payload.after)
        return self._event_of(message, rows, op, before, after, key, facts)

    def _event_of(
        self,
        message: SourceRecord,
        rows: TableRows,
        op: Op,
        before: Row | None,
        after: Row | None,
        key: Key,
        facts: EventFacts,
    ) -> Changed:
        if op == "d":
            # Cassandra's deletes have the key of the row in `after`.
            values, after = _key_values(rows, after if before is None else before, key), None
        elif after is None:
            raise ValueError("an event without the new row")
        else:
            values = _key_values(rows, after, key)
        moves, other_key = self._moves(message, op, rows)
        return Changed(
            table=rows.table,
            op=op,
            before=before,
            after=after,
            key=values,
            facts=facts,
            moves=moves,
            other_key=other_key,
        )

    def _untyped(
        self, layout: Layout, payload: Payload, name: Name, key: Key, connector: str
    ) -> tuple[TableRows, Row | None, Row | None]:
        """Reads the rows of an event without a schema. Returns the table, and the row before and after the change.

        Most events of a table have the same columns, so this method first tries the columns of the table's last event.
        """
        sides = _sides(payload)
        last = layout.tables.get((name, key.names, connector, ()))
        if last is not None:
            try:
                return last, *last.rows.exact_change(*sides)
            except UNFIT:
                pass
        names = tuple(_members.decode(sides[0] if sides[1] == NULL else sides[1]))
        rows = self._layouts.rows(
            layout, name, key.names, connector, names, lambda: [(column, None) for column in names]
        )
        layout.tables[name, key.names, connector, ()] = rows
        return rows, *rows.rows.read_change(*sides)

    def _emitted(self, layout: Layout, payload: Payload, facts: EventFacts) -> Emitted:
        """Returns a logical message. Its content arrives in base64, or as text encoded by `binary.handling.mode`."""
        if payload.message is None:
            raise ValueError("a logical message without the block message")
        block = None if layout.schema is None else schemas.field(layout.schema, "message")
        is_text = block is None or any(name == "content" and inner.type == "string" for name, inner in block.fields)
        encoding = self._settings.binary if is_text else "bytes"
        content = ENCODINGS[encoding](payload.message.content or "")
        return Emitted(prefix=payload.message.prefix, content=content, facts=facts)

    def _is_other(self, name: Name) -> bool:
        return self._settings.tables is not None and name not in self._settings.tables

    def _moves(
        self, message: SourceRecord, op: str, rows: TableRows
    ) -> tuple[Literal["", "to", "from"], tuple[Value, ...]]:
        """Returns the members `moves` and `other_key` of `Changed`, as the message's headers give them."""
        if op == "u":
            return "", ()
        for name, content in message.headers:
            if name == NEW_KEY and op == "d":
                return "to", self._keys.in_header(message.topic, content).values(rows)
            if name == OLD_KEY and op == "c":
                return "from", self._keys.in_header(message.topic, content).values(rows)
        return "", ()

    def _unwrapped(self, message: SourceRecord) -> Event:
        content = message.value
        layout: Layout | None = None
        payload: Any = None
        if content and self._avro.has(content, message.headers, "value"):
            layout, payload = self._avro.read(content, message.headers, "value")
        elif content:
            check_utf8(content)
            layout, payload = self._json.split(message.topic, content, _raws.decode)
        members = members_of(payload)
        if layout is not None and members is not None and self._flat_rows.is_other(members):
            other = payload_of(payload) if isinstance(payload, dict) else payloads.decode(payload)
            return self._of_payload(message, layout, other)
        flat = self._flat_rows.read(message, layout, members)
        if members is None and flat.added.get("op") != "d" and not self._settings.tombstones_delete:
            return IgnoredRecord(reason="tombstone")
        return self._of_flat(message, layout or self._json.plain, flat)

    def _of_flat(self, message: SourceRecord, layout: Layout, flat: FlatRow) -> Event:
        source = flat.source()
        name = flat.table(source, message.topic)
        if self._is_other(name):
            return IgnoredRecord(reason="other table")
        key = self._keys.read(message)
        rows = self._flat_table(message.topic, layout, flat, name, key, source.connector)
        row: Row | None = None
        if flat.members is not None:
            is_json = all(isinstance(value, Raw) for value in flat.members.values())
            row = rows.rows.from_members(flat.members) if is_json else rows.rows.from_values(flat.members)
        facts, op = facts_of(source, None, message.timestamp_ms), flat.op
        if op not in _OPS:
            raise ValueError("an unknown operation")
        before, after = (row, None) if op == "d" else (None, row)
        return self._event_of(message, rows, _OPS[op], before, after, key, facts)

    def _flat_table(self, topic: str, layout: Layout, flat: FlatRow, name: Name, key: Key, connector: str) -> TableRows:
        if flat.members is None:
            last = self._last_flat.get(topic)
            if last is not None:
                return last
            columns = (
                key.own.columns
                if key.own is not None
                else self._layouts.columns(name, [(column, None) for column in key.names], connector)
            )
            return self._layouts.table(name, columns, key.names)
        names, fields = tuple(flat.members), flat.fields
        rows = self._layouts.rows(
            layout, name, key.names, connector, names, lambda: fields or [(column, None) for column in names]
        )
        self._last_flat[topic] = rows
        return rows


def _sides(payload: Payload) -> tuple[Any, Any]:
    return payload.before, payload.after


def _of_cloud(event: CloudEvent, data: Payload) -> Payload:
    """Returns the members of an event, from the attributes of a CloudEvent and its data."""
    return Payload(
        op=event.op,
        before=data.before,
        after=data.after,
        source=event.source(),
        transaction=event.block_transaction(),
        message=data.message,
    )


def _key_values(rows: TableRows, row: Row | None, key: Key) -> tuple[Value, ...]:
    """Returns the values of the key: from the row if the row has all of them, otherwise from the message's key."""
    if row is not None and rows.key_places is not None:
        values = tuple([row[place] for place in rows.key_places])
        if None not in values:
            return values
    return key.values(rows)


def _table(source: SourceBlock) -> Name:
    table = table_of(source)
    if table is None:
        raise ValueError("the block source names no table")
    return table


def _without_op(payload: Payload) -> Event:
    if payload.status is not None and payload.id is not None:
        if payload.status not in ("BEGIN", "END"):
            raise ValueError("an unknown status of a transaction")
        return Boundary(
            transaction=transaction_id(payload.id),
            ends=payload.status == "END",
            events=payload.event_count,
            collections={count.data_collection: count.event_count for count in payload.data_collections or ()},
        )
    if payload.ddl is not UNSET or payload.tableChanges is not UNSET:
        return IgnoredRecord(reason="schema change")
    if payload.ts_ms is not None and payload.source is None and payload.before == payload.after == NULL:
        return IgnoredRecord(reason="heartbeat")
    raise ValueError("neither an event nor any other message of Debezium")


def _malformed(topic: str, what: str) -> ChangelogError:
    return ChangelogError(
        Kind.MALFORMED,
        f"a message of topic {topic} is not a change event: {what}",
        hint="let the topic hold only messages that docs/reference/debezium-events.md lists",
    )
