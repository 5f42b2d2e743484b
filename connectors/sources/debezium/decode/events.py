"""Defines the records that arrive from Debezium, and the events that they are translated to.

A `SourceRecord` is what arrives: a record of a Kafka topic, or a record of an engine that runs beside the service.
`changelog.connectors.sources.debezium.decode.translate` turns a record into one of the events below.

A *row* is a tuple with one value for each column of its `EventTable`, in the order of `EventTable.columns`. A value is
the JSON token that we publish (UTF-8), None for SQL NULL, or `UNCHANGED` if the event does not have it.

Classes whose objects are made for each message are structs of msgspec, because that takes a tenth of the time of a
dataclass.

https://debezium.io/documentation/reference/stable/connectors/index.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from changelog.connectors.capture.rows.codec import Codec
from changelog.connectors.capture.rows.row_change import Value

Row = tuple[Value, ...]


class SourceRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record as it arrived.

    `key` and `value` are the bytes of the record, None for a null. An engine sends their schemas separately: then
    `key_schema` and `value_schema` are these schemas in JSON, or the text `null` if there is none. For a record of a
    topic, both are None: if Kafka Connect's converter wrote schemas, the record itself contains them or their ids.
    `timestamp_ms` is the record's own time, in milliseconds since 1970, UTC.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0
    key_schema: bytes | None = None
    value_schema: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumn:
    """A column of a table, as the schema of an event describes it. `optional` says that it may be null."""

    name: str
    codec: Codec
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTable:
    """A table, as the schema of an event describes it.

    `number` identifies the description within the process: events with the same schema have the same `EventTable`
    object. `key` are the names of the columns in the key of the event, in order; empty if the event has no key.
    """

    name: tuple[str, str]
    number: int
    columns: tuple[EventColumn, ...]
    key: tuple[str, ...]


class EventFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the event says about its source.

    `transaction` is the id of the transaction that made the change, as the connector prints it; empty if the connector
    gives no id. `committed_at` is the time of the change in the database, in microseconds since 1970, UTC.
    `snapshot` is `true` for a row of a snapshot, `last` for the row that ends the snapshot, and empty for other events.
    If Debezium numbers the events of each transaction, `order` is the number of this event, and `counted_in` is the id
    of the transaction in the message's block `transaction`. The attribute `transaction` may differ from `counted_in`:
    it has the id in the block `source`, if that block has one.
    """

    connector: str
    database: str
    transaction: str
    committed_at: int
    snapshot: Literal["", "true", "last"] = ""
    counted_in: str = ""
    order: int = 0


class Changed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One changed row: Debezium's `c`, `u`, `d` or `r`.

    `before` is None if the event has no old row: the events of updates and deletes may lack it. `key` has the values of
    the message's key in the order of `EventTable.key`. If a row's key changed, Debezium sends a delete and then a
    create. The delete has `moves` = `to`: its row moved to `other_key`, the new key. The create has `moves` = `from`:
    its row came from `other_key`, the old key. `moves` and `other_key` are empty if the message has no header with the
    other key.
    """

    table: EventTable
    op: Literal["c", "u", "d", "r"]
    before: Row | None
    after: Row | None
    key: tuple[Value, ...]
    facts: EventFacts
    moves: Literal["", "to", "from"] = ""
    other_key: tuple[Value, ...] = ()


class RowsTruncated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All rows of a table were deleted at once: Debezium's `t`."""

    name: tuple[str, str]
    facts: EventFacts


class Emitted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A logical message that an application wrote into the log (Debezium's `m`), such as a stamp."""

    prefix: str
    content: bytes
    facts: EventFacts


class Boundary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A transaction begins, or ends (Debezium's setting `provide.transaction.metadata`).

    At the end, `events` is how many events the transaction had, and `collections` how many it had in each table, by
    Debezium's name for the table.
    """

    transaction: str
    ends: bool
    events: int | None
    collections: Mapping[str, int] = {}


class IgnoredRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A record that is not published, with the reason: `tombstone`, `heartbeat`, `schema change` or `other table`."""

    reason: Literal["tombstone", "heartbeat", "schema change", "other table"]


Event = Changed | RowsTruncated | Emitted | Boundary | IgnoredRecord
