"""Tests how records become Kafka messages, and how they are read back from the messages.

`json_codec` makes the values of the messages.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sinks.kafka.encoding.messages import JSON, headers, record
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Place, Record
from tests.unit import records as made
from tests.unit.envelope.strategies import records

few_records = st.lists(records(), max_size=4)


@given(few_records)
def test_values_are_those_of_the_codec(expected: list[Record]) -> None:
    rows = batch.from_records(expected)
    assert JSON.encode(rows) == [json_codec.encode(one_record.envelope) for one_record in expected]
    assert JSON.encode(rows.slice(1)) == [json_codec.encode(one_record.envelope) for one_record in expected[1:]]


@given(few_records)
def test_a_message_is_read_back_as_its_record(expected: list[Record]) -> None:
    rows = batch.from_records(expected)
    read_back = [
        record(one_record.entity, one_record.place.partition, one_record.place.key.encode(), value, heads, JSON.decode)
        for one_record, value, heads in zip(expected, JSON.encode(rows), headers(rows), strict=True)
    ]
    assert read_back == expected


def test_messages_have_the_expected_headers() -> None:
    rows = batch.from_records(
        [
            made.record(Op.CREATE, "{}"),
            made.record(Op.DELETE, None, "{}", commit=2, moved_to=Place(key='["é",1]', partition=3)),
        ]
    )
    first, second = headers(rows)
    assert first == [
        ("op", b"create"),
        ("position", b"00000001/0000000000000001/00000002"),
        ("transaction", b"701"),
        ("serviceName", b"order-api"),
    ]
    assert [name for name, _ in second] == ["op", "position", "transaction", "serviceName", "movedTo"]
    assert json.loads(second[-1][1]) == {"key": '["é",1]', "partition": 3}


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b"\0\0\0\0\1\2"])
def test_an_invalid_envelope_is_refused(value: bytes) -> None:
    with pytest.raises(ChangelogError) as caught:
        record("order", 0, b"42", value, [], JSON.decode)
    assert caught.value.kind is Kind.MALFORMED
    assert ('codec = "avro"' in str(caught.value)) == value.startswith(b"\0")


def test_a_header_of_a_move_without_its_destination_is_refused() -> None:
    (value,) = JSON.encode(batch.from_records([made.record(Op.CREATE, "{}")]))
    with pytest.raises(ChangelogError, match="invalid header movedTo"):
        record("order", 0, b"42", value, [("movedTo", b"{}")], JSON.decode)
