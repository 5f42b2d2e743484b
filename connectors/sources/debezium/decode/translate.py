"""Translates messages with Debezium's change events to the events of `events`. Pure: bytes in, dataclasses out.

`docs/reference/debezium-events.md` says what each kind of message becomes.
https://debezium.io/documentation/reference/stable/connectors/index.html
"""

import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from changelog.connectors.capture.rows.row_change import Value
from changelog.connectors.sources.debezium.decode.events import (
    Boundary,
    Changed,
    Emitted,
    Event,
    Facts,
    Ignored,
    Message,
    Row,
    Truncated,
)
from changelog.connectors.sources.debezium.decode.facts import Source, facts_of, table_of, transaction_id
from changelog.connectors.sources.debezium.decode.json_messages import JsonSplitter
from changelog.connectors.sources.debezium.decode.keys import Key, Keys
from changelog.connectors.sources.debezium.decode.layouts import Layout, Layouts, TableRows
from changelog.connectors.sources.debezium.decode.payloads import NULL, Payload, payloads
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.tables import UNFIT, Rows
from changelog.envelope.errors import ChangelogError, Kind

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
"""The headers of the two events that Debezium makes of a row whose key changed: a delete, then a create."""

_OPS: Final[dict[str, Literal["c", "u", "d", "r"]]] = {"c": "c", "i": "c", "u": "u", "d": "d", "r": "r"}

Read = Callable[[Rows, Any], Row]
"""Reads a row, as the decoder of a message returns it."""


class Translator:
    """Translates messages. What it remembers between messages are schemas; the result does not depend on it."""

    def __init__(self, settings: TranslationSettings) -> None:
        self._settings = settings
        self._layouts = Layouts(settings)
        self._json = JsonSplitter()
        self._keys = Keys(self._json, self._layouts)

    def translate(self, messages: Sequence[Message]) -> list[Event]:
        """Returns the event of each message.

        Raises ChangelogError: MALFORMED, with the topic, if a message is no event of Debezium; PRECONDITION if a column
        has no type.
        """
        return [self._translated(message) for message in messages]

    def _translated(self, message: Message) -> Event:
        try:
            return self._event(message)
        except ChangelogError as error:
            if error.kind is not Kind.MALFORMED:
                raise
            raise _malformed(message.topic, error.message) from None
        except (msgspec.DecodeError, *UNFIT):
            raise _malformed(message.topic, "its form is none that Debezium writes") from None

    def _event(self, message: Message) -> Event:
        if message.value is None:
            return Ignored(reason="tombstone")
        content = message.value
        if not content.isascii():
            content.decode()  # because tokens are published as they are, and only texts in UTF-8 may be
        layout, payload = self._json.split(message.topic, content, payloads.decode)
        assert isinstance(payload, Payload)
        return self._of_payload(message, layout, payload, Rows.from_json)

    def _of_payload(self, message: Message, layout: Layout, payload: Payload, read: Read) -> Event:
        op = payload.op
        if op is None:
            return _without_op(payload)
        source = payload.source
        if source is None:
            raise ValueError("an event without the block source")
        facts = facts_of(source, payload.transaction, message.timestamp_ms)
        if op in _OPS:
            return self._changed(message, layout, payload, source, facts, read)
        if op == "m":
            return _emitted(payload, facts)
        if op == "t":
            return Truncated(name=_table(source), facts=facts)
        raise ValueError("an unknown operation")

    def _changed(
        self, message: Message, layout: Layout, payload: Payload, source: Source, facts: Facts, read: Read
    ) -> Event:
        name = _table(source)
        if self._settings.tables is not None and name not in self._settings.tables:
            return Ignored(reason="other table")
        assert payload.op is not None
        op = _OPS[payload.op]
        key = self._keys.read(message.topic, message.key)
        rows = self._rows(layout, payload, name, key, source.connector)
        before = None if payload.before == NULL else read(rows.rows, payload.before)
        after = None if payload.after == NULL or op == "d" else read(rows.rows, payload.after)
        moves, other_key = self._moves(message, op, rows)
        return Changed(
            table=rows.table,
            op=op,
            before=before,
            after=after,
            key=_key_values(rows, before if op == "d" else after, key),
            facts=facts,
            moves=moves,
            other_key=other_key,
        )

    def _rows(self, layout: Layout, payload: Payload, name: tuple[str, str], key: Key, connector: str) -> TableRows:
        schema = layout.row
        names: tuple[str, ...] = ()
        if schema is None:
            names = self._keys.names_in(payload.before if payload.after == NULL else payload.after)
        known = (name, key.names, connector, names)
        rows = layout.tables.get(known)
        if rows is None:
            rows = layout.tables[known] = self._layouts.table(name, schema, names, key.names, connector)
        return rows

    def _moves(self, message: Message, op: str, rows: TableRows) -> tuple[Literal["", "to", "from"], tuple[Value, ...]]:
        """Returns whether the row's key changed, and the other key, if the message's headers say so."""
        for name, content in message.headers:
            if name == NEW_KEY and op == "d":
                return "to", self._keys.in_header(message.topic, content).values(rows)
            if name == OLD_KEY and op == "c":
                return "from", self._keys.in_header(message.topic, content).values(rows)
        return "", ()


def _key_values(rows: TableRows, row: Row | None, key: Key) -> tuple[Value, ...]:
    """Returns the values of the key, from the row if it has them all, else from the message's key."""
    if row is not None and rows.key_places is not None:
        values = tuple([row[place] for place in rows.key_places])
        if None not in values:
            return values
    return key.values(rows)


def _table(source: Source) -> tuple[str, str]:
    table = table_of(source)
    if table is None:
        raise ValueError("the block source names no table")
    return table


def _without_op(payload: Payload) -> Event:
    if payload.status is not None and payload.id is not None:
        if payload.status not in ("BEGIN", "END"):
            raise ValueError("an unknown status of a transaction")
        return Boundary(
            transaction=transaction_id(payload.id), ends=payload.status == "END", events=payload.event_count
        )
    if payload.ddl is not UNSET or payload.tableChanges is not UNSET:
        return Ignored(reason="schema change")
    if payload.ts_ms is not None and payload.source is None and payload.before == payload.after == NULL:
        return Ignored(reason="heartbeat")
    raise ValueError("neither an event nor any other message of Debezium")


def _emitted(payload: Payload, facts: Facts) -> Emitted:
    if payload.message is None:
        raise ValueError("a logical message without the block message")
    try:
        content = b64decode(payload.message.content or "", validate=True)
    except binascii.Error:
        raise ValueError("the content of a logical message is not base64") from None
    return Emitted(prefix=payload.message.prefix, content=content, facts=facts)


def _malformed(topic: str, what: str) -> ChangelogError:
    return ChangelogError(
        Kind.MALFORMED,
        f"a message of topic {topic} is no change event: {what}",
        hint="let the topic hold only what Debezium writes; docs/reference/debezium-events.md lists it",
    )
