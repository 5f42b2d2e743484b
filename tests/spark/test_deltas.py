"""Tests that a batch of changes gives the same deltas as its changes one by one. The deltas must become correct Kafka
messages.

A *delta* describes, as a patch, what one change did to its row.
"""

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
    Topics,
    avro_values,
    derive,
    json_values,
    messages,
)
from tests.unit.envelope.strategies import records
from tests.unit.records import record

AVRO: Any = fastavro.parse_schema(json.loads(files("changelog.schemas").joinpath("delta.avsc").read_text()))


@given(st.lists(records(), max_size=3))
def test_a_batch_becomes_the_same_deltas_as_its_changes_one_by_one(rows: list[Record]) -> None:
    deltas = derive(from_records(rows))
    assert deltas.schema == SCHEMA
    for row, delta in zip(rows, deltas.to_pylist(), strict=True):
        expected = delta_of(row.envelope)
        assert text_of(parse(delta["delta"])) == text_of(parse(delta_codec.encode(expected)))
        assert delta["position"] == str(expected.provenance.source.position)
        assert (delta["entity"], delta["partition"], delta["key"]) == (row.entity, row.place.partition, row.place.key)
        assert delta["kind"] in KINDS
        assert (delta["kind"] == RESET) == any(operation.get("reset") for operation in expected.patch)
        assert delta["kind"] in (RESET, delta["op"])


@given(st.lists(records(), max_size=3))
def test_a_delta_has_the_partition_and_key_of_its_change(rows: list[Record]) -> None:
    changes = from_records(rows)
    produced = messages(
        derive(changes), Topics(present={row.entity: f"x.{row.entity}.delta" for row in rows}), json_values
    )
    assert produced.schema == MESSAGES
    expected = []
    for row, delta, heads in zip(rows, derive(changes).column("delta").to_pylist(), headers(changes), strict=True):
        address = (f"x.{row.entity}.delta", row.place.partition, row.place.key.encode())
        copied = [{"key": name, "value": value} for name, value in heads]
        expected.append((*address, delta.encode(), copied))
        if row.envelope.provenance.source.op is Op.DELETE:
            expected.append((*address, None, copied))
    assert [tuple(message.values()) for message in produced.to_pylist()] == expected


@given(st.lists(records(), max_size=4))
def test_deltas_in_avro_have_the_paths_and_positions_of_their_changes(rows: list[Record]) -> None:
    ids = {row.entity: 7 + number for number, row in enumerate(rows)}
    deltas = derive(from_records(rows))
    for value, row in zip(avro_values(ids)(deltas).to_pylist(), rows, strict=True):
        assert value[:5] == b"\0" + ids[row.entity].to_bytes(4, "big")
        decoded: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), AVRO, None)
        expected = delta_of(row.envelope)
        assert [operation["path"] for operation in decoded["patch"]] == [
            operation["path"] for operation in expected.patch
        ]
        assert decoded["provenance"]["source"]["position"] == str(expected.provenance.source.position)


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
