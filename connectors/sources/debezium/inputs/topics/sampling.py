"""Reads the last few messages of topics, to learn from which tables they come, and which columns these tables have."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from changelog.connectors.kafka.client import error_of, translated
from changelog.connectors.kafka.offsets import Part, begins, ends
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.inputs.topics.messages import message_of
from changelog.connectors.sources.debezium.inputs.topics.settings import TopicsSettings
from changelog.envelope.errors import ChangelogError, Kind

_BACK, _GROWTH, _BACK_MAX = 16, 8, 10_000
_SILENCE_S = 15.0
_READING = "reading the last messages of topics"


def samples(
    settings: TopicsSettings, parts: Sequence[Part], suffices: Callable[[Sequence[SourceRecord]], bool]
) -> Mapping[str, Sequence[SourceRecord]]:
    """Returns the last messages of each topic, oldest first within a partition.

    First reads a few messages of every partition. While `suffices` says that the messages of a topic are not enough,
    reads them again together with older ones, up to a limit.
    """
    admin = settings.client.admin()
    first, last = begins(admin, parts), ends(admin, parts)
    messages: dict[str, list[SourceRecord]] = {topic: [] for topic, _ in parts}
    pending = [part for part in parts if first[part] < last[part]]
    back = _BACK
    with closing(settings.client.reader(group=settings.group)) as consumer:
        while pending and back <= _BACK_MAX:
            spans = {part: range(max(first[part], last[part] - back), last[part]) for part in pending}
            for topic in {topic for topic, _ in pending}:
                messages[topic] = []
            for message in _read(consumer, spans):
                messages[message.topic].append(message)
            pending = [
                part for part, span in spans.items() if span.start > first[part] and not suffices(messages[part[0]])
            ]
            back *= _GROWTH
    return messages


def _read(consumer: Consumer, spans: Mapping[Part, range]) -> Iterator[SourceRecord]:
    pending = dict(spans)
    deadline = time.monotonic() + _SILENCE_S
    with translated(_READING):
        consumer.assign([TopicPartition(*part, span.start) for part, span in spans.items()])
        while pending:
            answer = consumer.poll(max(deadline - time.monotonic(), 0.0))
            if answer is None:
                raise ChangelogError(Kind.CONNECTION, f"{_READING}: Kafka has been silent for {_SILENCE_S:.0f} s")
            deadline = time.monotonic() + _SILENCE_S
            part, error = (answer.topic() or "", cast(int, answer.partition())), answer.error()
            if error is None:
                offset, span = answer.offset() or 0, pending.get(part)
                if span is not None and offset < span.stop:
                    yield message_of(answer)
                if span is not None and offset >= span.stop - 1:
                    del pending[part]
            elif error.code() == KafkaError._PARTITION_EOF:
                pending.pop(part, None)
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, _READING)
        consumer.unassign()
