"""Converts changes of one entity to Debezium's events, or to the *flat* form: only the table's row after each change.

The results are dicts, lists and scalars that fit the schemas in `event_schema`. Encoders turn them into messages in
JSON or Avro. A state is a row of the table as JSON text. If the message will be JSON, and all values of the state
already have the form of their semantic types, the state is passed on as `msgspec.Raw`, without being parsed.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Raw

from changelog.envelope.codec import json_codec
from changelog.envelope.connect.column_types import UNCHANGED, Convert, converter, key_token, placeholder
from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position
from changelog.schemas.avro import safe
from changelog.schemas.types import Primitive, Struct

VERSION: Final = "1"
"""The value of `version` in the block `source`. It is the version of our form of this block, not of Debezium."""

OPS: Final[Mapping[str, str]] = {Op.CREATE: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t"}
"""Debezium's letter for each operation."""

_CONNECTORS: Final = {"postgres": "postgresql"}
_FLOATS: Final = frozenset({Primitive.FLOAT, Primitive.DOUBLE})
_MAX: Final = (1 << 63) - 1
_NOTHING: Final = "{}"

_STAMP: Final = ("api_version", "service_name", "identifier")
_COLUMNS: Final = ("op", "position", "transaction", "key", "provenance", "current", "original", *_STAMP)


class _Source(msgspec.Struct, rename="camel"):
    """Those members of a provenance's `source` that events need; see `changelog.envelope.model.Source`."""

    connector: str
    name: str
    database: str
    unavailable: tuple[str, ...] = ()
    unavailable_original: tuple[str, ...] = ()
    json_null: tuple[str, ...] = ()
    json_null_original: tuple[str, ...] = ()


class _Provenance(msgspec.Struct):
    source: _Source


_provenances = msgspec.json.Decoder(_Provenance)


@dataclass(frozen=True, slots=True)
class _Column:
    """One column. `label` is its name in the result. `instead` is used for a value that the database's log lacks."""

    name: str
    label: str
    convert: Convert
    instead: Any
    is_key: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """One change. `key` is the key of its row, None for a truncate. `us` is its commit time in microseconds since 1970.

    `stamp` has the values of the columns `_STAMP`, which say who made the change.
    """

    us: int
    op: str
    position: str
    transaction: str
    key: dict[str, Any] | None
    source: Any
    current: str | None
    original: str | None
    stamp: tuple[str, ...]


class Rendered(NamedTuple):
    """The key and the value of a message, not yet encoded. `source_name` is the name of the change's source."""

    key: dict[str, Any] | None
    value: Any
    source_name: str


class Rendering:
    """Renders rows of `entity`, whose columns are `shape`.

    `as_json` says that the results will become JSON. Otherwise they will become Avro, and
    `changelog.schemas.avro.safe` escapes the names of columns. A value that the semantic type of its column cannot
    represent is rendered as null, and `without_form` collects the names of the columns that had such a value.
    """

    def __init__(self, entity: Entity, shape: Struct, *, as_json: bool) -> None:
        types = dict(shape.fields)
        label = str if as_json else safe
        self._entity = entity
        self._columns = [
            _Column(name, label(name), converter(type_, as_json=as_json), placeholder(type_), name in entity.key)
            for name, type_ in shape.fields
        ]
        self._keys = [(label(name), types[name], converter(types[name], as_json=as_json)) for name in entity.key]
        self._keeps = as_json and all(type_ in UNCHANGED | _FLOATS for type_ in types.values())
        self._has_floats = not _FLOATS.isdisjoint(type_ for type_ in types.values() if isinstance(type_, Primitive))
        self.without_form: set[str] = set()

    def flat(self, rows: pa.RecordBatch) -> list[Rendered]:
        """Renders only the table's row after each change; a delete has no value. `rows` must not contain a truncate.

        Raises ChangelogError (STOP) if Debezium's types cannot represent a key.
        """
        return [Rendered(key=row.key, value=self._after(row), source_name=row.source.name) for row in self._rows(rows)]

    def events(self, rows: pa.RecordBatch) -> list[Rendered]:
        """Renders each change as an event of Debezium; a truncate has no key.

        Raises ChangelogError (STOP) if Debezium's types cannot represent a key.
        """
        return [Rendered(key=row.key, value=self._event(row), source_name=row.source.name) for row in self._rows(rows)]

    def _rows(self, rows: pa.RecordBatch) -> Iterator[_Row]:
        columns = [rows.column(name).to_pylist() for name in _COLUMNS]
        times = rows.column("committed_at").cast(pa.int64()).to_pylist()
        for us, op, position, transaction, key, provenance, current, original, *stamp in zip(
            times, *columns, strict=True
        ):
            key_value, source = self._key(key, position), _source(provenance)
            yield _Row(us, op, position, transaction, key_value, source, current, original, tuple(stamp))

    def _after(self, row: _Row) -> Any:
        if row.current is None:
            return None
        return self._state(row.current, row.source.unavailable, row.source.json_null, row.key)

    def _before(self, row: _Row) -> Any:
        """Renders the row before the change. For a delete, the result has at least the key, which consumers need."""
        original = _NOTHING if row.op == Op.DELETE and row.original is None else row.original
        if original is None:
            return None
        source = row.source
        return self._state(original, source.unavailable_original, source.json_null_original, row.key, is_after=False)

    def _event(self, row: _Row) -> dict[str, Any]:
        times = {"ts_ms": row.us // 1000, "ts_us": row.us, "ts_ns": row.us * 1000}
        return {
            "before": self._before(row),
            "after": self._after(row),
            "source": self._source_block(row, times),
            "transaction": _transaction(row),
            "op": OPS[row.op],
            **times,
        }

    def _source_block(self, row: _Row, times: Mapping[str, int]) -> dict[str, Any]:
        is_postgres = row.source.connector == "postgres"
        schema, table = self._entity.table
        lsn = int(row.position[9:25], 16)
        return {
            "version": VERSION,
            "connector": _CONNECTORS.get(row.source.connector, row.source.connector),
            "name": row.source.name,
            "ts_ms": times["ts_ms"],
            "snapshot": "incremental" if row.op == Op.READ else "false",
            "db": row.source.database,
            "sequence": f'["{row.position}"]',
            "ts_us": times["ts_us"],
            "ts_ns": times["ts_ns"],
            "schema": schema if is_postgres else None,
            "table": table,
            "txId": _number(row.transaction) if is_postgres else None,
            "lsn": lsn if is_postgres and lsn <= _MAX else None,
            "gtid": None if is_postgres else row.transaction,
            "apiVersion": row.stamp[0],
            "serviceName": row.stamp[1],
            "identifier": row.stamp[2],
        }

    def _state(
        self,
        text: str,
        unavailable: Collection[str],
        json_null: Collection[str],
        key: Mapping[str, Any] | None,
        *,
        is_after: bool = True,
    ) -> Any:
        """Renders a state. If the state lacks a key column, the value comes from the key.

        If the state lacks another column, the value becomes null. But if the log did not send the value of a column in
        the row after the change, the value becomes the type's placeholder.
        """
        if self._keeps and not unavailable and text != _NOTHING and not (self._has_floats and _is_unusual(text)):
            return Raw(text)
        tokens, state = json_codec.members(text.encode()), {}
        for column in self._columns:
            token = tokens.get(column.name)
            if token is None:
                instead = column.instead if is_after and column.name in unavailable else None
                state[column.label] = key[column.label] if key and column.is_key else instead
            elif token == b"null" and column.name not in json_null:
                state[column.label] = None
            else:
                state[column.label] = self._value(column, token)
        return state

    def _value(self, column: _Column, token: bytes) -> Any:
        try:
            return column.convert(token)
        except (ValueError, KeyError):
            self.without_form.add(column.name)
            return None

    def _key(self, text: str, position: str) -> dict[str, Any] | None:
        if text == TRUNCATE_KEY:
            return None
        texts = [text] if len(self._keys) == 1 else msgspec.json.decode(text)
        try:
            return {
                label: convert(key_token(type_, value))
                for (label, type_, convert), value in zip(self._keys, texts, strict=True)
            }
        except (ValueError, KeyError):
            raise ChangelogError(
                Kind.STOP,
                f"a key of the entity {self._entity.name} cannot be represented in Debezium's types",
                hint='set another key, or publish with [sink] envelope = "changelog"; docs/reference/debezium.md lists '
                "the types",
                position=Position.parse(position),
            ) from None


def _source(provenance: str) -> Any:
    try:
        return _provenances.decode(provenance).source
    except (msgspec.DecodeError, RecursionError):
        return json_codec.decode_provenance(provenance).source


def _transaction(row: _Row) -> dict[str, Any] | None:
    """Returns the block `transaction`; None for a row that was read from its table."""
    if row.op == Op.READ:
        return None
    order = int(row.position[26:], 16)
    return {"id": row.transaction, "total_order": order, "data_collection_order": order}


def _is_unusual(text: str) -> bool:
    return 'NaN"' in text or 'Infinity"' in text


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= _MAX else None
