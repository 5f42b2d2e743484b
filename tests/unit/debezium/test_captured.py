"""Tests events that a real Debezium wrote. The service must publish the same values for them as when it reads the
database without Debezium.

This file lists the columns whose values differ nevertheless, and says how they differ.
"""

import json
from collections import Counter
from typing import Literal

import msgspec
import pytest
from msgspec import Raw

from changelog.connectors.capture.rows.row_change import UNCHANGED, Value
from changelog.connectors.sources.debezium.decode.events import Boundary, Changed, Emitted, Event, SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.schemas.types import ColumnType, Primitive
from tests.unit.debezium import captured

POSTGRES_TYPES = {
    "id": "int",
    "c_bool": "boolean",
    "c_smallint": "int",
    "c_int": "int",
    "c_bigint": "long",
    "c_oid": "long",
    "c_real": "float",
    "c_double": "double",
    "c_numeric": "Decimal(12,2)",
    "c_numeric_any": "VariableScaleDecimal",
    "c_money": "Decimal(2)",
    "c_bytea": "bytes",
    "c_date": "Date",
    "c_time": "MicroTime",
    "c_time3": "Time",
    "c_timetz": "ZonedTime",
    "c_timestamp": "MicroTimestamp",
    "c_timestamp3": "Timestamp",
    "c_timestamptz": "ZonedTimestamp",
    "c_interval": "MicroDuration",
    "c_uuid": "uuid",
    "c_bit": "boolean",
    "c_bits": "Bits(10)",
    "c_varbit": "Bits(12)",
    "c_varbit_any": "Bits",
    "c_json": "Json",
    "c_jsonb": "Json",
    "c_hstore": "json",
    "c_domain": "Decimal(10,2)",
    "c_ints": "array(int)",
    "c_texts": "array(string)",
    "c_numerics": "array(Decimal(6,2))",
    "c_timestamptzs": "array(ZonedTimestamp)",
    "c_uuids": "array(uuid)",
    "c_point": "Point",
    **dict.fromkeys(
        (
            *("c_text", "c_varchar", "c_char", "c_citext", "c_inet", "c_cidr", "c_macaddr", "c_enum", "c_range"),
            *("c_tstzrange", "c_ltree", "c_tsvector"),
        ),
        "string",
    ),
}
MYSQL_TYPES = {
    "id": "int",
    **dict.fromkeys(("c_bool", "c_tiny", "c_small", "c_medium", "c_int", "c_year"), "int"),
    **dict.fromkeys(("c_int_unsigned", "c_bigint", "c_bigint_unsigned"), "long"),
    **dict.fromkeys(("c_char", "c_varchar", "c_text", "c_latin", "c_enum", "c_set"), "string"),
    **dict.fromkeys(("c_binary", "c_varbinary", "c_blob"), "bytes"),
    "c_float": "float",
    "c_double": "double",
    "c_decimal": "Decimal(12,2)",
    "c_bit": "boolean",
    "c_bits": "Bits(10)",
    "c_date": "Date",
    "c_time": "MicroTime",
    "c_time3": "MicroTime",
    "c_datetime": "Timestamp",
    "c_datetime6": "MicroTimestamp",
    "c_timestamp": "ZonedTimestamp",
    "c_timestamp3": "ZonedTimestamp",
    "c_json": "Json",
    "c_point": "Point",
    "c_geometry": "Geometry",
    "c_uuid": "uuid",
}
SMALL = {"id": "int", "name": "string", "n": "int", "note": "string", "more": "int"}
TYPES = {
    ("public", "types"): POSTGRES_TYPES,
    ("public", "small"): SMALL,
    ("public", "pairs"): {"a": "int", "b": "string", "note": "string"},
    ("public", "wide"): {
        "id": "int",
        "n": "int",
        "body": "string",
        "bin": "bytes",
        "tags": "array(string)",
        "ints": "array(int)",
        "ids": "array(uuid)",
        "bag": "json",
        "doc": "json",
    },
    ("public", "done"): {"id": "int"},
    ("shop", "types"): MYSQL_TYPES,
    ("shop", "small"): SMALL,
    ("shop", "done"): {"id": "int"},
}
ID_BYTES: dict[str, Literal[0, 4, 8]] = {"avro8": 8, "avroheaders": 0}
BINARY: dict[str, Literal["base64", "base64-url-safe", "hex"]] = {
    "postgres.connect": "hex",
    "postgres.iso": "base64",
    "postgres.nano": "base64-url-safe",
}
WITHOUT_SCHEMA = ("plain", "cloudplain", "rewrite", "headers")


def events(name: str) -> list[Event]:
    _, form = name.split(".")
    settings = TranslationSettings(
        types=TYPES if form in WITHOUT_SCHEMA else {},
        unwrapped=form in ("rewrite", "headers"),
        placeholder="hex:00ff7f" if name == "postgres.iso" else "__debezium_unavailable_value",
        schema_of=captured.avro_schemas(name).__getitem__,
        connector="postgresql",
        id_bytes=ID_BYTES.get(form, 4),
        binary=BINARY.get(name, "bytes"),
    )
    return Translator(settings).translate(captured.messages(name))


POSTGRES_DIFFERENCES = {
    "c_numeric_any": "Debezium removes zeros at the end",
    "c_money": "a number, without the sign of the currency",
    "c_timetz": "in UTC",
    "c_bit": "a bit(1) is a boolean",
    "c_varbit": "zeros in front, because only the greatest length is known",
    "c_varbit_any": "no zeros in front",
    "c_interval": "months and days become an average number of microseconds",
    "c_range": "a text",
    "c_tstzrange": "a text",
    "c_date": "a year before 1 loses its era",
}
MYSQL_DIFFERENCES = {
    "c_bigint_unsigned": "a signed number of 64 bits",
    "c_bit": "a bit(1) is a boolean",
    "c_date": "a date with a part that is 0 is null",
    "c_datetime": "a date with a part that is 0 is null",
    "c_timestamp": "a date with a part that is 0 is null",
    "c_time3": "the event does not say how many digits the column has",
    "c_year": "the year 0 is 2000",
}
MARIADB_DIFFERENCES = {column: why for column, why in MYSQL_DIFFERENCES.items() if column != "c_year"}
ALWAYS = {"postgres": POSTGRES_DIFFERENCES, "mysql": MYSQL_DIFFERENCES, "mariadb": MARIADB_DIFFERENCES}

_OTHER = {
    "c_time": "a time of more than a day is null",
    "c_datetime6": "milliseconds",
    "c_binary": "hexadecimal text",
    "c_varbinary": "hexadecimal text",
}
_ISO = {"c_decimal": "a float", "c_time": "a time of more than a day is null"}
_JSON = {"c_json": "a text: for MariaDB, json is only another name of longtext"}

ONLY: dict[str, dict[str, str]] = {
    "postgres.connect": {
        "c_bytea": "hexadecimal text",
        "c_numeric": "a float",
        "c_domain": "a float",
        "c_numerics": "floats",
    },
    "postgres.iso": {"c_time": "24:00:00 is 00:00:00"},
    "postgres.nano": {"c_timestamp": "64 bits of nanoseconds do not reach the year of a value"},
    "mysql.other": _OTHER,
    "mysql.iso": _ISO,
    "mariadb.schema": _JSON,
    "mariadb.other": {**_OTHER, **_JSON},
    "mariadb.iso": {**_ISO, **_JSON},
}
"""For some recordings: columns that differ in that recording, but not in every recording of the same database."""

EQUAL = {
    "postgres.connect": {"c_interval"},
    "postgres.iso": {"c_numeric_any"},
    "mysql.other": {"c_bigint_unsigned"},
    "mariadb.other": {"c_bigint_unsigned"},
}
"""For some recordings: columns that `ALWAYS` lists for the database, but that do not differ in that recording."""

NAMES = sorted(path.stem for path in captured.FOLDER.glob("*.jsonl"))


def expected(name: str) -> set[str]:
    return {*ALWAYS[name.partition(".")[0]], *ONLY.get(name, {})} - EQUAL.get(name, set())


def different(name: str) -> set[str]:
    """Returns those columns of the table `types` for which a value differs from what is published without Debezium."""
    published = captured.published(name.partition(".")[0])
    columns, rows = set(), 0
    for of in changes(name, "types", "r"):
        assert of.after is not None
        own = published[token(of.after[0])]
        rows += 1
        columns |= {
            column.name
            for column, value in zip(of.table.columns, of.after, strict=True)
            if not same(column.codec.column_type, value, own[column.name])
        }
    assert rows == len(published)
    return columns


def same(type_: ColumnType, value: Value, own: str | None) -> bool:
    if value is None or own is None:
        return value is None and own is None
    if type_ is Primitive.JSON or own.startswith("{"):
        return bool(json.loads(token(value)) == json.loads(own))
    return token(value) == own


def token(value: Value) -> str:
    assert value is not None
    assert value is not UNCHANGED
    return bytes(value).decode()


def changes(name: str, table: str, ops: str) -> list[Changed]:
    return [of for of in events(name) if isinstance(of, Changed) and of.table.name[1] == table and of.op in ops]


@pytest.mark.parametrize("name", NAMES)
def test_values_are_published_as_without_debezium(name: str) -> None:
    assert different(name) == expected(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_message_becomes_an_event(name: str) -> None:
    counts = Counter(
        f"{type(event).__name__} {getattr(event, 'op', '') or getattr(event, 'reason', '')}" for event in events(name)
    )
    is_postgres = name.startswith("postgres")
    flat = name.endswith((".rewrite", ".headers"))
    assert counts["Changed r"] == (6 if is_postgres else 3)
    assert counts["Changed c"] == (6 if is_postgres else 4)
    assert counts["Changed u"] == (3 if is_postgres else 2)
    assert counts["Changed d"] == (4 if is_postgres else 3)
    assert counts["RowsTruncated "] == (0 if flat else 1)
    assert counts["Emitted "] == (2 if is_postgres and "cloud" not in name else 0)
    assert counts["IgnoredRecord schema change"] == (0 if is_postgres else counts["IgnoredRecord schema change"])
    assert (counts["Boundary "] > 0) == name.endswith((".schema", ".avro"))


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_key_is_a_delete_and_a_create(name: str) -> None:
    small = changes(name, "small", "cd")
    [deleted] = [of for of in small if of.moves == "to"]
    [created] = [of for of in small if of.moves == "from"]
    assert (deleted.op, deleted.key, deleted.other_key) == ("d", (b"2",), (b"3",))
    assert (created.op, created.key, created.other_key) == ("c", (b"3",), (b"2",))
    assert deleted.facts.transaction == created.facts.transaction != ""


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("postgres")])
def test_values_that_debezium_does_not_send_are_unknown(name: str) -> None:
    [updated] = changes(name, "wide", "u")
    assert updated.after is not None
    row = {column.name: value for column, value in zip(updated.table.columns, updated.after, strict=True)}
    unknown = {column for column, value in row.items() if value is UNCHANGED}
    # If Debezium is configured to write bytes in base64, it writes null in place of bytes that it does not have.
    lost = {"bin"} if name in ("postgres.iso", "postgres.nano") else set()
    assert unknown == {"body", "bin", "tags", "ints", "ids", "bag", "doc"} - lost
    assert row["n"] == b"2"


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith((".schema", ".avro"))])
def test_the_events_of_each_transaction_are_counted(name: str) -> None:
    """The event that ends a transaction says how many events the transaction has. A transaction with a truncate
    has no such event, and may lack the event that begins a transaction, too.
    """
    event_counts = {of.transaction: of.events for of in events(name) if isinstance(of, Boundary) and of.ends}
    begin_ids = [of.transaction for of in events(name) if isinstance(of, Boundary) and not of.ends]
    assert len(event_counts) > 5
    counted = Counter(
        of.facts.transaction
        for of in events(name)
        if isinstance(of, Changed | Emitted) and getattr(of, "op", "") != "r" and of.facts.transaction
    )
    assert event_counts.keys() <= set(begin_ids)
    assert event_counts.keys() >= counted.keys()
    assert counted.items() <= event_counts.items()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("postgres") and "cloud" not in name])
def test_logical_messages_are_decoded(name: str) -> None:
    emitted = [(of.prefix, of.content) for of in events(name) if isinstance(of, Emitted)]
    assert emitted == [("provenance", b'{"apiVersion":"1"}'), ("other", b"\x00\xff")]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".schema")])
def test_a_schema_may_arrive_separately_from_its_message(name: str) -> None:
    """If the service runs Debezium itself, it gets each schema only once, apart from the messages."""
    translator = Translator(TranslationSettings())
    apart = [translator.translate([_apart(message)]) for message in captured.messages(name)]
    together = [translator.translate([message]) for message in captured.messages(name)]
    assert apart == together
    assert sum(isinstance(event, Changed) for [event] in apart) > 10


def _apart(message: SourceRecord) -> SourceRecord:
    key, value = (msgspec.json.decode(part or b"{}", type=dict[str, Raw]) for part in (message.key, message.value))
    return SourceRecord(
        topic=message.topic,
        key=_payload(key),
        value=_payload(value),
        headers=message.headers,
        timestamp_ms=message.timestamp_ms,
        key_schema=bytes(key.get("schema", b"null")),
        value_schema=bytes(value.get("schema", b"null")),
    )


def _payload(members: dict[str, Raw]) -> bytes | None:
    payload = bytes(members.get("payload", b"null"))
    return None if payload == b"null" else payload
