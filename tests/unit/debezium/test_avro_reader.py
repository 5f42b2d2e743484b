"""Tests the Avro readers that are generated from schemas.

They must return the same values as fastavro, or leave the message to fastavro. This also holds for damaged messages.
With these readers, the translator must make the same events as when fastavro reads all messages (the *plain path*).
"""

import io
import struct
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from changelog.connectors.sources.debezium.decode.avro import messages as avro_messages
from changelog.connectors.sources.debezium.decode.avro.reader import UNUSUAL, event_reader, values_reader
from changelog.connectors.sources.debezium.decode.events import Changed, Event, SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.envelope.codec.avro_codec import without_logical_types
from changelog.envelope.errors import ChangelogError
from tests.unit.debezium import captured
from tests.unit.debezium.test_damaged import damage, damaged

LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200) | st.integers(0, 62).map(lambda n: 1 << n)
INTS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-70, 70)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
BYTES = st.binary(max_size=70)
DOUBLES = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1e23, 5.0, 0.1])
PLACEHOLDER = "__debezium_unavailable_value"

Typed = tuple[Any, st.SearchStrategy[Any]]
"""An Avro type, and a strategy that draws its values."""

SCALARS: list[Typed] = [
    ("boolean", st.booleans()),
    ("int", INTS),
    ("long", LONGS),
    ("float", st.floats(width=32)),
    ("double", DOUBLES),
    ("string", TEXTS | st.just(PLACEHOLDER)),
    ("bytes", BYTES),
    ({"type": "int", "connect.type": "int16"}, st.integers(-(1 << 15) - 1, 1 << 15)),
    ({"type": "int", "connect.name": "io.debezium.time.Date"}, st.integers(-800_000, 3_000_000)),
    ({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, st.integers(-(1 << 50), 1 << 52)),
    (
        {"type": "bytes", "logicalType": "decimal", "scale": 2, "precision": 9},
        st.integers(-(10**9), 10**9).map(lambda number: number.to_bytes(8, "big", signed=True)),
    ),
    ({"type": "string", "connect.name": "io.debezium.data.Json"}, TEXTS | st.just('{"a": 1}')),
]


def optional(typed: Typed, *, null_first: bool) -> Typed:
    type_, values = typed
    return (["null", type_] if null_first else [type_, "null"]), st.none() | values


def array(typed: Typed) -> Typed:
    return {"type": "array", "items": typed[0]}, st.lists(typed[1], max_size=4)


def map_(typed: Typed) -> Typed:
    return {"type": "map", "values": typed[0]}, st.dictionaries(TEXTS, typed[1], max_size=3)


@st.composite
def columns(draw: st.DrawFn) -> list[Typed]:
    """Draws one to ten types of columns, each with a strategy for its values."""
    return [draw(column()) for _ in range(draw(st.integers(1, 10)))]


@st.composite
def column(draw: st.DrawFn) -> Typed:
    typed = draw(st.sampled_from(SCALARS))
    nested = draw(st.sampled_from(["", "", "", "array", "map", "optional items"]))
    if nested:
        typed = optional(typed, null_first=True) if nested == "optional items" else typed
        typed = map_(typed) if nested == "map" else array(typed)
    return optional(typed, null_first=draw(st.booleans())) if draw(st.booleans()) else typed


def record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    members = [{"name": member, "type": type_} for member, type_ in fields.items()]
    return {"type": "record", "name": name, "namespace": "shop.orders", "fields": members}


SOURCE = record(
    "Source",
    {
        "version": "string",
        "connector": "string",
        "name": "string",
        "ts_ms": "long",
        "snapshot": [{"type": "string", "connect.name": "io.debezium.data.Enum"}, "null"],
        "db": "string",
        "sequence": ["null", "string"],
        "ts_us": ["null", "long"],
        "ts_ns": ["null", "long"],
        "schema": "string",
        "table": "string",
        "txId": ["null", "long"],
        "lsn": ["null", "long"],
    },
)
SOURCES = st.fixed_dictionaries(
    {
        "version": st.just("3.6"),
        "connector": st.sampled_from(["postgresql", "mysql", "sqlserver"]),
        "name": TEXTS,
        "ts_ms": st.integers(0, 1 << 42),
        "snapshot": st.sampled_from([None, "false", "true", "last"]),
        "db": TEXTS,
        "sequence": st.none() | TEXTS,
        "ts_us": st.none() | st.integers(0, 1 << 52),
        "ts_ns": st.none() | st.integers(0, 1 << 62),
        "schema": st.just("public"),
        "table": st.just("orders"),
        "txId": st.none() | LONGS,
        "lsn": st.none() | LONGS,
    }
)
BLOCK = record("block", {"id": "string", "total_order": "long", "data_collection_order": "long"})


def envelope(row: list[Typed]) -> dict[str, Any]:
    value = record("Value", {f"c{number}": type_ for number, (type_, _) in enumerate(row)})
    fields = {
        "before": ["null", value],
        "after": ["null", "Value"],
        "source": SOURCE,
        "transaction": ["null", BLOCK],
        "op": "string",
        "ts_ms": ["null", "long"],
    }
    return record("Envelope", fields)


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(without_logical_types(schema)), value)
    return stream.getvalue()


def by_fastavro(schema: Any, content: bytes) -> Any:
    stream = io.BytesIO(content)
    value = fastavro.schemaless_reader(stream, fastavro.parse_schema(without_logical_types(schema)), None)
    if stream.tell() != len(content):
        raise ValueError("bytes after it")
    return value


def same(one: Any, other: Any) -> bool:
    """Returns whether two values are the same, including their types and the signs of zeros. NaN equals NaN."""
    return repr(one) == repr(other)


def compare(read: Callable[[bytes, int], Any], schema: Any, content: bytes) -> None:
    """Checks that the reader either returns what fastavro returns, or leaves the message to fastavro."""
    try:
        value = read(content, 0)
    except UNUSUAL:
        return
    assert same(value, by_fastavro(schema, content))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), row=columns())
def test_generated_readers_return_the_values_of_fastavro(data: st.DataObject, row: list[Typed]) -> None:
    schema = record("Row", {f"c{number}": type_ for number, (type_, _) in enumerate(row)})
    read = values_reader(without_logical_types(schema))
    assert read is not None
    value = {f"c{number}": data.draw(values) for number, (_, values) in enumerate(row)}
    content = encoded(schema, value)
    assert same(read(content, 0), by_fastavro(schema, content))
    assert same(read(b"ab" + content, 2), by_fastavro(schema, content))
    for _ in range(5):
        compare(read, schema, damaged(content, data.draw(damage)))


@settings(max_examples=100, deadline=None)
@given(number=LONGS)
@example(number=-(1 << 63))
@example(number=(1 << 63) - 1)
def test_all_numbers_are_read(number: int) -> None:
    read = values_reader("long")
    assert read is not None
    assert read(encoded("long", number), 0) == number


@pytest.mark.parametrize("content", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80", b""])
def test_numbers_of_more_than_64_bits_are_left_to_fastavro(content: bytes) -> None:
    read = values_reader("long")
    assert read is not None
    with pytest.raises(UNUSUAL):
        read(content, 0)


@pytest.mark.parametrize("content", [b"\x05ab", b"\x01", b"\x81\x00", b"\x08ab", b"\x04\xffb", b"\x04abc"])
def test_wrong_lengths_and_texts_are_left_to_fastavro(content: bytes) -> None:
    read = values_reader("string")
    assert read is not None
    with pytest.raises(UNUSUAL):
        read(content, 0)


@pytest.mark.parametrize(
    "schema",
    [
        ["null", "string", "long"],
        "null",
        {"type": "enum", "name": "E", "symbols": ["a"]},
        record("Empty", {}),
    ],
)
def test_messages_with_unusual_schemas_are_left_to_fastavro(schema: Any) -> None:
    assert values_reader(schema) is None
    assert event_reader(schema) is None


def test_types_with_the_same_name_in_different_namespaces_are_left_to_fastavro() -> None:
    one = {**record("X", {"n": "long"}), "namespace": "a"}
    other = {**record("X", {"n": "string"}), "namespace": "b"}
    assert values_reader(record("Both", {"one": one, "other": other})) is None


def outcome(schema: Any, content: bytes, *, generated: bool) -> list[Event] | str:
    """Returns the events of a message, or the text of its error. If `generated` is false, the message is translated on
    the plain path.
    """
    nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
    readers = {"event_reader": event_reader, "values_reader": values_reader}
    with patch.multiple(avro_messages, **(readers if generated else dict.fromkeys(readers, nothing))):
        translator = Translator(TranslationSettings(schema_of=lambda _: schema))
        message = SourceRecord(topic="t", key=None, value=b"\0\0\0\0\1" + content)
        try:
            return [without_number(event) for event in translator.translate([message])]
        except ChangelogError as error:
            return f"{error.kind} {error.message}"


def without_number(event: Event) -> Any:
    """Returns an event as a tuple without the number of its table, because each translator has its own numbers."""
    if isinstance(event, Changed):
        names = [column.name for column in event.table.columns]
        return event.table.name, names, event.op, event.before, event.after, event.key, event.facts
    return event


@settings(max_examples=100, deadline=None)
@given(data=st.data(), row=columns(), source=SOURCES, op=st.sampled_from("cudrtx"))
def test_events_are_the_same_as_on_the_plain_path(data: st.DataObject, row: list[Typed], source: Any, op: str) -> None:
    schema = envelope(row)

    def values() -> dict[str, Any]:
        return {f"c{number}": data.draw(column_values) for number, (_, column_values) in enumerate(row)}

    before = data.draw(st.none() | st.just(values()))
    after = None if data.draw(st.integers(0, 5)) == 0 else values()
    if before is not None and after is not None:
        after |= {name: before[name] for name in before if data.draw(st.booleans())}
    block = data.draw(st.none() | st.just({"id": "5:6", "total_order": 1, "data_collection_order": 2}))
    event = {"before": before, "after": after, "source": source, "transaction": block, "op": op, "ts_ms": 5}
    content = encoded(schema, event)
    read = event_reader(without_logical_types(schema))
    assert read is not None
    if source["ts_ns"] is not None:
        read(content, 0)
    assert outcome(schema, content, generated=True) == outcome(schema, content, generated=False)
    for _ in range(3):
        wrong = damaged(content, data.draw(damage))
        assert outcome(schema, wrong, generated=True) == outcome(schema, wrong, generated=False)


def test_zeros_keep_their_signs() -> None:
    """0.0 equals -0.0, but they have different texts. A reader must not reuse the text of one for the other."""
    row: list[Typed] = [("double", DOUBLES), (["null", "float"], DOUBLES)]
    schema = envelope(row)
    translator = Translator(TranslationSettings(schema_of=lambda _: schema))
    source = {"version": "3", "connector": "postgresql", "name": "n", "ts_ms": 1, "snapshot": None, "db": "d"}
    source |= {"sequence": None, "ts_us": None, "ts_ns": 5, "schema": "s", "table": "t", "txId": None, "lsn": None}
    for old, new in [(0.0, -0.0), (-0.0, 0.0), (0.0, 0.0)]:
        event = {"before": {"c0": old, "c1": old}, "after": {"c0": new, "c1": new}, "source": source}
        content = encoded(schema, {**event, "transaction": None, "op": "u", "ts_ms": None})
        [changed] = translator.translate([SourceRecord(topic="t", key=None, value=b"\0\0\0\0\1" + content)])
        assert isinstance(changed, Changed)
        assert changed.before == (printed(old),) * 2
        assert changed.after == (printed(new),) * 2


def printed(zero: float) -> bytes:
    return b"-0" if struct.pack(">d", zero)[0] else b"0"


@pytest.mark.parametrize("name", sorted(path.stem for path in captured.FOLDER.glob("*avro*.jsonl")))
def test_events_that_a_real_debezium_wrote_are_read_by_generated_readers(name: str) -> None:
    schemas = captured.avro_schemas(name)
    events = [schema for schema in schemas.values() if schema["name"] == "Envelope"]
    assert events
    unread = [of["namespace"] for of in events if event_reader(without_logical_types(of)) is None]
    assert not unread
    assert all(values_reader(without_logical_types(schema)) is not None for schema in schemas.values())
