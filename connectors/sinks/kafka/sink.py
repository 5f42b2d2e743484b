"""The changelog on Kafka: rows and checkpoint in one transaction under a stable `transactional.id` (KIP-98)."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.sinks.kafka.admin import topics
from connectors.sinks.kafka.admin.names import dead_topic, gaps_topic, positions_topic, schemas_topic, topic
from connectors.sinks.kafka.admin.topics import Topic, TopicSettings
from connectors.sinks.kafka.client import UNKNOWN_TOPIC, Client, error_of, translated
from connectors.sinks.kafka.encoding import oversized
from connectors.sinks.kafka.encoding.messages import Values, headers
from connectors.sinks.kafka.insistence import Insistence, ProduceCall, queue
from connectors.sinks.kafka.reading.offsets import Part
from connectors.sinks.kafka.reading.positions import read_checkpoint, read_stored
from connectors.sinks.kafka.reading.unchanged import TopicIds, read_ids, refuse_older, refuse_rows
from envelope.checkpoint import Checkpoint
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.model import Op
from envelope.position import Position

FAIL_POINTS = ("kafka:recovered", "kafka:begun", "kafka:added", "kafka:positioned", "kafka:committed")
"""The boundaries between two steps at which a crash is tried."""

PATIENCE_S, PATIENCE_S_MAX = 60.0, 100.0
"""How long one call of Kafka's is tried again before the sink is recovered anew: as long as a transaction may be open,
but no shorter and no longer than this. A service that does nothing else for 120 s is taken for dead (`/live`)."""

STOP_PATIENCE_S = 5.0
"""And how long once the service is to stop: a call or two."""

_TOPICS = "topics"
"""The member of a checkpoint's `sink` that holds the id of each topic."""

_DELETE = pa.scalar(Op.DELETE.value)

_LAST_CALL_S = 2.0

_DEFAULTS = {
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 32 << 10,
}


def _nowhere(point: str) -> None:
    """No crash at `point`."""


def _never() -> bool:
    """Nobody asks for a stop."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the sink is told.

    `name` is the source's: its checkpoint is kept under it, and its `transactional.id` made of it. `entities` says how
    topics are kept, by entity. `transaction_timeout_s` must exceed the longest commit.
    """

    client: Client
    name: str
    prefix: str
    entities: Mapping[str, TopicSettings] = field(default_factory=dict)
    create_topics: bool = True
    replication_factor: int | None = None
    on_too_large: Literal["stop", "dead-letter"] = "stop"
    transaction_timeout_s: int = 60

    @property
    def transactional_id(self) -> str:
        """Whose transactions these are.

        It holds nothing that changes with the cluster of the database: a service of that prefix and name that reads
        another one is to be fenced just the same.
        """
        return f"changelog.{self.prefix}.{self.name}"

    @property
    def patience_s(self) -> float:
        """How long one call of Kafka's is tried again."""
        return min(max(PATIENCE_S, self.transaction_timeout_s), PATIENCE_S_MAX)


class KafkaSink:
    """A changelog in the topics of one prefix. Implements `Sink`.

    What is added travels to the broker at once, inside a transaction that readers of committed messages see only when
    it is committed. A commit whose outcome is unknown is tried again as it is; if that does not help, a new producer
    asks the broker to end it (`init_transactions`), and the checkpoint then read tells how. Nothing is ever aborted and
    sent again by the producer that failed.

    With `over_gap`, topics that are gone are made again: whoever opens it so tells of the gap.

    Once `stopping` says so, what Kafka does not answer is left to the next start, which finds out the same way.

    `reach` is called with each of `FAIL_POINTS` as it is passed, so that tests can crash there.
    """

    def __init__(
        self,
        settings: Settings,
        values: Values,
        *,
        over_gap: bool = False,
        reach: Callable[[str], None] = _nowhere,
        stopping: Callable[[], bool] = _never,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._values, self._reach, self._clock = settings, values, reach, clock
        self._stopping, self._over_gap = stopping, over_gap
        self._entities: frozenset[str] = frozenset()
        self._prepared: Sequence[Entity] = ()
        self._topics: Sequence[Topic] = ()
        self._insistence = Insistence(settings.client, lambda: self._topics, self._patience_s)
        self._limits: dict[str, int] = {}
        self._parts: list[Part] = []
        self._topic_ids: TopicIds | None = None
        self._limiting_time: Sequence[str] = ()
        self._made_again: frozenset[str] = frozenset()
        self._producer: Producer | None = None
        self._checkpoint: Checkpoint | None = None
        self._begun = self._asked = False
        self._begun_at = 0.0

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Creates the topics that are missing, if it may.

        Raises ChangelogError, see `topics.ensure`; GAP when one is gone that the changelog was begun with.
        """
        settings = self._settings
        wanted = topics.topics_of(settings.prefix, entities, settings.entities)
        self._entities, self._prepared = frozenset(each.name for each in entities), entities
        self._topics = wanted
        self._values.prepare(entities)
        if self._over_gap:
            self._made_again |= {each.name for each in topics.missing(settings.client, wanted)}
        else:
            self._refuse_lost(wanted)
        found = topics.ensure(
            settings.client,
            wanted,
            create=settings.create_topics,
            replication_factor=settings.replication_factor,
        )
        self._limits = {name: each.message_bytes for name, each in found.items()}
        self._parts = [
            (topic(settings.prefix, each.name), number) for each in entities for number in range(each.partitions)
        ]
        self._limiting_time = sorted(name for name, each in found.items() if each.limits_time)

    def _refuse_lost(self, wanted: Sequence[Topic]) -> None:
        """A topic made anew would hold only what comes now, and nothing would tell."""
        settings = self._settings
        missing = {each.name: each for each in topics.missing(settings.client, wanted)}
        if not missing or positions_topic(settings.prefix) in missing:
            return
        stored = read_stored(settings.client, settings.prefix, settings.name)
        if stored is None:
            return
        begun = {*(topic(settings.prefix, entity) for entity in stored[0].settings), *stored[0].sink.get(_TOPICS, {})}
        for name in sorted(begun & missing.keys()):
            raise topics.lost(missing[name])

    def recover(self) -> Checkpoint | None:
        """Fences every older producer of ours, which ends its last transaction one way or the other; then reads the
        checkpoint: before, it could be overtaken by a commit that is still under way.

        Raises ChangelogError: PRECONDITION when another source publishes one of the entities, too; GAP or DIVERGED
        when the topics are no longer those that the checkpoint was stored beside (`unchanged`).
        """
        self.close()
        with translated("connecting to Kafka"):
            self._producer = Producer(self._config())
        self._insist("taking over the topics of Kafka", self._held().init_transactions)
        self._checkpoint = self._unchanged(self._stored())
        self._reach("kafka:recovered")
        return self._checkpoint

    def _stored(self) -> Checkpoint | None:
        """The last checkpoint; over a gap, one that cannot be read counts for nothing."""
        settings = self._settings
        try:
            return read_checkpoint(settings.client, settings.prefix, settings.name, self._entities)
        except ChangelogError as error:
            if error.kind is not Kind.GAP or not self._over_gap:
                raise
            return None

    def _unchanged(self, stored: Checkpoint | None) -> Checkpoint | None:
        """`stored`, once the topics are found to be those that it was stored beside; without what only we read."""
        settings = self._settings
        names = {schemas_topic(settings.prefix), gaps_topic(settings.prefix), *(name for name, _ in self._parts)}
        known = {} if stored is None else stored.sink.get(_TOPICS, {})
        if self._over_gap:
            found = read_ids(settings.client.admin(), known.keys())
            self._made_again |= {name for name, id_ in known.items() if found.get(name) != id_}
            self._refuse_repartitioned(stored)
            self._topic_ids = TopicIds(settings.client, names, {}, self._clock)
            return stored
        self._topic_ids = TopicIds(settings.client, names, known, self._clock)
        self._refuse_repartitioned(stored)
        if stored is None:
            refuse_rows(settings.client, self._values, settings.prefix, settings.name, self._parts)
            return None
        begun = {topic(settings.prefix, entity) for entity in stored.settings}
        parts = [part for part in self._parts if part[0] in begun]
        refuse_older(settings.client, self._values, settings.prefix, settings.name, stored, parts)
        return replace(stored, sink={name: value for name, value in stored.sink.items() if name != _TOPICS})

    def _refuse_repartitioned(self, stored: Checkpoint | None) -> None:
        begun = {} if stored is None else stored.settings
        topics.refuse_repartitioned(self._settings.prefix, self._prepared, begun, self._made_again)

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Sends rows; returns while they travel. STOP when a message is larger than its topic takes."""
        ready = [self._calls(batch) for batch in rows if batch.num_rows]
        self._begin()
        producer = self._held()
        with self._translated("sending to Kafka"):
            for calls in ready:
                for call in calls:
                    try:
                        producer.produce(*call)
                    except BufferError:
                        self._produce(call)
                producer.poll(0)
        self._reach("kafka:added")

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commits what was sent, and the checkpoint with the ids of the topics; GAP when a topic is not the same."""
        self._begin()
        assert self._topic_ids is not None
        self._topic_ids.look()
        record = replace(checkpoint, sink={**checkpoint.sink, _TOPICS: self._topic_ids.known})
        settings = self._settings
        with self._translated("sending to Kafka"):
            self._produce((positions_topic(settings.prefix), record.to_json(), settings.name.encode(), 0))
        self._reach("kafka:positioned")
        self._asked = True
        self._insist("committing to Kafka", self._held().commit_transaction)
        self._begun, self._asked, self._checkpoint = False, False, checkpoint
        self._reach("kafka:committed")

    def lost(self, entities: Collection[str]) -> Collection[str]:
        """See `Sink`: a topic that was made again holds nothing of before."""
        begun = entities if self._checkpoint is None else self._checkpoint.settings
        return [entity for entity in begun if topic(self._settings.prefix, entity) in self._made_again]

    def abandon(self) -> None:
        """Aborts the open transaction, if one is: it was never asked to commit."""
        if self._begun:
            self._insist("aborting in Kafka", self._held().abort_transaction)
            self._begun = False

    def close(self) -> None:
        """Lets go of the producer. A transaction that was never asked to commit is aborted, if the broker answers at
        once, since readers wait at it; any other is ended by the next producer, or by its timeout.
        """
        producer, in_the_way = self._producer, self._begun and not self._asked
        self._producer, self._begun, self._asked = None, False, False
        if producer is None:
            return
        with suppress(KafkaException):
            if in_the_way:
                producer.abort_transaction(_LAST_CALL_S)
        with suppress(KafkaException):
            producer.purge(blocking=False)

    def _config(self) -> dict[str, object]:
        timeout_ms = self._settings.transaction_timeout_s * 1000
        largest = max(self._limits.values(), default=topics.MESSAGE_BYTES_DEFAULT)
        return self._settings.client.config(
            {
                **_DEFAULTS,
                "message.max.bytes": largest,
                "batch.size": min(largest, *map(self._limit, self._limits), topics.MESSAGE_BYTES_DEFAULT),
                "message.timeout.ms": timeout_ms,
            },
            transactional_id=self._settings.transactional_id,
            transaction_timeout_ms=timeout_ms,
            enable_idempotence=True,
        )

    def _held(self) -> Producer:
        if self._producer is None:
            raise ChangelogError(Kind.CONNECTION, "the connection to Kafka is not open")
        return self._producer

    def _begin(self) -> None:
        if not self._begun:
            with self._translated("beginning a transaction in Kafka"):
                self._held().begin_transaction()
            self._begun, self._begun_at = True, self._clock()
            self._reach("kafka:begun")

    def _calls(self, batch: pa.RecordBatch) -> list[ProduceCall]:
        """What `Producer.produce` takes: for each row, and for the tombstone behind each delete."""
        values, headed = self._values.encode(batch), headers(batch)
        keys = batch.column("key").cast(pa.binary()).to_pylist()
        entities = batch.column("entity").to_pylist()
        names = {entity: topic(self._settings.prefix, entity) for entity in set(entities)}
        calls: list[ProduceCall] = list(
            zip(
                map(names.__getitem__, entities),
                values,
                keys,
                batch.column("partition").to_pylist(),
                repeat(None),
                repeat(None),
                (batch.column("committed_at").cast(pa.int64()).to_numpy() // 1000).tolist(),
                headed,
            )
        )
        largest = oversized.OVERHEAD_BYTES + max(map(len, values)) + max(map(len, keys)) + _headers_bytes_max(batch)
        if largest > min(self._limit(name) for name in names.values()):
            rows = zip(calls, batch.column("op").to_pylist(), batch.column("position").to_pylist(), strict=True)
            return [call for row in rows for call in self._judged(*row)]
        for index in reversed(pc.indices_nonzero(pc.equal(batch.column("op"), _DELETE)).to_pylist()):
            calls[index + 1 : index + 1] = self._tombstone(calls[index])
        return calls

    def _judged(self, row: ProduceCall, op: str, position: str) -> Iterator[ProduceCall]:
        """A row's message, or what was decided of one that is too large; behind a delete, its tombstone."""
        name, value, key, partition, _, _, at, heads = row
        message = oversized.Message(
            topic=name, partition=partition, key=key, value=value, headers=heads, timestamp_ms=at
        )
        if message.nbytes <= self._limit(name):
            yield row
        elif self._decision(message, op, position) == "dead-letter":
            graves = dead_topic(self._settings.prefix)
            for part in oversized.parts(message, topic=graves, position=position, nbytes_max=self._limit(graves)):
                yield part.topic, part.value, part.key, part.partition, None, None, at, part.headers
        if op == Op.DELETE:
            yield from self._tombstone(row)

    def _tombstone(self, row: ProduceCall) -> Sequence[ProduceCall]:
        """What makes compaction forget the key of a delete; nothing where nothing is compacted."""
        name, _, *rest = row
        return [] if name == dead_topic(self._settings.prefix) else [(name, None, *rest)]

    def _decision(self, message: oversized.Message, op: str, position: str) -> str:
        """What is to become of a message that is too large: `dead-letter` or `skip`; a STOP while nobody said."""
        at = Position.parse(position)
        accepted = None if self._checkpoint is None else self._checkpoint.decisions.at(at)
        if accepted in ("skip", "dead-letter"):
            return accepted
        if self._settings.on_too_large == "dead-letter":
            return "dead-letter"
        choices: tuple[str, ...] = ("skip", "dead-letter")
        passing = f"`changelog accept {position} --as skip|dead-letter`"
        if op == Op.READ:  # read again, it stands elsewhere
            choices = ()
            passing = 'set [sink] on_too_large = "dead-letter" until the table is read'
        limit = self._limit(message.topic)
        who, raising = "the topic", "its max.message.bytes"
        if limit == self._settings.client.message_bytes:
            who, raising = "[sink] client", "its message.max.bytes, and max.message.bytes of the topic"
        raise ChangelogError(
            Kind.STOP,
            f"a message to {message.topic} has {message.nbytes} bytes and {who} takes {limit}",
            hint=f"raise {raising}, or {passing}",
            position=at,
            choices=choices,
        )

    def _limit(self, name: str) -> int:
        """The largest message that both the topic and the client take."""
        taken = self._limits.get(name, topics.MESSAGE_BYTES_DEFAULT)
        own = self._settings.client.message_bytes
        return taken if own is None else min(taken, own)

    def _produce(self, call: ProduceCall) -> None:
        """Waits while the queue is full; what is in it is given up after `transaction_timeout_s` at the latest."""
        self._insist("sending to Kafka", partial(queue, self._held(), call))

    def _insist(self, doing: str, call: Callable[[float], object]) -> None:
        with self._translated(doing):
            self._insistence.insist(doing, call)

    def _patience_s(self) -> float:
        return STOP_PATIENCE_S if self._stopping() else self._settings.patience_s

    def _error(self, error: KafkaError, doing: str) -> ChangelogError:
        """What two answers mean, the next recovery tells: that another took over, of a transaction that the broker may
        have ended for its age (KIP-588); and that a topic is unknown, which may be gone for good.
        """
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            return self._refused_time(doing)
        found, timeout_s = error_of(error, doing), self._settings.transaction_timeout_s
        if error.code() in UNKNOWN_TOPIC:
            return ChangelogError(Kind.CONNECTION, found.message)
        if found.kind is Kind.IN_USE and self._begun and self._clock() - self._begun_at >= timeout_s:
            return ChangelogError(Kind.CONNECTION, f"{doing}: a transaction was open for more than {timeout_s} s")
        return found

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(error.args[0], doing) from error

    def _refused_time(self, doing: str) -> ChangelogError:
        """A message's time is that of its commit by the database's clock, and the broker compares it with its own."""
        first, *others = self._limiting_time or ["of the changelog"]
        topics_named = f"topic {first}" + (f" and {len(others)} others" if others else "")
        return ChangelogError(
            Kind.PRECONDITION,
            f"{doing}: the database's clock is ahead of Kafka's by more than {topics.AHEAD} of {topics_named} lets "
            "through",
            hint="raise it, as `changelog check` prints it for each topic, and start the service: messages keep the "
            "times of their commits; then set the database's clock right",
        )


def _headers_bytes_max(batch: pa.RecordBatch) -> int:
    """What the values of a row's headers take at most; their names are in `dead.OVERHEAD_BYTES`."""
    columns = ("op", "position", "transaction", "service_name", "moved")
    return sum(pc.max(pc.binary_length(batch.column(name))).as_py() or 0 for name in columns)
