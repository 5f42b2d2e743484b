"""Reads a span of offsets from each of several partitions.

A partition is complete when the reader has reached the end of the partition's span. The last offset of a span may have
no message: the marker at the end of a transaction takes up an offset, and compaction removes messages.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from changelog.connectors.kafka.client import Admin, error_of, translated
from changelog.connectors.kafka.offsets import Part, ends
from changelog.connectors.sinks.kafka.admin.names import generation_of
from changelog.connectors.sinks.kafka.reading.positions import SILENCE_S
from changelog.envelope.errors import ChangelogError, Kind

READ_MESSAGES = 8192
"""The most messages that are read at once."""

_POLL_S = 1.0

Spans = Mapping[Part, range]
"""The offsets to read, by partition."""


def by_generation(parts: Iterable[Part]) -> list[list[Part]]:
    """Groups partitions by the generation of their topic, oldest first.

    All rows of a key in one generation come before its rows in the next one. So a reader reads the groups one after
    another.
    """
    groups: dict[int, list[Part]] = defaultdict(list)
    for part in parts:
        groups[generation_of(part[0])].append(part)
    return [groups[number] for number in sorted(groups)]


def ordered_ends(admin: Admin, parts: Iterable[Part]) -> dict[Part, int]:
    """Returns, for each partition, the offset at which readers of committed messages stop.

    Asks for the ends of the newest generation first. When it then asks about an older generation, that generation
    already has all rows that were stored before the ends of the newer one were read. So if a row is before the end of
    its partition, all older rows of its key are before the ends of their partitions, too.
    """
    return {part: end for group in reversed(by_generation(parts)) for part, end in ends(admin, group).items()}


def messages_in(consumer: Consumer, spans: Spans) -> Iterator[list[Message]]:
    """Yields the messages in the spans as they arrive."""
    pending = {part: span for part, span in spans.items() if span}
    action = f"reading {len(pending)} partitions"
    deadline = time.monotonic() + SILENCE_S
    with translated(action):
        consumer.assign([TopicPartition(*part, span.start) for part, span in pending.items()])
        while pending:
            first = consumer.poll(_POLL_S)
            answers = [] if first is None else [first, *consumer.consume(READ_MESSAGES - 1, 0)]
            was_pending = set(pending)
            messages = _settle(answers, pending, action)
            if not messages and pending and time.monotonic() >= deadline:
                raise ChangelogError(Kind.CONNECTION, f"{action}: Kafka has been silent for {SILENCE_S:.0f} s")
            complete = was_pending - pending.keys()
            if complete and pending:
                consumer.pause([TopicPartition(*part) for part in complete])
            yield messages
            if messages:  # only after `yield`: the caller may take long to process the messages
                deadline = time.monotonic() + SILENCE_S
        # Without this, the partitions would still be paused when they are assigned again.
        consumer.resume([TopicPartition(*part) for part in spans if spans[part]])
        consumer.unassign()


def _settle(answers: Iterable[Message], pending: dict[Part, range], action: str) -> list[Message]:
    """Returns the messages that are in pending spans. Removes from `pending` the spans that are now complete.

    An answer is a message, the end of a partition, or an error.
    """
    selected = []
    for message in answers:
        part, error = part_of(message), message.error()
        span = pending.get(part)
        if error is None and span is not None:
            offset = message.offset() or 0
            if offset < span.stop:
                selected.append(message)
            if offset >= span.stop - 1:
                del pending[part]
        elif error is not None and error.code() == KafkaError._PARTITION_EOF:
            if span is not None and (message.offset() or 0) >= span.stop:  # a lagging replica reports an earlier end
                del pending[part]
        elif error is not None and not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise error_of(error, action)
    return selected


def part_of(message: Message) -> Part:
    """Returns the topic and the partition of a message."""
    number = message.partition()
    return message.topic() or "", -1 if number is None else number
