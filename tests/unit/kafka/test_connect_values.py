"""Tests how rows become Kafka messages, in Debezium's envelope or flat (only the row after a change).

The headers of the messages must have everything that the service has to read back later.
"""

import json
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from changelog.connectors.sinks.kafka.admin.topics import refuse_other_envelope
from changelog.connectors.sinks.kafka.encoding.connect import ConnectValues
from changelog.connectors.sinks.kafka.encoding.messages import JSON, Messages, is_row, key_of, source_of
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op, Place, Record
from changelog.schemas.types import Primitive, Struct
from tests.unit.envelope.test_connect import entity
from tests.unit.records import record

SHAPE = Struct(fields=(("id", Primitive.LONG), ("name", Primitive.STRING)))
STATE = '{"id":42,"name":"Ada"}'


def messages(envelope: Any, *records: Record, partitions: int = 1) -> Messages:
    values = ConnectValues(envelope, "shop", None)
    values.prepare([entity(partitions=partitions), entity(name="bill", partitions=partitions)])
    rows = batch.with_shapes(batch.from_records(records), {"order": SHAPE, "bill": SHAPE})
    return values.messages(rows)


def payloads(result: Messages) -> list[Any]:
    return [None if value is None else json.loads(value)["payload"] for value in result.values]


def test_rows_of_several_entities_get_their_own_keys_and_values() -> None:
    result = messages(
        "flat",
        record(Op.CREATE, STATE, commit=1),
        record(Op.CREATE, STATE, commit=2, entity="bill", key="43"),
        record(Op.DELETE, None, STATE, commit=3),
    )
    assert result.rows.column("entity").to_pylist() == ["order", "order", "bill"]
    assert payloads(result) == [json.loads(STATE), None, json.loads(STATE)]
    assert [json.loads(key)["payload"] for key in result.keys] == [{"id": 42}, {"id": 42}, {"id": 43}]
    assert [json.loads(key)["schema"]["name"] for key in result.keys] == ["shop.order.Key"] * 2 + ["shop.bill.Key"]


def test_rows_of_the_changelog_itself_stay_in_our_envelope() -> None:
    row = record(Op.CREATE, "{}", entity="schemas", key="order")
    result = messages("debezium", row)
    assert result == JSON.messages(result.rows)
    assert result.keys == [b"order"]


def test_headers_are_plain_text_for_kafka_connect() -> None:
    moved = record(
        Op.DELETE, None, STATE, key='["4","é{"]', service='{"a":[1,"b"]}', moved_to=Place(key="5", partition=0)
    )
    values = ConnectValues("debezium", "shop", None)
    values.prepare([entity("id", "name")])
    result = values.messages(batch.with_shapes(batch.from_records([moved]), {"order": SHAPE}))
    assert result.headers == [
        [
            ("op", b"delete"),
            ("position", b"00000001/0000000000000001/00000002"),
            ("transaction", b"701"),
            ("entityKey", b"=%5B%224%22%2C%22%C3%A9%7B%22%5D"),
            ("sourceName", b"booking"),
        ]
    ]
    message = Mock(headers=lambda: result.headers[0], value=lambda: None, key=lambda: result.keys[0])
    assert (key_of(message).decode(), source_of(message)) == (moved.place.key, "booking")
    assert is_row(message)


def test_a_header_can_say_that_the_key_is_empty() -> None:
    message = Mock(headers=lambda: [("entityKey", b"=")], value=lambda: None, key=lambda: b"{}")
    assert key_of(message) == b""


def test_the_tombstone_after_a_delete_is_no_row() -> None:
    assert not is_row(Mock(headers=lambda: [("op", b"delete"), ("sourceName", b"x")], value=lambda: None))
    assert not is_row(Mock(headers=lambda: None, value=lambda: None))


@pytest.mark.parametrize(("envelope", "partitions", "count"), [("debezium", 1, 2), ("debezium", 2, 1), ("flat", 1, 1)])
def test_a_truncate_without_a_message_is_left_out_with_a_warning(envelope: str, partitions: int, count: int) -> None:
    truncate = record(Op.TRUNCATE, None, None, key=TRUNCATE_KEY)
    with structlog.testing.capture_logs() as logs:
        result = messages(envelope, truncate, record(Op.CREATE, STATE, commit=2), partitions=partitions)
    assert len(result.values) == result.rows.num_rows == count
    assert [(line["event"], line["entity"]) for line in logs] == [("left out a truncate", "order")] * (2 - count)
    if count == 2:
        assert result.keys[0] == b'{"schema":null,"payload":null}'
        assert payloads(result)[0]["op"] == "t"


def test_a_batch_of_truncates_alone_has_no_message() -> None:
    with structlog.testing.capture_logs() as logs:
        result = messages("flat", record(Op.TRUNCATE, None, None, key=TRUNCATE_KEY))
    assert len(logs) == 1
    assert (result.rows.num_rows, result.values) == (0, [])


def test_no_message_exceeds_its_upper_bound() -> None:
    result = messages("debezium", record(Op.CREATE, STATE, key="4" * 300), record(Op.DELETE, None, STATE, key="7"))
    for key, value, heads in zip(result.keys, result.values, result.headers, strict=True):
        assert len(key) + len(value or b"") + sum(len(text) for _, text in heads) <= result.nbytes_max


def test_a_value_that_debezium_cannot_represent_is_reported_once() -> None:
    values = ConnectValues("flat", "shop", None)
    values.prepare([entity()])
    shape = Struct(fields=(("id", Primitive.LONG), ("day", Primitive.DATE)))
    rows = batch.with_shapes(batch.from_records([record(Op.CREATE, '{"id":42,"day":"infinity"}')]), {"order": shape})
    with structlog.testing.capture_logs() as logs:
        results = [values.messages(rows), values.messages(rows)]
    assert [payloads(messages_) for messages_ in results] == [[{"id": 42, "day": None}]] * 2
    assert [(line["entity"], line["column"]) for line in logs] == [("order", "day")]


@pytest.mark.parametrize(
    ("stored", "envelope", "refused"),
    [
        ({}, "changelog", None),
        ({"codec": "avro"}, "changelog", None),
        ({"codec": "flat-json"}, "flat", None),
        ({"codec": "flat-json"}, "changelog", "flat"),
        ({"codec": "debezium-avro"}, "flat", "debezium"),
        ({}, "debezium", "changelog"),
        ({"codec": "avro"}, "debezium", "changelog"),
    ],
)
def test_a_topic_keeps_its_envelope(stored: dict[str, str], envelope: str, refused: str | None) -> None:
    refuse_other_envelope("shop.{}".format, envelope, {"order": stored}, {"shop.order"})
    if refused is None:
        refuse_other_envelope("shop.{}".format, envelope, {"order": stored}, ())
        return
    with pytest.raises(ChangelogError, match=f'shop.order was begun with "{refused}"') as caught:
        refuse_other_envelope("shop.{}".format, envelope, {"order": stored}, ())
    assert caught.value.kind is Kind.SETTINGS
