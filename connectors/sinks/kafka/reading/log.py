"""Reads the changelog from the topics of one prefix: all rows, the rows of one entity or key, and new rows as they are
stored.

docs/reference/kafka.md describes the messages. The reader first finds the offset at which to stop in each partition
(`complete_ends`), and then reads up to that offset (`spans`).
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, groupby
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Message

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, begins
from changelog.connectors.sinks import MESSAGES, unknown_entity
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.generations import generations_of
from changelog.connectors.sinks.kafka.admin.names import (
    entity_of,
    first_topic,
    generation_of,
    positions_topic,
    topic,
)
from changelog.connectors.sinks.kafka.encoding import oversized
from changelog.connectors.sinks.kafka.encoding.messages import (
    SOURCE,
    Headers,
    ValueCodec,
    is_row,
    key_of,
    record,
    without_states,
)
from changelog.connectors.sinks.kafka.reading.complete_ends import complete_ends
from changelog.connectors.sinks.kafka.reading.positions import read_stored
from changelog.connectors.sinks.kafka.reading.spans import (
    Spans,
    by_generation,
    messages_in,
    ordered_ends,
    part_of,
)
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.entity import DEAD, GAPS, OF_CHANGELOG, RESERVED, SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import partition
from changelog.envelope.model import Envelope, Place, Record, position_of
from changelog.envelope.position import UNPLACED, Position, at_offset
from changelog.envelope.versions import Version, settings_id

READ_ROWS = 8192
"""The most rows in one batch that a reader yields."""

TOPICS_S = 10.0
"""A reader that follows the changelog looks for new topics again after this many seconds."""

_GROWTH = 8


class KafkaLog:
    """The changelog of the source `name` in the topics of `prefix`. Implements `Log`.

    Kafka returns the messages of several partitions in any order. With a `key`, `read` and `follow` sort all rows that
    are stored at the time of the call; `follow` also sorts the `last` rows. In all other cases, messages are read in
    groups, and only the rows inside each group are sorted. A row in an envelope other than our own is read without its
    values (`without_states`).

    If an entity was repartitioned, those of its topics that still exist are read one after another.
    """

    def __init__(self, client: Client, values: ValueCodec, *, prefix: str, name: str) -> None:
        self._client, self._values, self._prefix, self._name = client, values, prefix, name
        self._admin = client.admin()

    @property
    def where(self) -> str:
        return f"the changelog {self._prefix} at {self._client.bootstrap_servers}"

    def read(
        self,
        *,
        entity: str | None = None,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        yield from self._complete(self._parts(entity, key), key, after, identifier)

    def read_key(self, entity: str, key: str, /) -> Iterator[pa.RecordBatch]:
        with closing(self._client.reader()) as consumer:
            spans = self._complete_spans(self._parts(entity, key))
            for pairs in self._records(consumer, spans, {key, TRUNCATE_KEY}):
                yield from _batches([record for _, record in pairs])

    def read_together(
        self,
        entities: Collection[str] | None = None,
        /,
        *,
        key: str | None = None,
        after: Position | None = None,
        identifier: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        if entities is None:
            parts = self._parts(None, None)
        elif key is None:
            existing = self._entities()
            parts = [part for entity in entities for part in self._parts_of(entity, existing)]
        else:
            parts = [part for entity in entities for part in self._parts(entity, key)]
        yield from self._complete(parts, key, after, identifier)

    def _complete(
        self, parts: Sequence[Part], key: str | None, after: Position | None, identifier: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the selected rows of these partitions, once readers see all rows up to the checkpoint."""
        with closing(self._client.reader()) as consumer:
            for records in self._selected(consumer, self._complete_spans(parts), key):
                yield from _batches(
                    [
                        record
                        for record in records
                        if (after is None or position_of(record) > after)
                        and (identifier is None or record.envelope.provenance.stamp.identifier == identifier)
                    ]
                )

    def follow(
        self, *, entity: str | None = None, key: str | None = None, last: int | None = None, wait: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        parts = self._parts(entity, key)
        return self._followed(entity, key, last, wait, parts, self._spans(parts))

    def _followed(
        self,
        entity: str | None,
        key: str | None,
        last: int | None,
        wait: Callable[[], bool],
        parts: Sequence[Part],
        spans: Spans,
    ) -> Iterator[pa.RecordBatch]:
        listed_s = time.monotonic()
        with closing(self._client.reader()) as consumer:
            if last is not None:
                yield from _batches(self._newest(consumer, spans, key, last))
                spans = {part: range(span.stop, span.stop) for part, span in spans.items()}
            while True:
                for records in self._selected(consumer, spans, key):
                    yield from _batches(records)
                if not wait():
                    return
                if time.monotonic() - listed_s > TOPICS_S:
                    parts, listed_s = self._parts(entity, key), time.monotonic()
                try:
                    stops = ordered_ends(self._admin, parts)
                except ChangelogError:
                    present_parts = self._parts(entity, key)
                    if not _misses_ended(parts, present_parts):
                        raise
                    parts, stops = present_parts, ordered_ends(self._admin, present_parts)
                spans = {part: range(spans[part].stop if part in spans else 0, end) for part, end in stops.items()}

    def recent(self, count: int, /) -> Iterator[pa.RecordBatch]:
        spans = self._spans(self._parts(None, None))
        count_of_part = -(-count // max(len(spans), 1))
        tails = {part: range(max(span.start, span.stop - count_of_part), span.stop) for part, span in spans.items()}
        with closing(self._client.reader()) as consumer:
            for records in self._selected(consumer, tails, None):
                yield from _batches(records)

    def complete_ends(self, entities: Collection[str]) -> dict[Part, int]:
        """Waits until readers see all rows of these entities up to the checkpoint. Returns, for each partition, the
        offset at which to stop reading (see `changelog.connectors.sinks.kafka.reading.complete_ends`).
        """
        existing = topics.entities(self._admin, self._prefix)
        return self._ends([part for entity in entities for part in self._parts_of(entity, existing)])

    def is_placed_by_key(self, entity: str, count: int) -> bool:
        """Returns whether every row of the entity's present topic is known to be in the partition that its key chooses.

        `count` is the number of the topic's partitions. With one partition, returns False without a check.

        If the settings changed, stored rows stayed where they were. But each change of the settings begins a new
        version of the entity's columns, and a version has a hash of the settings. So the function checks that every
        version since the topic was begun has the settings in the checkpoint.
        """
        checkpoint = self.checkpoint() if count > 1 else None
        shape = None if checkpoint is None else checkpoint.settings.get(entity)
        if shape is None or shape["key"] != shape["partition_by"] or shape["partitions"] != count:
            return False
        *earlier, _ = generations_of(checkpoint, self._prefix, entity)
        begun_after = earlier[-1].last if earlier else ""
        versions = [
            Version.parse(state.encode())
            for rows in self.read(entity=SCHEMAS, key=entity)
            for state in rows.filter(pc.greater(rows.column("position"), begun_after)).column("current").to_pylist()
        ]
        return {version.settings for version in versions} == {settings_id(shape)}

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns, for each entity, an upper bound of its number of messages, under the key `MESSAGES`.

        The number also counts tombstones, transaction markers, and messages that compaction has removed.
        """
        counts: dict[str, dict[str, int]] = {entity: {MESSAGES: 0} for entity in self._entities()}
        if counts:
            for (name, _), span in self._spans(self._parts(None, None)).items():
                counts[self._entity(name)][MESSAGES] += len(span)
        return counts

    def checkpoint(self) -> Checkpoint | None:
        entry = self._stored()
        return None if entry is None else entry[0]

    def epoch(self) -> int:
        if not self._entities():
            return 0
        parts = self._parts(None, None)
        with closing(self._client.reader()) as consumer:
            newest = self._newest(consumer, self._spans(parts), None, 1)
        return max((position_of(item).epoch for item in newest), default=0)

    def stored_at(self) -> float | None:
        entry = self._stored()
        return None if entry is None else entry[1]

    def _stored(self) -> tuple[Checkpoint, float] | None:
        """Returns the checkpoint, and when it was stored; None if there is none.

        First checks whether the topic exists, because a reader would wait for a missing topic.
        """
        exists = positions_topic(self._prefix) in self._admin.topics()
        return read_stored(self._client, self._prefix, self._name) if exists else None

    def _entities(self) -> dict[str, list[Part]]:
        """Returns the partitions of each entity that has a topic, those of older generations first.

        Leaves out the reserved entities, except `dead` and `gaps`.
        """
        existing = topics.entities(self._admin, self._prefix)
        return {entity: parts for entity, parts in existing.items() if entity not in RESERVED - {DEAD, GAPS}}

    def _entity(self, name: str) -> str:
        return entity_of(self._prefix, name)

    def _parts(self, entity: str | None, key: str | None) -> list[Part]:
        """Returns the partitions that may hold the selected rows."""
        if entity in OF_CHANGELOG:
            name = topic(self._prefix, entity)
            return [(name, 0)] if name in self._admin.topics() else []
        existing = self._entities()
        if not existing:
            hint = "`changelog run` makes it; see [sink] prefix"
            raise ChangelogError(Kind.PRECONDITION, f"there is no topic of {self.where}", hint=hint)
        if entity is None:
            return [part for parts in existing.values() for part in parts]
        parts = self._parts_of(entity, existing)
        has_one_topic = parts[0][0] == parts[-1][0]
        if key is not None and has_one_topic and self.is_placed_by_key(entity, len(parts)):
            return [parts[partition(key.encode(), len(parts))]]
        return parts

    def _parts_of(self, entity: str, existing: Mapping[str, list[Part]]) -> list[Part]:
        """Returns the partitions of an entity's topics; `existing` has those of every entity."""
        if entity not in existing:
            raise unknown_entity(self, entity, existing)
        return existing[entity]

    def _spans(self, parts: Sequence[Part]) -> dict[Part, range]:
        """Returns all committed offsets of each partition."""
        first, last = begins(self._admin, parts), ordered_ends(self._admin, parts)
        return {part: range(first[part], last[part]) for part in parts}

    def _complete_spans(self, parts: Sequence[Part]) -> dict[Part, range]:
        """Waits until readers see all rows up to the checkpoint. Returns all committed offsets of each partition."""
        first, last = begins(self._admin, parts), self._ends(parts)
        return {part: range(first[part], last[part]) for part in parts}

    def _ends(self, parts: Sequence[Part]) -> dict[Part, int]:
        return complete_ends(self._client, self._values, self._name, parts, self.checkpoint)

    def _newest(self, consumer: Consumer, spans: Spans, key: str | None, count: int) -> list[Record]:
        """Returns the last `count` selected records, in the order of their positions.

        Reads the newest messages of each partition, and older messages only where the newest are too few.
        """
        newest: dict[Part, deque[Record]] = {}
        incomplete, back = dict(spans) if count else {}, 2 * count + 16
        while incomplete:
            tails = {part: range(max(span.start, span.stop - back), span.stop) for part, span in incomplete.items()}
            newest |= {part: deque(maxlen=count) for part in tails}
            for pairs in self._records(consumer, tails, _only(key)):
                for part, item in pairs:
                    newest[part].append(item)
            incomplete = {
                part: span
                for part, span in incomplete.items()
                if len(newest[part]) < count and tails[part].start > span.start
            }
            back *= _GROWTH
        ordered = sorted((item for items in newest.values() for item in items), key=position_of)
        return ordered[max(len(ordered) - count, 0) :]

    def _selected(self, consumer: Consumer, spans: Spans, key: str | None) -> Iterator[list[Record]]:
        """Yields the selected records in the spans: as they arrive, or with a `key` all at once.

        If the entity's settings changed, a key's records can be in several partitions. The caller sorts the records of
        each list, so those of a key must be in one list.
        """
        lists = ([item for _, item in pairs] for pairs in self._records(consumer, spans, _only(key)))
        if key is None:
            yield from lists
        else:
            yield [item for records in lists for item in records]

    def _records(
        self, consumer: Consumer, spans: Spans, keys: Collection[str] | None
    ) -> Iterator[list[tuple[Part, Record]]]:
        """Yields the records in the spans as they arrive, each with its partition; with `keys`, only those of the keys.

        The records of one partition are in order.
        """
        keys_bytes = None if keys is None else {key.encode() for key in keys}
        parts_by_key: dict[bytes, list[oversized.ProducerRecord]] = defaultdict(list)
        groups = ({part: spans[part] for part in parts} for parts in by_generation(spans))
        for messages in chain.from_iterable(messages_in(consumer, group) for group in groups):
            pairs = []
            for message in messages:
                if not is_row(message) or (keys_bytes is not None and key_of(message) not in keys_bytes):
                    continue
                item = self._record(message, parts_by_key)
                if item is not None:
                    pairs.append((part_of(message), item))
            yield pairs

    def _record(self, message: Message, parts_by_key: dict[bytes, list[oversized.ProducerRecord]]) -> Record | None:
        """Returns the record of a message.

        A message that was too large is stored in parts. For the last part, this returns the record of the whole
        message; for each earlier part, it returns None. `parts_by_key` collects the parts.
        """
        name, number = part_of(message)
        offset, key, value = message.offset() or 0, message.key() or b"", message.value() or b""
        headers = cast(Headers, message.headers() or [])
        try:
            if name == topic(self._prefix, DEAD) and any(header == "deadPart" for header, _ in headers):
                at_ms = message.timestamp()[1]
                part = oversized.ProducerRecord(
                    topic=name, partition=number, key=key, value=value, headers=headers, timestamp_ms=at_ms
                )
                return self._joined(part, parts_by_key[key])
            if SOURCE in dict(headers):
                return without_states(self._entity(name), message)
            item = record(self._entity(name), number, key, value, headers, self._values.decode)
        except ChangelogError as error:
            where = f"{error.message}: topic {name}, partition {number}, offset {offset}"
            raise ChangelogError(error.kind, where, hint=error.hint) from error
        if position_of(item) == UNPLACED:
            return replace(item, envelope=_placed(item.envelope, at_offset(number, offset)))
        return item

    def _joined(self, part: oversized.ProducerRecord, parts: list[oversized.ProducerRecord]) -> Record | None:
        """Returns the record of a message that was too large, if `part` is its last part and no part is missing.

        `parts` has the earlier parts, to which `part` is added.
        """
        number, _, count = dict(part.headers)["deadPart"].decode().partition("/")
        if number == "1":
            parts.clear()
        parts.append(part)
        if number != count or len(parts) != int(count):
            return None
        envelope = self._values.decode(oversized.whole(parts).value or b"")
        parts.clear()
        return Record(entity=DEAD, place=Place(key=part.key.decode(), partition=part.partition), envelope=envelope)


def _only(key: str | None) -> Collection[str] | None:
    return None if key is None else [key]


def _misses_ended(parts: Sequence[Part], present_parts: Sequence[Part]) -> bool:
    """Returns whether topics were deleted, and all of them had ended because their entity was repartitioned.

    `parts` are the partitions before, `present_parts` those that exist now.
    """
    names = {name for name, _ in present_parts}
    deleted = {name for name, _ in parts} - names
    newest = {name: max(map(generation_of, group)) for name, group in groupby(sorted(names), first_topic)}
    return bool(deleted) and all(generation_of(name) < newest.get(first_topic(name), 1) for name in deleted)


def _placed(envelope: Envelope, position: Position) -> Envelope:
    """Returns an event with `position`, which was made from the message's offset, in place of the missing position."""
    provenance = envelope.provenance
    return replace(envelope, provenance=replace(provenance, source=replace(provenance.source, position=position)))


def _batches(records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
    """Yields the records as batches, in the order of their positions."""
    sorted_records = sorted(records, key=position_of)
    for begin in range(0, len(sorted_records), READ_ROWS):
        yield batch.from_records(sorted_records[begin : begin + READ_ROWS])
