"""Tests the conversion of changelog rows to Debezium events and to flat rows, both in JSON and in Avro.

Two simple readers must return the expected values. The readers decode messages as the messages' schemas say, like the
converters of Kafka Connect.
"""

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal as Number
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.envelope.columnar import batch
from changelog.envelope.connect.column_types import PLACEHOLDER
from changelog.envelope.connect.encoders import avro_encoder, json_encoder
from changelog.envelope.connect.event_schema import event_schemas
from changelog.envelope.connect.events import Rendering
from changelog.envelope.connect.schema import to_avro
from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING, Op, Record, Stamp
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.records import BEGIN, record

P = Primitive
PREFIX = "shop.eu"

_micros = st.integers(0, 86_400_000_000 - 1)
_moments = st.datetimes()


def _clock(us: int) -> str:
    return time(us // 3_600_000_000, us // 60_000_000 % 60, us // 1_000_000 % 60, us % 1_000_000).isoformat()


_floats = st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(max_size=5)

VALUES: Mapping[ColumnType, st.SearchStrategy[tuple[Any, Any]]] = {
    P.BOOLEAN: st.booleans().map(lambda value: (value, value)),
    P.INT: st.integers(-(2**31), 2**31 - 1).map(lambda value: (value, value)),
    P.LONG: st.integers(-(2**63), 2**63 - 1).map(lambda value: (value, value)),
    P.DOUBLE: _floats.map(lambda value: (value, value)),
    P.STRING: _texts.map(lambda value: (value, value)),
    P.BYTES: st.binary(max_size=5).map(lambda value: (base64.b64encode(value).decode(), value)),
    P.UUID: st.uuids().map(lambda value: (str(value), str(value))),
    P.DATE: st.dates().map(lambda day: (day.isoformat(), (day - date(1970, 1, 1)).days)),
    P.TIME: _micros.map(lambda us: (_clock(us), us)),
    P.TIMESTAMP: _moments.map(
        lambda at: (at.isoformat(timespec="microseconds"), (at - datetime(1970, 1, 1)) // datetime.resolution)  # noqa: DTZ001
    ),
    P.TIMESTAMP_TZ: _moments.map(lambda at: (f"{at.isoformat(timespec='microseconds')}Z",) * 2),
    P.JSON: st.dictionaries(_texts, st.integers() | _texts, max_size=2).map(lambda value: (value, Text(value))),
    Decimal(precision=9, scale=3): st.decimals(-999_999, 999_999, places=3).map(lambda value: (f"{value:.3f}", value)),
    Array(element=P.INT): st.lists(st.none() | st.integers(0, 9), max_size=3).map(lambda value: (value, value)),
    Map(value=P.STRING): st.dictionaries(_texts, _texts, max_size=2).map(lambda value: (value, Text(value))),
    Struct(fields=(("lower", P.INT),)): st.integers(0, 9).map(lambda value: ({"lower": value}, Text({"lower": value}))),
}
"""For each type, a strategy that draws a published JSON value and the value that the readers must return for it."""


class Text:
    """Equals every text that is `value` as JSON, however the JSON is formatted."""

    def __init__(self, value: Any) -> None:
        self._value = value

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self._value

    def __repr__(self) -> str:
        return f"Text({self._value!r})"


def entity(*key: str, name: str = "order", partitions: int = 1) -> Entity:
    return Entity(
        name=name,
        table=("public", f"{name}s"),
        key=key or ("id",),
        partition_by=key or ("id",),
        partitions=partitions,
        masks={},
        default_stamp=Stamp(api_version="", service_name="", identifier=""),
    )


def by_json_schema(schema: Mapping[str, Any], value: Any) -> Any:
    """Reads a payload, following the schema that is beside it in the message."""
    if value is None:
        assert schema["optional"], schema
        return None
    match schema["type"]:
        case "struct":
            names = [field["field"] for field in schema["fields"]]
            assert sorted(value) == sorted(names)
            return {field["field"]: by_json_schema(field, value[field["field"]]) for field in schema["fields"]}
        case "array":
            return [by_json_schema(schema["items"], item) for item in value]
        case "bytes" if schema.get("name", "").endswith(".Decimal"):
            unscaled = int.from_bytes(base64.b64decode(value), "big", signed=True)
            return Number(unscaled).scaleb(-int(schema["parameters"]["scale"]))
        case "bytes":
            return base64.b64decode(value)
        case "boolean" | "string" as type_:
            assert isinstance(value, {"boolean": bool, "string": str}[type_])
        case type_:
            assert type(value) in ((int,) if type_.startswith("int") else (int, float))
    return value


def messages(shape: Struct, *records: Record, flat: bool = False, key: tuple[str, ...] = ("id",)) -> list[Any]:
    """Converts records to events or to flat rows. Returns the key and the value that a reader finds in each message.

    Checks that the readers of JSON and of Avro find the same.
    """
    rows = batch.from_records(records)
    schemas = event_schemas("order", shape, key, PREFIX)
    value_schema = schemas.row if flat else schemas.event
    read: list[list[Any]] = []
    for as_json in (True, False):
        rendering = Rendering(entity(*key), shape, as_json=as_json)
        rendered = rendering.flat(rows) if flat else rendering.events(rows)
        pairs = []
        for row in rendered:
            encoders = (
                [json_encoder(schemas.key), json_encoder(value_schema)]
                if as_json
                else [avro_encoder(schemas.key, b"head"), avro_encoder(value_schema, b"head")]
            )
            parts = (row.key, row.value)
            texts = [None if part is None else encode(part) for part, encode in zip(parts, encoders, strict=True)]
            read_part = from_json if as_json else from_avro
            pairs.append([read_part(text, s) for text, s in zip(texts, (schemas.key, value_schema), strict=True)])
        read.append(pairs)
    assert read[0] == read[1]
    return read[0]


def from_json(text: bytes | None, schema: Any) -> Any:
    if text is None:
        return None
    message = json.loads(text)
    return by_json_schema(message["schema"], message["payload"])


def from_avro(text: bytes | None, schema: Any) -> Any:
    if text is None:
        return None
    assert text[:4] == b"head"
    # Values such as UUIDs are read back as strings, because the schema gives them no Avro logical type that fastavro
    # would convert.
    return fastavro.schemaless_reader(io.BytesIO(text[4:]), fastavro.parse_schema(to_avro(schema)), None)


def after(shape: Struct, state: str) -> Any:
    """Returns the row that the readers find in the event of a change to this state."""
    [[_, event]] = messages(shape, record(Op.CREATE, state))
    return event["after"]


@st.composite
def states(draw: st.DrawFn) -> tuple[Struct, str, dict[str, Any]]:
    types = draw(st.lists(st.sampled_from(list(VALUES)), max_size=5))
    pairs = {f"c{number}": draw(VALUES[type_] | st.just((None, None))) for number, type_ in enumerate(types)}
    shape = Struct(fields=(("id", P.LONG), *zip(pairs, types, strict=True)))
    text = json.dumps({"id": 42, **{name: value for name, (value, _) in pairs.items()}}, ensure_ascii=False)
    return (
        shape,
        text.replace(", ", ",").replace(": ", ":"),
        {"id": 42, **{name: pair[1] for name, pair in pairs.items()}},
    )


@given(states())
def test_values_are_read_back(example: tuple[Struct, str, dict[str, Any]]) -> None:
    shape, state, expected = example
    [[key, event], [_, deleted]] = messages(shape, record(Op.UPDATE, state, state), record(Op.DELETE, None, state))
    assert key == {"id": 42}
    assert event["after"] == event["before"] == deleted["before"] == expected
    assert deleted["after"] is None
    [[_, row], [_, nothing]] = messages(shape, record(Op.READ, state), record(Op.DELETE, None, state), flat=True)
    assert (row, nothing) == (expected, None)


@given(states())
def test_copying_a_whole_state_equals_converting_its_columns(
    example: tuple[Struct, str, dict[str, Any]],
) -> None:
    shape, state, _ = example
    encode = json_encoder(event_schemas("order", shape, ("id",), PREFIX).event)
    copied, converted = (
        Rendering(entity(), shape, as_json=True).events(
            batch.from_records([record(Op.CREATE, state, unavailable=unavailable)])
        )
        for unavailable in ((), ("another",))
    )
    assert [json.loads(encode(row.value)) for row in copied] == [json.loads(encode(row.value)) for row in converted]


def test_an_event_has_the_layout_of_debezium() -> None:
    shape = Struct(fields=(("id", P.LONG), ("status", P.STRING)))
    rows = batch.from_records([record(Op.UPDATE, '{"id":42,"status":"PAID"}', '{"id":42,"status":"NEW"}', ordinal=6)])
    schemas = event_schemas("order", shape, ("id",), PREFIX)
    [row] = Rendering(entity(), shape, as_json=True).events(rows)
    message = json.loads(json_encoder(schemas.event)(row.value))
    assert (message["schema"]["name"], message["schema"]["optional"]) == ("shop.eu.order.Envelope", False)
    fields = message["schema"]["fields"]
    names = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert [field["field"] for field in fields] == list(message["payload"]) == names
    assert fields[0]["name"] == fields[1]["name"] == "shop.eu.order.Value"
    at_us = int(BEGIN.timestamp()) * 1_000_000 + BEGIN.microsecond + 1_000_000
    times = {"ts_ms": at_us // 1000, "ts_us": at_us, "ts_ns": at_us * 1000}
    assert message["payload"] == {
        "before": {"id": 42, "status": "NEW"},
        "after": {"id": 42, "status": "PAID"},
        "source": {
            "version": "1",
            "connector": "postgresql",
            "name": "booking",
            **times,
            "snapshot": "false",
            "db": "app",
            "sequence": '["00000001/0000000000000001/00000006"]',
            "schema": "public",
            "table": "orders",
            "txId": 701,
            "lsn": 1,
            "gtid": None,
            "apiVersion": "v2",
            "serviceName": "order-api",
            "identifier": "req-1",
        },
        "transaction": {"id": "701", "total_order": 6, "data_collection_order": 6},
        "op": "u",
        **times,
    }
    assert list(message["payload"]["source"]) == [field["field"] for field in fields[2]["fields"]]
    key = json.loads(json_encoder(schemas.key)(row.key))
    assert key == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int64", "optional": False, "field": "id"}],
            "optional": False,
            "name": "shop.eu.order.Key",
        },
        "payload": {"id": 42},
    }


def test_a_change_in_mariadb_has_the_source_of_mariadb() -> None:
    change = record(Op.UPDATE, '{"id":42}')
    provenance = change.envelope.provenance
    of_mariadb = replace(provenance, source=replace(provenance.source, connector="mariadb", transaction="0-1-5"))
    change = replace(change, envelope=replace(change.envelope, provenance=of_mariadb))
    [[_, event]] = messages(Struct(fields=(("id", P.LONG),)), change)
    source = event["source"]
    assert [source[name] for name in ("connector", "db", "schema", "table")] == ["mariadb", "app", None, "orders"]
    assert [source[name] for name in ("gtid", "txId", "lsn")] == ["0-1-5", None, None]
    assert event["transaction"]["id"] == "0-1-5"


def test_each_operation_has_the_letter_of_debezium() -> None:
    shape = Struct(fields=(("id", P.LONG),))
    state = '{"id":42}'
    records = [
        record(Op.CREATE, state),
        record(Op.UPDATE, state, state),
        record(Op.DELETE, None, state),
        record(Op.READ, state),
        record(Op.TRUNCATE, None, None, key=TRUNCATE_KEY),
    ]
    read = messages(shape, *records)
    assert [event["op"] for _, event in read] == ["c", "u", "d", "r", "t"]
    assert [event["source"]["snapshot"] for _, event in read] == ["false", "false", "false", "incremental", "false"]
    assert [event["transaction"] is None for _, event in read] == [False, False, False, True, False]
    assert read[-1][0] is None
    assert (read[-1][1]["before"], read[-1][1]["after"]) == (None, None)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (P.DATE, '"0044-03-15 BC"', int(np.datetime64("-0043-03-15").astype(int))),
        (P.DATE, '"0001-02-29 BC"', int(np.datetime64("0000-02-29").astype(int))),
        (P.DATE, '"12026-11-21"', int(np.datetime64("12026-11-21").astype(int))),
        (P.TIMESTAMP, '"0044-03-15 03:10:02.5 BC"', int(np.datetime64("-0043-03-15T03:10:02.5", "us").astype(int))),
        (P.TIMESTAMP, '"2026-11-21T03:10:02.500000"', 1_795_230_602_500_000),
        (P.TIME, '"24:00:00"', 86_400_000_000),
        (P.TIME, '"-838:59:59.25"', -(838 * 3600 + 59 * 60 + 59) * 1_000_000 - 250_000),
        (P.TIMESTAMP_TZ, '"infinity"', "infinity"),
        (Decimal(precision=12, scale=2), '"-13.50"', Number("-13.50")),
        (P.JSON, '{"a" :"\\ud800"}', '{"a" :"\\ud800"}'),
        (Array(element=Array(element=P.INT)), "[[1]]", "[[1]]"),
        (Array(element=P.DATE), '["1970-01-02",null]', [1, None]),
    ],
)
def test_unusual_values_are_read_back(type_: ColumnType, text: str, value: Any) -> None:
    shape = Struct(fields=(("id", P.LONG), ("c", type_)))
    assert after(shape, f'{{"id":42,"c":{text}}}') == {"id": 42, "c": value}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (P.DATE, '"infinity"'),
        (P.DATE, '"0000-00-00"'),
        (P.DATE, '"2026-00-00"'),
        (P.TIMESTAMP, '"-infinity"'),
        (P.TIMESTAMP, '"0000-00-00 00:00:00"'),
        (P.TIMESTAMP, '"294276-12-31 23:59:59"'),
        (Decimal(precision=12, scale=2), '"NaN"'),
        (Array(element=P.INT), "[[1,2],[3,4]]"),
        (Array(element=P.INT), '"[0:1]={1,2}"'),
        (Array(element=P.DATE), '["infinity"]'),
    ],
)
def test_a_value_that_connect_cannot_represent_is_null_and_its_column_is_named(type_: ColumnType, text: str) -> None:
    shape = Struct(fields=(("id", P.LONG), ("c", type_)))
    assert after(shape, f'{{"id":42,"c":{text}}}') == {"id": 42, "c": None}
    rendering = Rendering(entity(), shape, as_json=True)
    rendering.events(batch.from_records([record(Op.CREATE, f'{{"id":42,"c":{text}}}')]))
    assert rendering.without_form == {"c"}


def test_floats_that_json_lacks_are_written_as_null_or_as_a_huge_number() -> None:
    shape = Struct(fields=(("id", P.LONG), ("a", P.DOUBLE), ("b", P.FLOAT), ("c", P.DOUBLE)))
    rows = batch.from_records([record(Op.CREATE, '{"id":42,"a":"NaN","b":"-Infinity","c":1.5}')])
    [row] = Rendering(entity(), shape, as_json=True).flat(rows)
    encoded = json_encoder(event_schemas("order", shape, ("id",), PREFIX).row)(row.value)
    assert encoded.endswith(b'"payload":{"id":42,"a":null,"b":-1e999,"c":1.5}}')
    [row] = Rendering(entity(), shape, as_json=False).flat(rows)
    assert row.value["a"] != row.value["a"]
    assert (row.value["b"], row.value["c"]) == (float("-inf"), 1.5)


def test_the_null_of_json_is_not_the_null_of_sql() -> None:
    shape = Struct(fields=(("id", P.LONG), ("c", P.JSON)))
    nulls = record(Op.CREATE, '{"id":42,"c":null}')
    provenance = nulls.envelope.provenance
    marked = replace(provenance, source=replace(provenance.source, json_null=("c",)))
    of_json = replace(nulls, envelope=replace(nulls.envelope, provenance=marked))
    assert [event["after"]["c"] for _, event in messages(shape, nulls, of_json)] == [None, "null"]


def test_values_that_the_log_did_not_send_get_placeholders() -> None:
    fields = (("id", P.LONG), ("text", P.STRING), ("doc", P.JSON), ("data", P.BYTES), ("n", P.INT))
    absent = ("text", "doc", "data", "n")
    change = record(Op.UPDATE, '{"id":42}', MISSING, unavailable=absent)
    [[_, event], [_, deleted]] = messages(Struct(fields=fields), change, record(Op.DELETE, None, MISSING, key="7"))
    placeholders = {"text": PLACEHOLDER, "doc": PLACEHOLDER, "data": PLACEHOLDER.encode(), "n": None}
    assert (event["before"], event["after"]) == (None, {"id": 42, **placeholders})
    assert deleted["before"] == {"id": 7, **dict.fromkeys(absent)}


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ((P.STRING,), '["a"', {"k0": '["a"'}),
        ((P.LONG, P.STRING), '["4","\\"é\\",4"]', {"k0": 4, "k1": '"é",4'}),
        ((P.DATE, P.UUID), f'["1970-01-03","{UUID(int=7)}"]', {"k0": 2, "k1": str(UUID(int=7))}),
        ((Decimal(precision=4, scale=1), P.BOOLEAN), '["-1.5","true"]', {"k0": Number("-1.5"), "k1": True}),
        ((P.BYTES, P.DOUBLE), '["AP8Q","1.5"]', {"k0": b"\x00\xff\x10", "k1": 1.5}),
        ((P.JSON, P.INT), '["{\\"a\\":1}","0"]', {"k0": '{"a":1}', "k1": 0}),
    ],
)
def test_keys_are_read_back(types: tuple[ColumnType, ...], text: str, value: dict[str, Any]) -> None:
    names = tuple(f"k{number}" for number in range(len(types)))
    shape = Struct(fields=(*zip(names, types, strict=True), ("c", P.INT)))
    [[key, event]] = messages(shape, record(Op.DELETE, None, MISSING, key=text), key=names)
    assert key == value
    assert event["before"] == {**value, "c": None}


def test_a_key_that_connect_cannot_represent_stops_the_service() -> None:
    shape = Struct(fields=(("id", P.DATE),))
    rows = batch.from_records([record(Op.CREATE, '{"id":"infinity"}', key="infinity", ordinal=8)])
    with pytest.raises(
        ChangelogError, match="a key of the entity order cannot be represented in Debezium's types"
    ) as caught:
        Rendering(entity(), shape, as_json=True).events(rows)
    assert caught.value.kind is Kind.STOP
    assert str(caught.value.position) == "00000001/0000000000000001/00000008"


def test_names_that_avro_does_not_allow_are_escaped() -> None:
    shape = Struct(fields=(("id", P.LONG), ("a b", P.STRING)))
    schema = event_schemas("order", shape, ("id",), PREFIX).row
    rows = batch.from_records([record(Op.CREATE, '{"id":42,"a b":"x"}')])
    [row] = Rendering(entity(), shape, as_json=False).flat(rows)
    assert from_avro(avro_encoder(schema, b"head")(row.value), schema) == {"id": 42, "a_x0020_b": "x"}
    assert after(Struct(fields=(("id", P.LONG),)), '{"id":42}') == {"id": 42}


def test_a_context_with_an_unpaired_surrogate_is_read() -> None:
    plain = record(Op.CREATE, '{"id":42}')
    provenance = plain.envelope.provenance
    stamped = replace(provenance, stamp=replace(provenance.stamp, context='{"a":"\\ud800"}'))
    rows = batch.from_records([replace(plain, envelope=replace(plain.envelope, provenance=stamped))])
    [row] = Rendering(entity(), Struct(fields=(("id", P.LONG),)), as_json=True).events(rows)
    assert (row.source_name, row.value["source"]["serviceName"]) == ("booking", "order-api")
