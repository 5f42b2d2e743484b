"""Tests three questions about a changelog: the history of a key, its blame (who set each value), and what a service
wrote. The answers must be the same for Kafka topics as for files.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.history.key_history import key_history
from changelog.connectors.history.writes import writes
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.sink import KafkaSettings, KafkaSink
from changelog.envelope.columnar import batch
from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.model import Op, Place, Stamp, position_of
from changelog.envelope.position import Position
from tests.integration.kafka.topics import settled
from tests.unit.history.stored import store
from tests.unit.records import checkpoint, record

ORDER = Entity(
    name="order",
    table=("public", "order"),
    key=("id",),
    partition_by=("region",),
    partitions=3,
    masks={},
    default_stamp=Stamp(api_version="", service_name="", identifier=""),
)


def place(key: str, partition: int) -> Place:
    return Place(key=key, partition=partition)


RECORDS = [
    record(Op.CREATE, '{"id":1,"a":{"x":1},"b":1}', commit=1, key="1", partition=2),
    record(Op.DELETE, commit=2, ordinal=0, key="1", partition=2, moved_to=place("1", 0), service="router"),
    record(
        Op.CREATE,
        '{"id":1,"a":{"x":1},"b":2}',
        commit=2,
        ordinal=1,
        key="1",
        moved_from=place("1", 2),
        service="router",
    ),
    record(Op.UPDATE, '{"id":1,"a":{"x":2}}', commit=3, key="1", unavailable=("b",), service="payments"),
    record(Op.DELETE, commit=4, ordinal=0, key="1", moved_to=place("2", 1), service="merge"),
    record(
        Op.CREATE,
        '{"id":2,"a":{"x":2}}',
        commit=4,
        ordinal=1,
        key="2",
        partition=1,
        moved_from=place("1", 0),
        unavailable=("b",),
        service="merge",
    ),
    record(Op.CREATE, '{"id":3}', commit=5, key="3"),
    *(record(Op.TRUNCATE, None, None, commit=6, key=TRUNCATE_KEY, partition=number) for number in range(3)),
    record(Op.CREATE, '{"id":1}', commit=7, key="1"),
]


def test_topics_give_the_same_answers_as_files(settings: KafkaSettings, tmp_path: Path) -> None:
    with closing(KafkaSink(settings, JSON)) as sink:
        sink.prepare([ORDER])
        sink.recover()
        sink.add([batch.from_records(RECORDS)])
        sink.commit(replace(checkpoint(7), settings={"order": ORDER.shape()}))
    parts = [("positions", 0), *(("order", number) for number in range(ORDER.partitions))]
    settled(settings.client, [(f"{settings.prefix}.{name}", number) for name, number in parts])
    topics = KafkaLog(settings.client, JSON, prefix=settings.prefix, name=settings.name)
    files = store(tmp_path, RECORDS)
    for key in ("1", "2", "3"):
        assert key_blame(topics, "order", key) == key_blame(files, "order", key)
        in_topics, in_files = (key_history(log, "order", key) for log in (topics, files))
        assert list(map(position_of, in_topics)) == list(map(position_of, in_files))
    before_truncate = key_blame(topics, "order", "2", at=Position(1, 5, 9))
    assert before_truncate == key_blame(files, "order", "2", at=Position(1, 5, 9))
    assert before_truncate.services == ("merge", "payments", "router")
    for service, identifier in (("merge", None), (None, "req-1"), (None, None)):
        answers = [writes(log, service=service, identifier=identifier, entity="order") for log in (topics, files)]
        assert answers[0] == answers[1]
