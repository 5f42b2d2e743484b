import io
import json
from importlib.resources import files
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sinks.kafka.encoding.messages import headers
from changelog.envelope.canonical import parse, text_of
from changelog.envelope.columnar.batch import from_records
from changelog.envelope.delta import delta_codec, delta_of
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Record
from changelog.spark_jobs.deltas.derive import (
    KINDS,
    MESSAGES,
    RESET,
    SCHEMA,
    avro_values,
    derive,
    json_values,
    messages,
)
from tests.unit.envelope.strategies import records
from tests.unit.records import record

AVRO: Any = fastavro.parse_schema(json.loads(files("changelog.schemas").joinpath("delta.avsc").read_text()))


@given(st.lists(records(), max_size=3))
def test_the_arrow_function_is_the_definition(rows: list[Record]) -> None:
    made = derive(from_records(rows))
    assert made.schema == SCHEMA
    for row, delta in zip(rows, made.to_pylist(), strict=True):
        wanted = delta_of(row.envelope)
        assert text_of(parse(delta["delta"])) == text_of(parse(delta_codec.encode(wanted)))
        assert delta["position"] == str(wanted.provenance.source.position)
        assert (delta["entity"], delta["partition"], delta["key"]) == (row.entity, row.place.partition, row.place.key)
        assert delta["kind"] in KINDS
        assert (delta["kind"] == RESET) == any(operation.get("reset") for operation in wanted.patch)
        assert delta["kind"] in (RESET, delta["op"])


@given(st.lists(records(), max_size=3))
def test_messages_stand_where_their_changes_stood(rows: list[Record]) -> None:
    changes = from_records(rows)
    made = messages(derive(changes), {row.entity: f"x.{row.entity}.delta" for row in rows}, json_values)
    assert made.schema == MESSAGES
    wanted = []
    for row, delta, heads in zip(rows, derive(changes).column("delta").to_pylist(), headers(changes), strict=True):
        place = (f"x.{row.entity}.delta", row.place.partition, row.place.key.encode())
        told = [{"key": name, "value": value} for name, value in heads]
        wanted.append((*place, delta.encode(), told))
        if row.envelope.provenance.source.op is Op.DELETE:
            wanted.append((*place, None, told))
    assert [tuple(message.values()) for message in made.to_pylist()] == wanted


@given(st.lists(records(), max_size=4))
def test_messages_in_avro(rows: list[Record]) -> None:
    ids = {row.entity: 7 + number for number, row in enumerate(rows)}
    deltas = derive(from_records(rows))
    for value, row in zip(avro_values(ids)(deltas).to_pylist(), rows, strict=True):
        assert value[:5] == b"\0" + ids[row.entity].to_bytes(4, "big")
        read: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), AVRO, None)
        wanted = delta_of(row.envelope)
        assert [each["path"] for each in read["patch"]] == [each["path"] for each in wanted.patch]
        assert read["provenance"]["source"]["position"] == str(wanted.provenance.source.position)


def test_a_change_that_cannot_be_read_is_named_by_its_position() -> None:
    good = record(Op.CREATE, '{"a":1}', commit=1)
    for bad, why in (
        (record(Op.UPDATE, '{"a":"secret', '{"a":1}', commit=2), "a value is not JSON"),
        (record(Op.CREATE, commit=2), "the message of a change (create) has no current state"),
    ):
        with pytest.raises(ChangelogError) as caught:
            derive(from_records([good, bad]))
        assert caught.value.kind is Kind.MALFORMED
        assert str(caught.value) == f"entity order: {why} at 00000001/0000000000000002/00000002"
