"""The engine over Kafka. Kafka Streams keeps the last message of each key; the engine decodes it when a row is read."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from heapq import merge
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.sinks.kafka.encoding.messages import ValueCodec
from changelog.connectors.views.served import Completeness, Figures, ForgottenError, NoRangesError, StateRow
from changelog.connectors.views.streams.application import MAIN, Application
from changelog.connectors.views.streams.partitions import OnStale, OwnPartitions, Partitions, read_question
from changelog.connectors.views.streams.placement import Need
from changelog.connectors.views.streams.progress import least
from changelog.connectors.views.streams.tables import restoring
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Envelope
from changelog.envelope.position import Position
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice
from changelog.envelope.versions import Version
from changelog.schemas.types import Struct

_TRUNCATE = TRUNCATE_KEY.encode()


class StreamsEngine:
    """The states of the entities that the application `main` has. Implements `SharedEngine`.

    `by_service` has the applications that include only the changes of some services, by name. `names` says which of
    these applications has the rows of an entity for a choice of services. `columns` has the columns that entities had
    at the start. `where` is what error texts call the changelog. `close` ends what the engine runs.
    """

    def __init__(
        self,
        main: Application,
        codec: ValueCodec,
        *,
        by_service: Mapping[str, Application] = MappingProxyType({}),
        names: Mapping[tuple[str, ServiceChoice], str] = MappingProxyType({}),
        columns: Mapping[str, Struct],
        where: str,
        close: Callable[[], None],
    ) -> None:
        self._main, self._codec, self._names = main, codec, names
        self._applications = {MAIN: main, **by_service}
        self._columns_at_start, self._where, self._close = columns, where, close

    @property
    def where(self) -> str:
        return self._where

    def entities(self) -> Mapping[str, Sequence[str]]:
        return {
            entity: served.key
            for application in self._applications.values()
            for entity, served in application.topics.items()
        }

    def view(self, entity: str, services: ServiceChoice = ALL_SERVICES, /) -> "StreamsView":
        return StreamsView(self, self._applications[self._names.get((entity, services), MAIN)], entity)

    def moment(self, application: Application, entity: str, key: str | None, *, allows_stale: bool) -> "StreamsMoment":
        """Returns the rows that the table of an entity in an application has now. With a `key`, the caller reads only
        the row of this key.
        """
        application.tables.refuse_unready(entity)
        topic, progress = application.topics[entity], application.progress
        numbers = range(topic.partitions) if key is None else topic.partitions_of(key.encode())
        reached = progress.reached([(topic.name, number) for number in numbers])
        if reached is None:
            raise progress.refusal(entity) or progress.error or restoring(entity)
        horizon = Horizon(reached)
        on_stale = horizon.lower if allows_stale else None
        table = EntityTable(
            application.partitions, self._codec, entity, topic, progress.need, on_stale, application.keys_max
        )
        return StreamsMoment(table, horizon)

    def at_hand(self, application: Application, entity: str, key: str) -> "StreamsMoment | None":
        """Returns the rows that the table of an entity has now. The caller reads only the row of `key`.

        Returns None if this process does not have this row, or if its row is not new enough.
        """
        topic, progress, own = application.topics[entity], application.progress, application.own_partitions
        parts = [(topic.name, number) for number in topic.partitions_of(key.encode())]
        reached = progress.reached(parts)
        if reached is None or not all(own.has(entity, part[1], progress.need(part)) for part in parts):
            return None
        table = EntityTable(own, self._codec, entity, topic, progress.need, None, application.keys_max)
        return StreamsMoment(table, Horizon(reached))

    def columns(self, application: Application, entity: str) -> Struct | None:
        """Returns the columns of an entity with their types; None if the changelog does not have them."""
        if application.progress.reached(application.topics[entity].parts()) is None:
            return self._columns_at_start.get(entity)
        version = self._main.tables.get_small(SCHEMAS, entity.encode())
        return None if version is None else _columns(bytes(self._codec.decode(version[0]).current or b""))

    def figures(self) -> Figures:
        lags, standby_lags = Counter[str](), Counter[str]()
        applications = self._applications.values()
        for application in applications:
            of_served, of_standbys = application.progress.lags()
            for entity, topic in application.topics.items():
                lags[entity] += _sum(of_served, topic)
                standby_lags[entity] += _sum(of_standbys, topic)
        return Figures(
            restored=sum(application.tables.restoration.messages() for application in applications),
            restoring=sum(application.tables.restoration.left() for application in applications),
            lags=lags,
            standby_lags=standby_lags,
            store_bytes=sum(application.store_bytes() for application in applications),
            is_ready=all(map(_is_ready, applications)),
        )

    def answer(self, question: bytes, /) -> bytes:
        partition_question = read_question(question)
        application = self._applications.get(partition_question.application)
        if application is None:
            hint = "give all instances the same views"
            raise ChangelogError(
                Kind.PRECONDITION, f"there is no view {partition_question.application} here", hint=hint
            )
        return application.partitions.answer(partition_question)

    def close(self) -> None:
        self._close()


class StreamsView:
    """The rows of one entity. Implements `ServedView`."""

    def __init__(self, engine: StreamsEngine, application: Application, entity: str) -> None:
        self._engine, self._application, self._entity = engine, application, entity

    def now(self, key: str | None = None, /, *, allows_stale: bool = False) -> "StreamsMoment":
        return self._engine.moment(self._application, self._entity, key, allows_stale=allows_stale)

    def at_hand(self, key: str, /) -> "StreamsMoment | None":
        return self._engine.at_hand(self._application, self._entity, key)

    def columns(self) -> Struct | None:
        return self._engine.columns(self._application, self._entity)


class Horizon:
    """Says how far the rows of a request are complete: up to `reached`.

    If a standby that is less complete answers, `reached` becomes what the standby has reached.
    """

    def __init__(self, reached: Completeness) -> None:
        self.reached = reached

    def lower(self, reached: Completeness) -> None:
        """Takes into account rows of a standby, which is complete up to `reached`."""
        self.reached = least([self.reached, reached])


class StreamsMoment:
    """The rows of one entity, which change while they are read. Implements `ViewMoment`.

    A truncate removes the earlier rows of its partition. `get` reads the message of the row, and then the message of
    the truncate. `rows` reads the truncates first, so a page can have rows that are truncated while the page is read.
    """

    def __init__(self, table: "EntityTable", horizon: Horizon) -> None:
        self._table, self._horizon = table, horizon

    @property
    def reached(self) -> Completeness:
        return self._horizon.reached

    def get(self, key: str, /) -> StateRow | None:
        if key == TRUNCATE_KEY:
            return None
        name = key.encode()
        numbers = self._table.topic.partitions_of(name)
        pairs = [self._table.state(number, name) for number in numbers]
        if self._table.keys_max is not None and not any(has_message for has_message, _ in pairs):
            raise _forgotten(self._table)
        states = [state for _, state in pairs]
        return _row(key, [state for state in states if state is not None])

    def rows(self, begin: str, /) -> Iterator[tuple[str, StateRow | None]]:
        if self._table.keys_max is not None:
            raise _no_ranges(self._table)
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
    """The table of one entity, with decoded messages.

    `need` returns which messages of a partition an instance must have. `on_stale` is called after a standby has
    answered; if it is None, standbys are not asked. With `keys_max`, each partition keeps only this many keys: those
    that were used last.
    """

    def __init__(
        self,
        partitions: Partitions | OwnPartitions,
        codec: ValueCodec,
        entity: str,
        topic: ServedTopic,
        need: Callable[[Part], Need],
        on_stale: OnStale | None,
        keys_max: int | None = None,
    ) -> None:
        self._partitions, self._codec, self._entity, self.topic = partitions, codec, entity, topic
        self._need, self._on_stale, self.keys_max = need, on_stale, keys_max

    def state(self, partition: int, key: bytes) -> tuple[bool, Envelope | None]:
        """Returns whether a partition has a message of a key, and the last change of the key. The change is None if
        there is none, or if a truncate came after it.

        If only the keys used last are kept, the truncate is also read before the key, so that it counts as used.
        Otherwise the store could forget the truncate before it forgets a row that the truncate removed.
        """
        before = () if self.keys_max is None else (_TRUNCATE,)
        *_, value, truncate = self._get_batch(partition, *before, key, _TRUNCATE)
        if value is None:
            return False, None
        return True, self.decoded(Message(key, partition, value), self._truncate(truncate))

    def truncated(self, partition: int) -> Position | None:
        """Returns the position of the last truncate in a partition; None if there was none."""
        [truncate] = self._get_batch(partition, _TRUNCATE)
        return self._truncate(truncate)

    def _get_batch(self, partition: int, *keys: bytes) -> Sequence[bytes | None]:
        need = self._need((self.topic.name, partition))
        return self._partitions.get_batch(self._entity, partition, keys, need, self._on_stale)

    def _truncate(self, value: bytes | None) -> Position | None:
        return None if value is None else _position(self._codec.decode(value))

    def decoded(self, message: Message, truncated: Position | None) -> Envelope | None:
        """Returns the change in a message; None if it is before the truncate. Raises ChangelogError (MALFORMED)."""
        try:
            change = self._codec.decode(message.value)
        except ChangelogError as error:
            where = f"{error.message}: topic {self.topic.name}, partition {message.partition}"
            raise ChangelogError(error.kind, where, hint=error.hint) from error
        return None if truncated is not None and _position(change) < truncated else change

    def scan(self, begin: bytes) -> Generator[Message, None, None]:
        """Yields the messages of all partitions from a key on, in the order of the keys."""
        scans = [self._scan(number, begin) for number in range(self.topic.partitions)]
        try:
            yield from merge(*scans)
        finally:
            for scan in scans:
                scan.close()

    def _scan(self, partition: int, begin: bytes) -> Generator[Message, None, None]:
        need = self._need((self.topic.name, partition))
        for key, value in self._partitions.scan(self._entity, partition, begin, need, self._on_stale):
            yield Message(key, partition, value)


def _row(key: str, changes: Sequence[Envelope]) -> StateRow | None:
    """Returns the row of a key; None if it has no row. `changes` are the key's last changes, one for each partition.

    A row that moves to another partition can be in both partitions for a moment, or in neither.
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


def _forgotten(table: EntityTable) -> ForgottenError:
    return ForgottenError(
        Kind.PRECONDITION,
        f"this key is not among the {table.keys_max} keys of a partition that were used last, so its row is not known",
        hint='ask the database, or a view with another [serve.streams] store than "lru:N"',
    )


def _no_ranges(table: EntityTable) -> NoRangesError:
    return NoRangesError(
        Kind.PRECONDITION,
        f"rows cannot be listed: only the {table.keys_max} keys of each partition that were used last are kept",
        hint='ask for one key; or list rows from a view with another [serve.streams] store than "lru:N"',
    )


def _is_ready(application: Application) -> bool:
    progress = application.progress
    return application.tables.was_ready and progress.reached(progress.parts) is not None


def _sum(lags: Mapping[Part, int], topic: ServedTopic) -> int:
    return sum(lags.get(part, 0) for part in topic.parts())


def _position(change: Envelope) -> Position:
    return change.provenance.source.position


@lru_cache(maxsize=256)
def _columns(version: bytes) -> Struct:
    return Version.parse(version).columns
