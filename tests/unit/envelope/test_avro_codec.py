"""Tests the Avro codec. A value that is encoded and decoded again must still have the same canonical text. Only the
spelling of its JSON may differ.

Many rows are encoded column by column, and few rows one by one. Both ways must give the same bytes.
"""

import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal as Number
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope import canonical
from changelog.envelope.codec.avro_codec import AvroCodec
from changelog.envelope.columnar import avro_columns, batch
from changelog.envelope.columnar.avro_columns import ColumnarEncoder
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope, Missing, Op, Record
from changelog.schemas import avro
from changelog.schemas.compatibility import Mode, problems
from changelog.schemas.types import Array, Decimal, Map, Primitive, Struct
from tests.unit import records
from tests.unit.envelope.avro_states import before_contexts, record, written_before_contexts
from tests.unit.envelope.strategies import HOSTILE_CONTEXTS
from tests.unit.schemas.strategies import shapes

P = Primitive

WIDE = Struct(
    fields=(
        ("id", P.LONG),
        ("status", P.STRING),
        ("amount", Decimal(precision=10, scale=2)),
        ("whole", Decimal(precision=18, scale=0)),
        ("huge", Decimal(precision=40, scale=3)),
        ("paid", P.BOOLEAN),
        ("n", P.INT),
        ("ratio", P.FLOAT),
        ("score", P.DOUBLE),
        ("day", P.DATE),
        ("at", P.TIME),
        ("seen", P.TIMESTAMP),
        ("made", P.TIMESTAMP_TZ),
        ("ref", P.UUID),
        ("data", P.BYTES),
        ('a "name"', P.STRING),
    )
)
NESTED = Struct(
    fields=(
        ("id", P.STRING),
        ("doc", P.JSON),
        ("tags", Array(element=P.STRING)),
        ("labels", Map(value=P.STRING)),
        ("line", Struct(fields=(("n", P.INT), ("price", Decimal(precision=5, scale=1))))),
        ("docs", Array(element=P.JSON)),
        ("note", P.STRING),
    )
)

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.fixture(scope="module", autouse=True)
def _columns_even_for_few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_columns, "FEW_ROWS", 0)
        yield


def codec_of(shape: Struct) -> AvroCodec:
    return AvroCodec(avro.value_schema("order", shape, [shape.fields[0][0]], "booking"))


def check(shape: Struct, expected: list[Record]) -> None:
    """Checks that rows get the same bytes whether they are encoded one by one or column by column.

    Our decoder and fastavro must be able to read these bytes.
    """
    schema = avro.value_schema("order", shape, [shape.fields[0][0]], "booking")
    codec, parsed = AvroCodec(schema), fastavro.parse_schema(schema)
    bodies = [codec.encode(row.envelope) for row in expected]
    for row, body in zip(expected, bodies, strict=True):
        decoded = codec.decode(body)
        assert decoded.provenance == row.envelope.provenance
        assert same(decoded.current, row.envelope.current)
        assert same(decoded.original, row.envelope.original)
        datum = read_by_fastavro(body, parsed)
        assert datum["provenance"]["source"]["op"] == row.envelope.provenance.source.op
    assert ColumnarEncoder(codec, b"head").encode(batch.from_records(expected)) == [b"head" + body for body in bodies]


def same(a: Raw | None | Missing, b: Raw | None | Missing) -> bool:
    if isinstance(a, Raw) and isinstance(b, Raw):
        return canonical.equal(a, b)
    return a is b


def read_by_fastavro(body: bytes, schema: Any) -> Any:
    stream = io.BytesIO(body)
    datum = fastavro.schemaless_reader(stream, schema, None)
    assert stream.read() == b""
    return datum


@pytest.mark.parametrize("identifier", ["i", 'a "quote" takes more characters in JSON'])
def test_contexts_are_encoded_in_columns_and_some_rows_may_have_none(identifier: str) -> None:
    shape = Struct(fields=(("id", P.LONG),))
    rows = [records.record(Op.CREATE, f'{{"id":{n}}}', commit=n + 1) for n in range(2 * len(HOSTILE_CONTEXTS))]
    check(shape, [_with_context(row, identifier, (*HOSTILE_CONTEXTS, None)[n % 9]) for n, row in enumerate(rows)])
    check(shape, [_with_context(row, identifier, HOSTILE_CONTEXTS[n % 8]) for n, row in enumerate(rows)])
    moved = [_with_context(row, identifier, HOSTILE_CONTEXTS[n % 8], table="x" * n) for n, row in enumerate(rows)]
    check(shape, moved)


def _with_context(row: Record, identifier: str, context: str | None, table: str = "public.orders") -> Record:
    provenance = row.envelope.provenance
    stamp, source = (
        replace(provenance.stamp, identifier=identifier, context=context),
        replace(provenance.source, table=table),
    )
    return replace(row, envelope=replace(row.envelope, provenance=replace(provenance, stamp=stamp, source=source)))


def test_older_versions_and_this_one_read_each_others_messages() -> None:
    """The provenance of older versions has no context. Readers with an older schema skip the context that we write."""
    shape = Struct(fields=(("id", P.LONG),))
    new_schema = avro.value_schema("order", shape, ["id"], "booking")
    old_schema = before_contexts(new_schema)
    row = records.record(Op.CREATE, '{"id":42}')
    body = AvroCodec(new_schema).encode(row.envelope)
    assert AvroCodec(new_schema).decode(body) == row.envelope
    older, newer = fastavro.parse_schema(old_schema), fastavro.parse_schema(new_schema)
    written = written_before_contexts(body, new_schema)
    assert len(written) == len(body) - 1
    assert AvroCodec(old_schema).decode(written) == row.envelope
    stamped = _with_context(row, "i", '{"ticket":"PAY-7"}').envelope
    datum: Any = fastavro.schemaless_reader(io.BytesIO(AvroCodec(new_schema).encode(stamped)), newer, older)
    assert "context" not in datum["provenance"]
    assert datum["current"] == {"id": 42}
    assert problems(new_schema, [("before", old_schema)], Mode.FULL_TRANSITIVE) == []


def test_dates_of_the_first_and_the_last_year_are_encoded_in_columns() -> None:
    """MySQL has a year 0. Avro decoders cannot return dates before the year 1, so such dates are published as text."""
    shape = Struct(fields=(("id", P.LONG), ("day", P.DATE), ("seen", P.TIMESTAMP), ("made", P.TIMESTAMP_TZ)))
    days = ["0000-01-01", "0000-12-31", "0001-01-01", "9999-12-31"]
    states = [
        f'{{"id":{n},"day":"{day}","seen":"{day}T23:59:59.999999","made":"{day}T00:00:00.000000Z"}}'
        for n, day in enumerate(days)
    ]
    check(shape, [records.record(Op.CREATE, state, commit=n + 1) for n, state in enumerate(states)])


@settings(few, max_examples=20)
@given(st.data())
def test_rows_of_any_shape_are_encoded_and_read_back(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    check(shape, data.draw(st.lists(record(shape, shape.fields[0][0]), min_size=1, max_size=3)))


@few
@given(st.lists(record(WIDE, "id"), min_size=1, max_size=8))
def test_columns_of_every_plain_type_are_encoded(rows: list[Record]) -> None:
    check(WIDE, rows)


@few
@given(st.lists(record(NESTED, "id"), min_size=1, max_size=8))
def test_nested_columns_are_encoded(rows: list[Record]) -> None:
    check(NESTED, rows)


def test_fastavro_reads_native_values() -> None:
    state = (
        '{"id":42,"status":null,"amount":"-13.50","whole":"7","huge":"NaN","paid":true,"n":-1,"ratio":1.5,'
        '"score":"NaN","day":"infinity","at":"03:10:02.5","seen":"2026-11-21T03:10:02.500000",'
        '"made":"2026-11-21T03:10:02.500000Z","ref":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","data":"AP8Q",'
        '"a \\"name\\"":"x"}'
    )
    envelope = records.record(Op.CREATE, state).envelope
    schema = avro.value_schema("order", WIDE, ["id"], "booking")
    datum = read_by_fastavro(AvroCodec(schema).encode(envelope), fastavro.parse_schema(schema))
    assert datum["original"] is None
    assert datum["provenance"]["source"]["committedAt"] == envelope.provenance.source.committed_at
    current = datum["current"]
    assert current.pop("score") != current.get("score")
    assert str(current.pop("ref")) == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert current == {
        "id": 42,
        "status": None,
        "amount": Number("-13.50"),
        "whole": Number(7),
        "huge": "NaN",
        "paid": True,
        "n": -1,
        "ratio": 1.5,
        "day": "infinity",
        "at": time(3, 10, 2, 500000),
        "seen": datetime(2026, 11, 21, 3, 10, 2, 500000),  # noqa: DTZ001
        "made": datetime(2026, 11, 21, 3, 10, 2, 500000, UTC),
        "data": b"\x00\xff\x10",
        "a_x0020__x0022_name_x0022_": "x",
    }


def test_arrays_of_several_dimensions_are_json_text() -> None:
    shape = Struct(fields=(("id", P.INT), ("grid", Array(element=P.INT)), ("days", Array(element=P.DATE))))
    schema = avro.value_schema("order", shape, ["id"], "booking")
    envelope = records.record(Op.CREATE, '{"id":1,"grid":[[1,2],[3,4]],"days":["2026-11-21",null,"infinity"]}').envelope
    datum = read_by_fastavro(AvroCodec(schema).encode(envelope), fastavro.parse_schema(schema))
    assert datum["current"] == {"id": 1, "grid": "[[1,2],[3,4]]", "days": [date(2026, 11, 21), None, "infinity"]}


def test_null_and_unavailable_are_distinguished() -> None:
    codec = codec_of(NESTED)
    state = '{"id":"1","doc":null,"tags":[],"labels":{},"line":null,"docs":[null]}'
    envelope = records.record(Op.CREATE, state, unavailable=("note",)).envelope
    decoded = codec.decode(codec.encode(envelope))
    assert decoded == envelope
    assert bytes(decoded.current or b"").decode() == state


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ('{"id":1,"n":2147483648}', "a value of column n does not fit its type in the schema"),
        ('{"id":1,"n":"7"}', "a value of column n does not fit its type in the schema"),
        ('{"id":null,"n":7}', "a value of column id does not fit its type in the schema"),
        ('{"id":1}', "column n is missing, and is not listed as unavailable"),
        ('{"id":1,"n":7,"extra":1}', "column extra is not in the schema"),
        ("[1]", "a state is not a JSON object"),
    ],
)
def test_a_state_of_another_shape_is_refused(state: str, message: str) -> None:
    codec = codec_of(Struct(fields=(("id", P.INT), ("n", P.INT))))
    bad = records.record(Op.CREATE, state)
    for encode in (
        lambda: codec.encode(bad.envelope),
        lambda: ColumnarEncoder(codec, b"").encode(
            batch.from_records([records.record(Op.CREATE, '{"id":1,"n":2}'), bad])
        ),
    ):
        with pytest.raises(ChangelogError) as caught:
            encode()
        assert (caught.value.kind, caught.value.message) == (Kind.MALFORMED, message)
        assert caught.value.__cause__ is None or "2147483648" not in str(caught.value.__cause__)


def test_members_in_another_order_or_with_blanks_are_read() -> None:
    codec = codec_of(Struct(fields=(("id", P.INT), ("n", P.STRING))))
    plain, reordered = (records.record(Op.CREATE, text) for text in ('{"id":1,"n":"x"}', '{ "n" : "x" , "id" : 1 }'))
    values = ColumnarEncoder(codec, b"").encode(batch.from_records([plain, reordered, plain]))
    assert values == [codec.encode(plain.envelope)] * 3


def test_many_rows_in_a_slice_of_a_batch_are_encoded() -> None:
    codec = codec_of(WIDE)
    state = (
        '{{"id":{0},"status":"{1}","amount":"{0}.25","whole":"{0}","huge":"0.125","paid":false,"n":{0},"ratio":0.1,'
        '"score":1e+20,"day":"2026-11-21","at":"03:10:02","seen":"1969-12-31T23:59:59.999999",'
        '"made":"0001-01-01T00:00:00.000000Z","ref":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","data":"",'
        '"a \\"name\\"":"{1}"}}'
    )
    states = [state.format(number, "x" * (number % 300)) for number in range(avro_columns.ROWS_MAX + 5)]
    all_rows = [records.record(Op.UPDATE, text, text, commit=number) for number, text in enumerate(states)]
    rows = batch.from_records(all_rows).slice(3)
    assert ColumnarEncoder(codec, b"").encode(rows) == [codec.encode(row.envelope) for row in all_rows[3:]]


def test_a_commit_time_in_another_zone_is_the_same_moment() -> None:
    codec = codec_of(Struct(fields=(("id", P.INT),)))
    envelope = records.record(Op.CREATE, '{"id":1}').envelope
    source = envelope.provenance.source
    local_time = source.committed_at.astimezone(timezone(timedelta(hours=5)))
    assert local_time.utcoffset()
    decoded = codec.decode(codec.encode(_at(envelope, local_time)))
    assert decoded.provenance.source.committed_at == source.committed_at
    with pytest.raises(ValueError, match="needs a zone"):
        codec.encode(_at(envelope, local_time.replace(tzinfo=None)))


def _at(envelope: Envelope, moment: datetime) -> Envelope:
    provenance = envelope.provenance
    return replace(envelope, provenance=replace(provenance, source=replace(provenance.source, committed_at=moment)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_decoded_to_another_envelope(data: st.DataObject) -> None:
    codec = codec_of(NESTED)
    state = '{"id":"1","doc":{},"tags":["a",null],"labels":{"a":"b"},"line":{"n":1,"price":"1.5"},"docs":[1],"note":""}'
    body = bytearray(codec.encode(records.record(Op.UPDATE, state, state).envelope))
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=2)):
        body[place] = data.draw(st.integers(0, 255))
    with suppress(ChangelogError):  # no other error may be raised
        assert isinstance(codec.decode(bytes(body[: data.draw(st.integers(0, len(body)))])), Envelope)
