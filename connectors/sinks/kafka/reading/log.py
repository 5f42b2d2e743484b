"""Reads the changelog in the topics of one prefix: whole, one entity or one key, and as it grows.

docs/reference/kafka.md describes the messages. The end of what is committed is asked for first; `spans` has how it is
read up to there.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import pyarrow as pa
from confluent_kafka import Consumer, Message

from connectors.sinks import MESSAGES, unknown_entity
from connectors.sinks.kafka.admin import topics
from connectors.sinks.kafka.admin.names import positions_topic, topic
from connectors.sinks.kafka.client import Client
from connectors.sinks.kafka.encoding import oversized
from connectors.sinks.kafka.encoding.messages import Headers, Values, record
from connectors.sinks.kafka.reading.offsets import Part, begins, ends
from connectors.sinks.kafka.reading.positions import read_stored
from connectors.sinks.kafka.reading.spans import Spans, committed, part_of
from envelope.checkpoint import Checkpoint
from envelope.columnar import batch
from envelope.entity import DEAD, GAPS, OF_CHANGELOG, RESERVED
from envelope.errors import ChangelogError, Kind
from envelope.key import partition
from envelope.model import Envelope, Place, Record
from envelope.position import UNPLACED, Position, at_offset

READ_ROWS = 8192
"""The most rows of a batch that a reader gives."""

TOPICS_S = 10.0
"""How often a reader who follows looks for new topics."""

_GROWTH = 8


class KafkaLog:
    """The changelog of the source `name` in the topics of `prefix`. Implements `Log`.

    Rows of several partitions stand by position only within what arrives together, or is asked for by `last` or `key`.
    """

    def __init__(self, client: Client, values: Values, *, prefix: str, name: str) -> None:
        self._client, self._values, self._prefix, self._name = client, values, prefix, name
        self._admin = client.admin()

    @property
    def where(self) -> str:
        return f"the changelog {self._prefix} at {self._client.bootstrap_servers}"

    def read(
        self, *, entity: str | None = None, key: str | None = None, after: Position | None = None
    ) -> Iterator[pa.RecordBatch]:
        with closing(self._client.reader()) as consumer:
            arrived = self._records(consumer, self._spans(self._parts(entity, key)), key)
            if key is not None:
                arrived = iter([[each for found in arrived for each in found]])
            for found in arrived:
                kept = [each for _, each in found if after is None or _position(each) > after]
                yield from _batches(kept)

    def read_together(self, entities: Collection[str], /) -> Iterator[pa.RecordBatch]:
        counts = self._entities()
        parts = [part for entity in entities for part in self._parts_of(entity, counts)]
        with closing(self._client.reader()) as consumer:
            for found in self._records(consumer, self._spans(parts), None):
                yield from _batches([each for _, each in found])

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        parts = self._parts(entity, key)
        spans = self._spans(parts)
        listed_s = time.monotonic()
        with closing(self._client.reader()) as consumer:
            if last is not None:
                yield from _batches(self._newest(consumer, spans, key, last))
                spans = {part: range(span.stop, span.stop) for part, span in spans.items()}
            while True:
                for found in self._records(consumer, spans, key):
                    yield from _batches([each for _, each in found])
                if not wait():
                    return
                if time.monotonic() - listed_s > TOPICS_S:
                    parts, listed_s = self._parts(entity, key), time.monotonic()
                stops = ends(self._admin, parts)
                spans = {part: range(spans[part].stop if part in spans else 0, end) for part, end in stops.items()}

    def counts(self) -> dict[str, dict[str, int]]:
        """By entity its `MESSAGES`, at most: tombstones, ends of transactions and what was compacted count too."""
        found: dict[str, dict[str, int]] = {entity: {MESSAGES: 0} for entity in self._entities()}
        if found:
            for (name, _), span in self._spans(self._parts(None, None)).items():
                found[self._entity(name)][MESSAGES] += len(span)
        return found

    def checkpoint(self) -> Checkpoint | None:
        found = self._stored()
        return None if found is None else found[0]

    def epoch(self) -> int:
        if not self._entities():
            return 0
        parts = self._parts(None, None)
        with closing(self._client.reader()) as consumer:
            newest = self._newest(consumer, self._spans(parts), None, 1)
        return max((_position(each).epoch for each in newest), default=0)

    def stored_at(self) -> float | None:
        found = self._stored()
        return None if found is None else found[1]

    def _stored(self) -> tuple[Checkpoint, float] | None:
        """What a reader of a topic that is not there would wait for is None at once."""
        there = positions_topic(self._prefix) in self._admin.topics()
        return read_stored(self._client, self._prefix, self._name) if there else None

    def _entities(self) -> dict[str, int]:
        """The entities that have a topic, each with the number of its partitions."""
        found = topics.entities(self._admin, self._prefix)
        return {entity: count for entity, count in found.items() if entity not in RESERVED - {DEAD, GAPS}}

    def _entity(self, name: str) -> str:
        return name.removeprefix(topic(self._prefix, ""))

    def _parts(self, entity: str | None, key: str | None) -> list[Part]:
        """Where wanted rows may stand."""
        if entity in OF_CHANGELOG:
            name = topic(self._prefix, entity)
            return [(name, 0)] if name in self._admin.topics() else []
        found = self._entities()
        if not found:
            hint = "`changelog run` makes it; see [sink] prefix"
            raise ChangelogError(Kind.PRECONDITION, f"there is no topic of {self.where}", hint=hint)
        if entity is None:
            return [(topic(self._prefix, each), number) for each, count in found.items() for number in range(count)]
        parts = self._parts_of(entity, found)
        if key is not None and self._is_placed_by_key(entity, len(parts)):
            return [parts[partition(key.encode(), len(parts))]]
        return parts

    def _parts_of(self, entity: str, counts: Mapping[str, int]) -> list[Part]:
        """The partitions of an entity's topic, by the number of partitions of every entity."""
        if entity not in counts:
            raise unknown_entity(self, entity, counts)
        return [(topic(self._prefix, entity), number) for number in range(counts[entity])]

    def _is_placed_by_key(self, entity: str, count: int) -> bool:
        checkpoint = self.checkpoint() if count > 1 else None
        shape = None if checkpoint is None else checkpoint.settings.get(entity)
        return shape is not None and shape["key"] == shape["partition_by"] and shape["partitions"] == count

    def _spans(self, parts: Sequence[Part]) -> dict[Part, range]:
        """All that is committed."""
        first, last = begins(self._admin, parts), ends(self._admin, parts)
        return {part: range(first[part], last[part]) for part in parts}

    def _newest(self, consumer: Consumer, spans: Spans, key: str | None, count: int) -> list[Record]:
        """The last `count` wanted records: looks at the newest messages of each partition, then at more of them."""
        found: dict[Part, deque[Record]] = {}
        short, back = dict(spans) if count else {}, 2 * count + 16
        while short:
            looked = {part: range(max(span.start, span.stop - back), span.stop) for part, span in short.items()}
            found |= {part: deque(maxlen=count) for part in looked}
            for arrived in self._records(consumer, looked, key):
                for part, each in arrived:
                    found[part].append(each)
            short = {
                part: span
                for part, span in short.items()
                if len(found[part]) < count and looked[part].start > span.start
            }
            back *= _GROWTH
        newest = sorted((each for part in found.values() for each in part), key=_position)
        return newest[max(len(newest) - count, 0) :]

    def _records(self, consumer: Consumer, spans: Spans, key: str | None) -> Iterator[list[tuple[Part, Record]]]:
        """The wanted records in the spans, as they arrive; those of one partition in their order."""
        wanted = None if key is None else key.encode()
        cut: dict[bytes, list[oversized.Message]] = defaultdict(list)
        for messages in committed(consumer, spans):
            found = []
            for message in messages:
                if message.value() is None or (wanted is not None and message.key() != wanted):
                    continue  # a tombstone says nothing that its delete did not say
                made = self._record(message, cut)
                if made is not None:
                    found.append((part_of(message), made))
            yield found

    def _record(self, message: Message, cut: dict[bytes, list[oversized.Message]]) -> Record | None:
        """What a message holds; None of all parts but the last of one that was `cut` into parts."""
        name, number = part_of(message)
        offset, key, value = message.offset() or 0, message.key() or b"", message.value() or b""
        heads = cast(Headers, message.headers() or [])
        try:
            if name == topic(self._prefix, DEAD) and any(header == "deadPart" for header, _ in heads):
                at = message.timestamp()[1]
                part = oversized.Message(
                    topic=name, partition=number, key=key, value=value, headers=heads, timestamp_ms=at
                )
                return self._set_aside(part, cut[key])
            made = record(self._entity(name), number, key, value, heads, self._values.decode)
        except ChangelogError as error:
            where = f"{error.message}: {name}, partition {number}, offset {offset}"
            raise ChangelogError(error.kind, where, hint=error.hint) from error
        if _position(made) == UNPLACED:
            return replace(made, envelope=_placed(made.envelope, at_offset(number, offset)))
        return made

    def _set_aside(self, part: oversized.Message, before: list[oversized.Message]) -> Record | None:
        """The record of a message that was too large, once its last part is here; nothing where one is missing."""
        number, _, count = dict(part.headers)["deadPart"].decode().partition("/")
        if number == "1":
            before.clear()
        before.append(part)
        if number != count or len(before) != int(count):
            return None
        envelope = self._values.decode(oversized.whole(before).value or b"")
        before.clear()
        return Record(entity=DEAD, place=Place(key=part.key.decode(), partition=part.partition), envelope=envelope)


def _placed(envelope: Envelope, here: Position) -> Envelope:
    """An event that was published without a position has the one that Kafka gave it."""
    provenance = envelope.provenance
    return replace(envelope, provenance=replace(provenance, source=replace(provenance.source, position=here)))


def _position(each: Record) -> Position:
    return each.envelope.provenance.source.position


def _batches(found: Sequence[Record]) -> Iterator[pa.RecordBatch]:
    """The records by position."""
    ordered = sorted(found, key=_position)
    for begin in range(0, len(ordered), READ_ROWS):
        yield batch.from_records(ordered[begin : begin + READ_ROWS])
