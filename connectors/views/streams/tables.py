"""Runs Kafka Streams: a table for each topic, with the last message of each key as bytes.

The partitions of a table can be spread over several instances of an application. A small table is in every instance.

Kafka Streams restores a store from a topic that it calls the store's changelog. An entity's topic is itself the
changelog of its store (`topology.optimization`). But if the messages of some services do not count, the store has a
changelog of its own. Kafka Streams numbers the tables, and the number is in the name of a store's folder. So tables
must be in the same order at each start (`folder.Claim`).
"""

import os
import re
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jpype
import structlog

from changelog.connectors.kafka.offsets import Part
from changelog.connectors.views.streams.failures import Failures, text_of
from changelog.connectors.views.streams.java import Threads, start_yielding
from changelog.connectors.views.streams.listeners import (
    failure_handler,
    restore_listener,
    standby_listener,
    state_listener,
)
from changelog.connectors.views.streams.placement import Need, Placement, part_of
from changelog.connectors.views.streams.restoration import Restoration
from changelog.connectors.views.streams.service_filter import times_of_included
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice

COMMIT_MS: Final = 100
"""How often offsets are committed. A reader that waits for its own write waits for such a commit."""

WARM_UP_S: Final = 60.0
"""How often Kafka Streams checks whether the next owner of a partition has restored it, in seconds."""

CLOSE_S: Final = 30.0
"""How long Kafka Streams may take to end, in seconds."""

FETCH_BYTES: Final = 16 << 20
"""How many bytes a consumer fetches at once at most."""

REQUEST_BYTES: Final = 32 << 20
"""How many bytes may be sent to the changelog of a store at once. One message may be as large as in the topic."""

BATCH_BYTES: Final = 512 << 10
"""How many bytes a batch for a changelog may have. With Kafka's default, 16 KiB, the broker would get many batches."""

_MEMBERS_MS = 5_000
"""How long a request for the members of the group may take, in milliseconds."""

_ENDING = frozenset({"PENDING_SHUTDOWN", "PENDING_ERROR", "ERROR", "NOT_RUNNING"})
"""The states from which Kafka Streams does not come back."""

_log = structlog.get_logger("views")


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesSettings:
    """How to run the tables. `options` are those of the Java client, and may have secrets. `topics` maps each table to
    its topic, in the order of the tables.

    Tables are kept in RocksDB in `folder`, or in memory if `folder` is None. With `keys_max`, each partition keeps only
    this many keys: those that were used last. The tables in `small_tables` are always in memory, and have one
    partition. In the other tables, only messages of `services` count.

    `advertised` is the address of this instance; None if it is the only one. If the instance does not come back within
    `session_s` seconds after a crash, the others take its partitions over. Each partition has `standbys` copies at
    other instances.
    """

    bootstrap_servers: str
    options: Mapping[str, str] = field(repr=False)
    application: str
    folder: Path | None
    topics: Mapping[str, str]
    small_tables: frozenset[str] = frozenset()
    keys_max: int | None = None
    services: ServiceChoice = ALL_SERVICES
    advertised: str | None = None
    session_s: float = 12.0
    standbys: int = 0

    @property
    def changelogs(self) -> Mapping[str, str]:
        """The topics whose stores have a changelog of their own, each with this changelog."""
        if not self.services.names:
            return {}
        return {topic: changelog_of(self.application, table) for table, topic in self.topics.items()}

    @property
    def member(self) -> str:
        """The name of this process in the consumer group (static membership).

        A later process with this name takes over at once, also after a crash, and gets the tables of the earlier
        process. So a process with other tables needs another name, for example after an entity was added.
        """
        instance = "" if self.advertised is None else f"-{re.sub('[^A-Za-z0-9._-]', '_', self.advertised)}"
        return f"{self.application}{instance}-{zlib.crc32(' '.join(self.topics.values()).encode()):08x}"

    def properties(self) -> Mapping[str, str]:
        """Returns the properties of Kafka Streams."""
        folder = {} if self.folder is None else {"state.dir": str(self.folder)}
        address = {} if self.advertised is None else {"application.server": self.advertised}
        return {
            **self.options,
            **folder,
            **address,
            "bootstrap.servers": self.bootstrap_servers,
            "application.id": self.application,
            "group.protocol": "classic",  # with the newer protocol, static membership needs a newer broker
            "consumer.group.instance.id": self.member,
            "consumer.session.timeout.ms": str(int(self.session_s * 1000)),
            "consumer.heartbeat.interval.ms": str(int(self.session_s * 1000) // 4),
            "num.standby.replicas": str(self.standbys),
            "probing.rebalance.interval.ms": str(int(WARM_UP_S * 1000)),
            "topology.optimization": "none" if self.services.names else "all",
            # If a store has a changelog of its own, a process that hung must not write there once it has a successor.
            # Only "exactly once" prevents this. If a store is restored from an entity's topic, nothing is written
            # there, and "exactly once" could empty the store (KAFKA-20416).
            "processing.guarantee": "exactly_once_v2" if self.services.names else "at_least_once",
            "main.consumer.auto.offset.reset": "earliest",
            "main.consumer.isolation.level": "read_committed",
            "restore.consumer.isolation.level": "read_committed",
            "global.consumer.isolation.level": "read_committed",
            "commit.interval.ms": str(COMMIT_MS),
            "statestore.cache.max.bytes": "0",  # a cache would hide the newest messages
            "max.task.idle.ms": "-1",  # tables do not wait for each other
            "num.stream.threads": str(min(4, os.cpu_count() or 1)),
            "consumer.fetch.max.bytes": str(FETCH_BYTES),
            "consumer.max.partition.fetch.bytes": str(FETCH_BYTES >> 2),
            "consumer.receive.buffer.bytes": str(1 << 20),
            "main.consumer.max.poll.records": "10000",
            "restore.consumer.max.poll.records": "10000",
            "producer.max.request.size": str(REQUEST_BYTES),
            "producer.batch.size": str(BATCH_BYTES),
        }


def changelog_of(application: str, table: str) -> str:
    """Returns the name that Kafka Streams gives the changelog of a store."""
    return f"{application}-{table}-changelog"


class KafkaTables:
    """Running tables. Any thread may call the methods. They raise ChangelogError: `RestoringError` while tables are
    being restored, and the error that ended Kafka Streams, if there was one. Java must run (`java.start`).
    """

    def __init__(self, settings: TablesSettings) -> None:
        self._settings = settings
        self._topics_of_changelogs = {changelog: topic for topic, changelog in settings.changelogs.items()}
        self.restoration = Restoration()
        self._threads = Threads()
        self._failures = Failures(
            settings.application,
            settings.member,
            self._member_names,
            advertised=settings.advertised,
            session_s=settings.session_s,
        )
        self._was_ready = False
        self._state = ""  # kept here, because each call of Java makes a request wait for Python's lock once more
        self._stores: dict[tuple[str, int, bool], Any] = {}
        self._streams_package = jpype.JPackage("org").apache.kafka.streams
        self._bytes_of: Any = jpype.JArray(jpype.JByte)
        self._properties = jpype.JClass("java.util.Properties")()
        for name, value in settings.properties().items():
            self._properties.setProperty(name, value)
        with _translated("starting Kafka Streams"):
            self._streams = self._streams_package.KafkaStreams(self._topology(self._properties), self._properties)
            self._placement = Placement(self._streams, settings.advertised)
            self._listeners = [
                restore_listener(self._placement, self.restoration, self._part_of),
                standby_listener(self._placement, self._part_of),
                failure_handler(self._streams_package.errors, self._failures.again_after),
                state_listener(self._take_state),
            ]
            self._streams.setGlobalStateRestoreListener(self._listeners[0])
            self._streams.setStandbyUpdateListener(self._listeners[1])
            self._streams.setUncaughtExceptionHandler(self._listeners[2])
            self._streams.setStateListener(self._listeners[3])
            start_yielding(self._streams.start)

    def refuse_unready(self, table: str) -> None:
        """Raises RestoringError if the state of Kafka Streams already says that the table cannot be read now.

        After all tables have been restored once, partitions that stay here can be read while others move to another
        instance.
        """
        self._failures.refuse()
        state = self._state
        is_moving = self._was_ready and self._settings.advertised is not None and state == "REBALANCING"
        if state != "RUNNING" and not is_moving:
            raise restoring(table)

    @property
    def was_ready(self) -> bool:
        """Whether all tables have been restored at least once since the start."""
        return self._was_ready

    def are_restored(self) -> bool:
        """Returns whether all tables are restored, and no thread has failed since the start.

        A thread that fails does not store its tables.
        """
        return self._state == "RUNNING" and not self._failures.has_failed_thread

    def other_owner(self, table: str, partition: int) -> str | None:
        """Returns the address of the instance that has a partition of a table; None if this one should have it."""
        with self._asking(table):
            return self._placement.other_owner(self.part(table, partition))

    def other_standbys(self, table: str, partition: int) -> Sequence[str]:
        """Returns the addresses of the other instances that are standbys for a partition of a table."""
        with self._asking(table):
            return self._placement.other_standbys(self.part(table, partition))

    def standbys(self) -> Mapping[Part, int]:
        """Returns the partitions for which this process is a standby. Each has all messages before the given offset."""
        return self._placement.standbys()

    def learn(self) -> None:
        """Asks Kafka Streams which offsets this process has committed, before readers need them."""
        with self._asking("all views"):
            self._placement.learn()

    @property
    def changelogs(self) -> Mapping[str, str]:
        """The topics whose stores have a changelog of their own, each with this changelog."""
        return self._settings.changelogs

    def part(self, table: str, partition: int) -> Part:
        """Returns a partition with the name of its topic."""
        return self._settings.topics[table], partition

    def has_at_hand(self, table: str, partition: int, need: Need) -> bool:
        """Returns whether no partition is moving, and a partition here is known to have what `need` describes."""
        return self._state == "RUNNING" and self._placement.has_at_hand(self.part(table, partition), need)

    def get_batch(self, table: str, partition: int, keys: Sequence[bytes], need: Need | None) -> Sequence[bytes | None]:
        """Reads keys in this order, and returns the last message of each in a partition; None if there is none, or if
        it is a tombstone. The table must have what `need` describes; if `need` is None, it may be that of a standby.
        Raises RestoringError if the table still lacks this after a moment.
        """
        with self._asking(table):
            store = self._store_with(table, partition, need)
            values = [store.get(self._bytes_of(key)) for key in keys]
            self._refuse_closed(store)
            return [None if value is None else bytes(value.value()) for value in values]

    def get_small(self, table: str, key: bytes) -> tuple[bytes, float] | None:
        """Returns the last message of a key in a small table, with its time in seconds since 1970."""
        with self._asking(table):
            value = self._store(table, 0).get(self._bytes_of(key))
            return None if value is None else (bytes(value.value()), int(value.timestamp()) / 1000)

    def scan(
        self, table: str, partition: int, begin: bytes, need: Need | None
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Yields the keys of a partition from `begin` on in their order, each with its last message; `need` is as for
        `get_batch`.
        """
        with self._asking(table):
            store = self._store_with(table, partition, need)
            pairs = store.range(self._bytes_of(begin), None)
            try:
                while pairs.hasNext():
                    pair = pairs.next()
                    yield bytes(pair.key), bytes(pair.value.value())
                self._refuse_closed(store)
            finally:
                pairs.close()

    def close(self) -> bool:
        """Ends Kafka Streams. The process leaves its group only if there are no other instances: they would take its
        partitions over at once, even if the process is only restarted.

        Returns whether all tables were stored together with their offsets.
        """
        self._failures.end()
        timeout = jpype.JClass("java.time.Duration").ofMillis(int(CLOSE_S * 1000))
        leaves = self._failures.error is None and self._settings.advertised is None
        options = self._streams_package.KafkaStreams.CloseOptions().timeout(timeout).leaveGroup(leaves)
        with _translated("ending Kafka Streams"):
            is_closed = bool(self._streams.close(options))
        if not is_closed:
            _log.warning("kafka streams did not end in time", seconds=CLOSE_S)
        return is_closed and not self._failures.has_failed_thread

    def _member_names(self) -> Sequence[str]:
        """Returns the names of the members of the application's group. Java asks, because librdkafka's admin client has
        ended processes in requests about groups.
        """
        group = self._settings.application
        with _translated("asking Kafka for the members of the group"):
            admin = jpype.JClass("org.apache.kafka.clients.admin.Admin").create(self._properties)
            try:
                groups = jpype.JClass("java.util.Collections").singletonList(group)
                options = jpype.JClass("org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions")()
                answers = admin.describeConsumerGroups(groups, options.timeoutMs(jpype.JInt(_MEMBERS_MS)))
                description = answers.describedGroups().get(group).get()
                names = [member.groupInstanceId() for member in description.members()]
                return [str(name.get()) for name in names if name.isPresent()]
            finally:
                admin.close()

    def _topology(self, properties: Any) -> Any:
        kstream = self._streams_package.kstream
        serdes = jpype.JPackage("org").apache.kafka.common.serialization.Serdes
        builder = self._streams_package.StreamsBuilder()
        for table, topic in self._settings.topics.items():
            is_small = table in self._settings.small_tables
            store = self._materialized(table, is_small=is_small)
            store = store.withKeySerde(serdes.ByteArray()).withValueSerde(serdes.ByteArray())
            consumed = kstream.Consumed.with_(serdes.ByteArray(), serdes.ByteArray())
            if self._settings.services.names:
                consumed = consumed.withTimestampExtractor(times_of_included(self._settings.services))
            (builder.globalTable if is_small else builder.table)(topic, consumed, store)
        return builder.build(properties)

    def _materialized(self, table: str, *, is_small: bool) -> Any:
        """Returns Java's object that says where a table is kept."""
        materialized = self._streams_package.kstream.Materialized
        if self._settings.keys_max is not None and not is_small:
            stores = self._streams_package.state.Stores
            return materialized.as_(stores.lruMap(table, jpype.JInt(self._settings.keys_max)))
        types, in_memory = materialized.StoreType, self._settings.folder is None or is_small
        return materialized.as_(table).withStoreType(types.IN_MEMORY if in_memory else types.ROCKS_DB)

    def _store(self, table: str, partition: int, *, standby_too: bool = False) -> Any:
        """Returns the store of a partition, for reading. The object stays valid when tasks are restored again."""
        store = self._stores.get((table, partition, standby_too))
        if store is None:
            types = self._streams_package.state.QueryableStoreTypes
            query = self._streams_package.StoreQueryParameters.fromNameAndType(table, types.timestampedKeyValueStore())
            query = query.withPartition(jpype.JInt(partition))
            store = self._streams.store(query.enableStaleStores() if standby_too else query)
            self._stores[table, partition, standby_too] = store
        return store

    def _store_with(self, table: str, partition: int, need: Need | None) -> Any:
        """Returns a store of the partition that has what `need` describes; if that is None, maybe a standby's store."""
        if need is not None and not self._placement.await_offset(self.part(table, partition), need):
            raise restoring(table)
        return self._store(table, partition, standby_too=need is None)

    def _part_of(self, part: Any) -> Part:
        """Returns the partition of a topic, from Java's object for the partition of the store's changelog."""
        name, number = part_of(part)
        return self._topics_of_changelogs.get(name, name), number

    def _refuse_closed(self, store: Any) -> None:
        """Raises Java's error if a store was closed while it was read. Without this check, a closed store in memory
        looks like one without rows.
        """
        if self._settings.folder is None:
            store.get(self._bytes_of(b""))

    @contextmanager
    def _asking(self, table: str) -> Iterator[None]:
        self._failures.refuse()
        self._threads.enter()
        errors = self._streams_package.errors
        try:
            yield
        except (errors.InvalidStateStoreException, errors.StreamsNotStartedException) as error:
            self._failures.refuse()
            raise restoring(table) from error
        except jpype.JException as error:
            raise _failed(f"reading the rows of {table}", error) from error

    def _take_state(self, state: str) -> None:
        """Takes a new state of Kafka Streams. Threads report states, so the report of an earlier state can be late."""
        if self._state not in _ENDING:
            self._was_ready |= state == "RUNNING"
            self._state = state


class RestoringError(ChangelogError):
    """A table cannot be read yet (PRECONDITION)."""


def restoring(table: str) -> RestoringError:
    """Returns the error for a table that cannot be read yet."""
    return RestoringError(
        Kind.PRECONDITION, f"the rows of {table} are being restored from Kafka", hint="try again; /ready says when"
    )


@contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except jpype.JException as error:
        raise _failed(action, error) from error


def _failed(action: str, error: Any) -> ChangelogError:
    return ChangelogError(Kind.PRECONDITION, f"{action}: {text_of(error)}")
