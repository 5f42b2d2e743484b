"""The engine over Kafka: decodes the last message of a key, which Kafka Streams keeps."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from heapq import merge
from itertools import groupby
from typing import NamedTuple

from changelog.connectors.sinks.kafka.encoding.messages import ValueCodec
from changelog.connectors.views.served import Completeness, StateRow
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import KafkaTables, restoring
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError
from changelog.envelope.model import Envelope
from changelog.envelope.position import Position
from changelog.envelope.versions import Version
from changelog.schemas.types import Struct

_TRUNCATE = TRUNCATE_KEY.encode()


class StreamsEngine:
    """The states of the entities in `topics`. Implements `StateEngine`.

    `columns` are those that entities had at the start. `where` names the changelog in errors, and `close` ends what the
    engine runs.
    """

    def __init__(
        self,
        tables: KafkaTables,
        progress: TablesProgress,
        codec: ValueCodec,
        *,
        topics: Mapping[str, ServedTopic],
        columns: Mapping[str, Struct],
        where: str,
        close: Callable[[], None],
    ) -> None:
        self._tables, self._progress, self._codec, self._topics = tables, progress, codec, topics
        self._columns_at_start, self._where, self._close = columns, where, close

    @property
    def restored_messages(self) -> int:
        """How many messages were restored since the start. Those that were processed do not count."""
        return self._tables.restored_messages

    @property
    def where(self) -> str:
        return self._where

    def entities(self) -> Mapping[str, Sequence[str]]:
        return {entity: served.key for entity, served in self._topics.items()}

    def view(self, entity: str, /) -> "StreamsView":
        return StreamsView(self, entity)

    def moment(self, entity: str) -> "StreamsMoment":
        """Returns the rows of an entity as the table has them now."""
        self._tables.refuse_unready(entity)
        reached = self._progress.reached(entity)
        if reached is None:
            raise self._progress.refusal(entity) or self._progress.error or restoring(entity)
        table = EntityTable(self._tables, self._codec, entity, self._topics[entity])
        return StreamsMoment(table, reached)

    def columns(self, entity: str) -> Struct | None:
        """Returns the columns of an entity with their types; None if the changelog does not have them."""
        if self._progress.reached(entity) is None:
            return self._columns_at_start.get(entity)
        version = self._tables.get(SCHEMAS, 0, entity.encode())
        return None if version is None else _columns(bytes(self._codec.decode(version).current or b""))

    def close(self) -> None:
        self._close()


class StreamsView:
    """The rows of one entity. Implements `ServedView`."""

    def __init__(self, engine: StreamsEngine, entity: str) -> None:
        self._engine, self._entity = engine, entity

    def now(self) -> "StreamsMoment":
        return self._engine.moment(self._entity)

    def columns(self) -> Struct | None:
        return self._engine.columns(self._entity)


class StreamsMoment:
    """The rows of one entity, which change while they are read. Implements `ViewMoment`.

    A truncate applies to the rows of its partition that are before it. `get` reads its message after that of the row.
    `rows` reads it first, so a page can have rows that are truncated while it is read.
    """

    def __init__(self, table: "EntityTable", reached: Completeness) -> None:
        self._table, self.reached = table, reached

    def get(self, key: str, /) -> StateRow | None:
        if key == TRUNCATE_KEY:
            return None
        name = key.encode()
        states = [self._table.state(number, name) for number in self._table.topic.partitions_of(name)]
        return _row(key, [state for state in states if state is not None])

    def rows(self, begin: str, /) -> Iterator[tuple[str, StateRow | None]]:
        truncates = [self._table.truncated(number) for number in range(self._table.topic.partitions)]
        with closing(self._table.scan(begin.encode())) as messages:
            for name, group in groupby(messages, key=lambda message: message.key):
                if name == _TRUNCATE:
                    continue
                key = name.decode()
                states = [self._table.decoded(message, truncates[message.partition]) for message in group]
                yield key, _row(key, [state for state in states if state is not None])


class Message(NamedTuple):
    """The last message of a key in a partition."""

    key: bytes
    partition: int
    value: bytes


class EntityTable:
    """The table of one entity, with decoded messages."""

    def __init__(self, tables: KafkaTables, codec: ValueCodec, entity: str, topic: ServedTopic) -> None:
        self._tables, self._codec, self._entity, self.topic = tables, codec, entity, topic

    def state(self, partition: int, key: bytes) -> Envelope | None:
        """Returns the last change of a key in a partition; None if there is none, or a truncate came after it."""
        value = self._tables.get(self._entity, partition, key)
        if value is None:
            return None
        return self.decoded(Message(key, partition, value), self.truncated(partition))

    def truncated(self, partition: int) -> Position | None:
        """Returns the position of the last truncate; None if there was none."""
        value = self._tables.get(self._entity, partition, _TRUNCATE)
        return None if value is None else _position(self._codec.decode(value))

    def decoded(self, message: Message, truncated: Position | None) -> Envelope | None:
        """Returns the change in a message; None if it is before the truncate. Raises ChangelogError (MALFORMED)."""
        try:
            change = self._codec.decode(message.value)
        except ChangelogError as error:
            where = f"{error.message}: {self.topic.name}, partition {message.partition}"
            raise ChangelogError(error.kind, where, hint=error.hint) from error
        return None if truncated is not None and _position(change) < truncated else change

    def scan(self, begin: bytes) -> Generator[Message, None, None]:
        """Yields the messages from a key on, in the order of the keys, of all partitions."""
        scans = [self._scan(number, begin) for number in range(self.topic.partitions)]
        try:
            yield from merge(*scans)
        finally:
            for scan in scans:
                scan.close()

    def _scan(self, partition: int, begin: bytes) -> Generator[Message, None, None]:
        for key, value in self._tables.scan(self._entity, partition, begin):
            yield Message(key, partition, value)


def _row(key: str, changes: Sequence[Envelope]) -> StateRow | None:
    """Returns the row of a key, whose last change in each partition is given; None if it has no row.

    A row that moves to another partition can be in both for a moment, or in none.
    """
    newest = max(changes, key=_position, default=None)
    if newest is None or newest.current is None:
        return None
    source = newest.provenance.source
    return StateRow(
        key=key,
        current=bytes(newest.current),
        unavailable=tuple(sorted(source.unavailable)),
        position=source.position,
        committed_at=source.committed_at,
    )


def _position(change: Envelope) -> Position:
    return change.provenance.source.position


@lru_cache(maxsize=256)
def _columns(version: bytes) -> Struct:
    return Version.parse(version).columns
