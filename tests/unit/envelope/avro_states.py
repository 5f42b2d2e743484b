"""Draws random rows as JSON objects, and messages that have these rows.

A *shape* gives the names and types of a row's columns. The JSON is as sources write it: compact, and with the columns
in the order of the shape.
"""

import base64
import copy
import io
import struct
from datetime import UTC, datetime
from typing import Any

import fastavro
import msgspec
from hypothesis import strategies as st
from msgspec import Raw

from changelog.envelope.codec import floats
from changelog.envelope.codec.avro_values import json_object, quoted
from changelog.envelope.model import MISSING, Envelope, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position
from changelog.schemas.avro import Schema
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from tests.unit.envelope.strategies import contexts, values

P = Primitive

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text('\\"{}[]:, \n', max_size=6)


def strings(of: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return of.map(quoted)


def _clock(micros: int) -> str:
    text = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%H:%M:%S")
    fraction = micros % 1_000_000
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


dates = st.dates().map(str) | st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "0000-01-01", "10000-01-01"])
instants = st.datetimes().map(lambda at: at.isoformat(timespec="microseconds")) | st.sampled_from(
    ["infinity", "0044-03-15 10:00:00 BC", "0000-12-31T23:59:59.999999", "10000-01-01 00:00:00"]
)
singles = st.integers(0, 2**32 - 1).map(lambda bits: struct.unpack("<f", bits.to_bytes(4, "little"))[0])
documents = values.map(msgspec.json.encode) | st.sampled_from(
    [b'{"a" : 1e5,"a":-0}', b'"\\ud800"', b'[1, "\\"", {"b":"]"}]', b'"\\\\"', b"1.50"]
)

_TOKENS: dict[Primitive, st.SearchStrategy[bytes]] = {
    P.BOOLEAN: st.sampled_from([b"true", b"false"]),
    P.INT: st.integers(-(2**31), 2**31 - 1).map(lambda value: b"%d" % value),
    P.LONG: st.integers(-(2**63), 2**63 - 1).map(lambda value: b"%d" % value),
    P.FLOAT: singles.map(lambda value: floats.token(value, single=True)),
    P.DOUBLE: st.floats().map(lambda value: floats.token(value, single=False)),
    P.STRING: strings(texts),
    P.BYTES: st.binary(max_size=5).map(lambda value: quoted(base64.b64encode(value).decode())),
    P.UUID: strings(st.uuids().map(str)),
    P.DATE: strings(dates),
    P.TIME: strings(st.integers(0, 86_400_000_000 - 1).map(_clock) | st.just("24:00:00")),
    P.TIMESTAMP: strings(instants),
    P.TIMESTAMP_TZ: strings(instants.map(lambda text: text if " " in text or "y" in text else text + "Z")),
    P.JSON: documents,
}


def tokens(type_: ColumnType) -> st.SearchStrategy[bytes]:
    """Draws JSON values of a column type. The column's Avro type cannot hold some of them, such as NaN in a decimal."""
    match type_:
        case Primitive():
            return _TOKENS[type_]
        case Decimal(precision=precision, scale=scale):
            usual = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda value: _point(value, scale))
            return strings(usual | st.sampled_from(["NaN", "1.5", "-0", "12345678901234567890.1"]))
        case Array(element=element):
            row = st.lists(tokens(element) | st.just(b"null"), max_size=3).map(_list)
            return row | st.lists(row, min_size=1, max_size=2).map(_list) | st.just(b'"[0:1]={1,2}"')
        case Map(value=value):
            return st.dictionaries(texts, tokens(value) | st.just(b"null"), max_size=3).map(
                lambda members: json_object([(quoted(name), item) for name, item in members.items()])
            )
        case Struct(fields=fields):
            return st.tuples(*(tokens(item) | st.just(b"null") for _, item in fields)).map(
                lambda items: json_object([(quoted(name), item) for (name, _), item in zip(fields, items, strict=True)])
            ) | strings(st.just("(1,2"))


@st.composite
def states(draw: st.DrawFn, shape: Struct, key: str) -> tuple[bytes, tuple[str, ...]]:
    """Draws the JSON of a row, and the names of the columns that this JSON lacks because they are unavailable."""
    members, unavailable = [], []
    for name, type_ in shape.fields:
        if name != key and draw(st.integers(0, 9)) == 0:
            unavailable.append(name)
            continue
        members.append((quoted(name), draw(tokens(type_) if name == key else tokens(type_) | st.just(b"null"))))
    return json_object(members), tuple(unavailable)


@st.composite
def record(draw: st.DrawFn, shape: Struct, key: str) -> Record:
    """Draws a random change of a row with the columns of `shape`."""
    op = draw(st.sampled_from(Op))
    current, unavailable = draw(states(shape, key))
    original, unavailable_original = draw(states(shape, key))
    has_original = op in (Op.UPDATE, Op.DELETE)
    source = Source(
        connector="postgres",
        name="booking",
        database="app",
        table=draw(st.sampled_from(["public.orders", 'public."a\\"'])),
        op=op,
        position=Position(1, draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**32 - 1))),
        transaction=str(draw(st.integers(0, 2**64 - 1))),
        committed_at=draw(st.datetimes(timezones=st.just(UTC))),
        unavailable=() if op in (Op.DELETE, Op.TRUNCATE) else unavailable,
        unavailable_original=unavailable_original if has_original else (),
        mask=draw(st.none() | st.just("00ff")),
        id=draw(st.none() | texts),
    )
    return Record(
        entity="order",
        place=Place(key="1", partition=0),
        envelope=Envelope(
            provenance=Provenance(
                stamp=Stamp(
                    api_version="v2",
                    service_name=draw(texts),
                    identifier=draw(texts),
                    context=draw(st.none() | contexts),
                ),
                source=source,
            ),
            current=None if op in (Op.DELETE, Op.TRUNCATE) else Raw(current),
            original=Raw(original) if has_original else None if op is Op.TRUNCATE else MISSING,
        ),
    )


def before_contexts(schema: Schema) -> Schema:
    """Returns the entity's schema as it was before stamps had a context."""
    old = copy.deepcopy(schema)
    provenance = old["fields"][0]["type"]
    fields = [field for field in provenance["fields"] if field["name"] != "context"]
    assert len(fields) == len(provenance["fields"]) - 1
    provenance["fields"] = fields
    return old


def written_before_contexts(body: bytes, schema: Schema) -> bytes:
    """Encodes the content of a message again, in the form that messages had before stamps had a context."""
    out = io.BytesIO()
    datum: Any = fastavro.schemaless_reader(io.BytesIO(body), fastavro.parse_schema(schema), None)
    fastavro.schemaless_writer(out, fastavro.parse_schema(before_contexts(schema)), datum)
    return out.getvalue()


def _list(items: list[bytes]) -> bytes:
    return b"[%b]" % b",".join(items)


def _point(value: int, scale: int) -> str:
    digits = str(abs(value)).rjust(scale + 1, "0")
    integer, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return ("-" if value < 0 else "") + integer + ("." if scale else "") + fraction
