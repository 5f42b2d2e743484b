"""Makes Kafka Connect schemas for the keys and values of an entity's messages, in the layout of Debezium's events.

An event has the row before and after the change, the source, the transaction, the operation and the time.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from changelog.envelope.connect.column_types import connect_schema
from changelog.envelope.connect.schema import ConnectSchema
from changelog.schemas.avro import namespace
from changelog.schemas.types import Struct

SNAPSHOTS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"

_TEXT: Final = ConnectSchema(type="string")
_TEXT_OR_NULL: Final = ConnectSchema(type="string", optional=True)
_LONG: Final = ConnectSchema(type="int64")
_LONG_OR_NULL: Final = ConnectSchema(type="int64", optional=True)
_SNAPSHOT: Final = ConnectSchema(
    type="string",
    optional=True,
    name="io.debezium.data.Enum",
    version=1,
    parameters={"allowed": SNAPSHOTS},
)
_SOURCE: Final = ConnectSchema(
    type="struct",
    name="changelog.Source",
    version=1,
    fields=(
        ("version", _TEXT),
        ("connector", _TEXT),
        ("name", _TEXT),
        ("ts_ms", _LONG),
        ("snapshot", _SNAPSHOT),
        ("db", _TEXT),
        ("sequence", _TEXT_OR_NULL),
        ("ts_us", _LONG_OR_NULL),
        ("ts_ns", _LONG_OR_NULL),
        ("schema", _TEXT_OR_NULL),
        ("table", _TEXT),
        ("txId", _LONG_OR_NULL),
        ("lsn", _LONG_OR_NULL),
        ("gtid", _TEXT_OR_NULL),
        ("apiVersion", _TEXT),
        ("serviceName", _TEXT),
        ("identifier", _TEXT),
    ),
)
_TRANSACTION: Final = ConnectSchema(
    type="struct",
    name="event.block",
    version=1,
    optional=True,
    fields=(("id", _TEXT), ("total_order", _LONG), ("data_collection_order", _LONG)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSchemas:
    """The three schemas of one entity: for the key, for a row alone, and for an event as Debezium publishes it."""

    key: ConnectSchema
    row: ConnectSchema
    event: ConnectSchema


def event_schemas(entity: str, shape: Struct, key: Sequence[str], prefix: str) -> EventSchemas:
    """Returns the schemas of an entity whose columns and their types are `shape`. Columns of `key` cannot be null; all
    others may.

    The names of the schemas begin with `prefix` and the entity's name.
    """
    types, path = dict(shape.fields), namespace(prefix, entity)
    columns = tuple((name, connect_schema(type_, optional=name not in key)) for name, type_ in shape.fields)
    row = ConnectSchema(type="struct", name=f"{path}.Value", fields=columns)
    state = replace(row, optional=True)
    return EventSchemas(
        key=ConnectSchema(
            type="struct",
            name=f"{path}.Key",
            fields=tuple((name, connect_schema(types[name], optional=False)) for name in key),
        ),
        row=row,
        event=ConnectSchema(
            type="struct",
            name=f"{path}.Envelope",
            version=2,
            fields=(
                ("before", state),
                ("after", state),
                ("source", _SOURCE),
                ("transaction", _TRANSACTION),
                ("op", _TEXT),
                ("ts_ms", _LONG_OR_NULL),
                ("ts_us", _LONG_OR_NULL),
                ("ts_ns", _LONG_OR_NULL),
            ),
        ),
    )
