"""Writes the changelog to Kafka: each commit is one transaction (KIP-98) with the rows and the checkpoint.

All transactions of a service have one `transactional.id`, by which Kafka fences (shuts out) an older producer.
"""

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

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.kafka.client import UNKNOWN_TOPIC, Client, error_of, translated
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.names import dead_topic, gaps_topic, positions_topic, schemas_topic, topic
from changelog.connectors.sinks.kafka.admin.topics import OWN, Topic, TopicSettings
from changelog.connectors.sinks.kafka.encoding import oversized
from changelog.connectors.sinks.kafka.encoding.messages import KEY, ValueCodec
from changelog.connectors.sinks.kafka.insistence import Insistence, ProduceCall, queue
from changelog.connectors.sinks.kafka.reading.positions import read_checkpoint, read_stored
from changelog.connectors.sinks.kafka.reading.unchanged import TopicIds, refuse_older, refuse_rows
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position

FAIL_POINTS = ("kafka:recovered", "kafka:begun", "kafka:added", "kafka:positioned", "kafka:committed")
"""The boundaries between steps, at which tests make the process crash."""

PATIENCE_S, PATIENCE_S_MAX = 60.0, 100.0
"""One call to Kafka is retried for as long as a transaction's timeout, but for at least PATIENCE_S and at most
PATIENCE_S_MAX seconds, less than the 120 s after which `/live` reports a stuck service. Then the sink is recovered.
"""

STOP_PATIENCE_S = 5.0
"""The seconds for which a call is retried while the service is stopping. They are enough for one or two attempts."""

_TOPICS = "topics"
"""The member of a checkpoint's `sink` that maps topics to their ids, by which a recreated topic is recognised."""

_DELETE = pa.scalar(Op.DELETE.value)
_LAST_CALL_S = 2.0

_DEFAULTS = {
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 32 << 10,
}


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The settings of the sink.

    `name` is the name of the source. The checkpoint is stored under `name`, which is also part of the
    `transactional.id`. `entities` maps entities to the settings of their topics. `transaction_timeout_s` must be longer
    than the longest commit.
    """

    client: Client
    name: str
    prefix: str
    entities: Mapping[str, TopicSettings] = field(default_factory=dict)
    create_topics: bool = True
    replication_factor: int | None = None
    on_too_large: Literal["stop", "dead-letter"] = "stop"
    transaction_timeout_s: int = 60
    envelope: str = OWN

    @property
    def transactional_id(self) -> str:
        """The `transactional.id`, by which Kafka fences an older producer.

        The id does not name the database cluster, because a service with the same prefix and name must be fenced even
        if that service reads another cluster.
        """
        return f"changelog.{self.prefix}.{self.name}"

    @property
    def patience_s(self) -> float:
        """How long one call to Kafka is retried, in seconds, while the service is not stopping."""
        return min(max(PATIENCE_S, self.transaction_timeout_s), PATIENCE_S_MAX)


class KafkaSink:
    """Writes a changelog to the topics of one prefix. Implements `Sink`.

    Added rows travel to the broker at once, inside a transaction. Readers of committed messages see the rows only after
    the commit. If the outcome of a commit is unknown, the same commit is tried again. If the outcome stays unknown,
    `recover` has a new producer ask the broker to end the transaction (`init_transactions`), and then reads the
    checkpoint, which shows the outcome. After such a failure, the sink never aborts the transaction in order to send
    its rows again, because the transaction may already be committed.

    With `over_gap`, the service continues although changes were lost (a *gap*). Then missing topics are created again,
    which is safe because the caller records the gap. Once `stopping` returns True, the sink waits only a few seconds
    for Kafka; the next start finds out whether the last commit succeeded. `reach` is called at each of `FAIL_POINTS`,
    so that tests can make the process crash there.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        values: ValueCodec,
        *,
        over_gap: bool = False,
        reach: Reach = nowhere,
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
        self._recreated: frozenset[str] = frozenset()
        self._producer: Producer | None = None
        self._checkpoint: Checkpoint | None = None
        self._is_open = self._commit_asked = False
        self._begun_at = 0.0

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Creates missing topics, if the settings allow it.

        Raises ChangelogError: the errors of `topics.ensure`, and GAP if a topic of the stored checkpoint is gone.
        """
        settings = self._settings
        configured = topics.topics_of(settings.prefix, entities, settings.entities)
        self._entities, self._prepared = frozenset(entity.name for entity in entities), entities
        self._topics = configured
        self._values.prepare(entities)
        if self._over_gap:
            self._recreated |= {missing.name for missing in topics.missing(settings.client, configured)}
        else:
            self._refuse_lost(configured)
        states = topics.ensure(
            settings.client,
            configured,
            create=settings.create_topics,
            replication_factor=settings.replication_factor,
        )
        self._limits = {name: state.message_bytes for name, state in states.items()}
        self._parts = [
            (topic(settings.prefix, entity.name), number) for entity in entities for number in range(entity.partitions)
        ]
        self._limiting_time = sorted(name for name, state in states.items() if state.limits_time)

    def _refuse_lost(self, configured: Sequence[Topic]) -> None:
        """Raises GAP if a topic of the changelog is gone.

        Without this check, `prepare` would create the topic again, without the rows of the old one.
        """
        settings = self._settings
        missing_topics = {absent.name: absent for absent in topics.missing(settings.client, configured)}
        if not missing_topics or positions_topic(settings.prefix) in missing_topics:
            return
        entry = read_stored(settings.client, settings.prefix, settings.name)
        if entry is None:
            return
        names = {*(topic(settings.prefix, entity) for entity in entry[0].settings), *entry[0].sink.get(_TOPICS, {})}
        for name in sorted(names & missing_topics.keys()):
            raise topics.lost(missing_topics[name])

    def recover(self) -> Checkpoint | None:
        """Fences every older producer with our `transactional.id`, and then reads the checkpoint.

        Fencing also ends the last transaction of the older producer. The checkpoint is read only after that, because
        until then a commit of the older producer can still store a newer checkpoint. Raises ChangelogError:
        PRECONDITION if another source publishes one of the entities as well; GAP or DIVERGED if the topics are no
        longer those of the checkpoint (module `unchanged`).
        """
        self.close()
        with translated("connecting to Kafka"):
            self._producer = Producer(self._config())
        self._insist("taking over the topics of Kafka", self._held().init_transactions)
        self._checkpoint = self._unchanged(self._stored())
        self._reach("kafka:recovered")
        return self._checkpoint

    def _stored(self) -> Checkpoint | None:
        """Returns the last checkpoint, None if there is none. With `over_gap`, also None if it cannot be read."""
        settings = self._settings
        try:
            return read_checkpoint(settings.client, settings.prefix, settings.name, self._entities)
        except ChangelogError as error:
            if error.kind is not Kind.GAP or not self._over_gap:
                raise
            return None

    def _unchanged(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Checks that the topics are those of the checkpoint; returns it, without the topics' ids unless `over_gap`."""
        settings = self._settings
        known_ids = {} if checkpoint is None else checkpoint.sink.get(_TOPICS, {})
        published = {name for name, _ in self._parts} or known_ids.keys()  # no parts before `prepare`
        names = {schemas_topic(settings.prefix), gaps_topic(settings.prefix), *published}
        if self._over_gap:
            ids = read_ids(settings.client.admin(), known_ids.keys())
            self._recreated |= {name for name, id_ in known_ids.items() if ids.get(name) != id_}
            self._refuse_repartitioned(checkpoint)
            self._topic_ids = TopicIds(settings.client, names, {}, self._clock)
            return checkpoint
        self._topic_ids = TopicIds(settings.client, names, known_ids, self._clock)
        self._refuse_repartitioned(checkpoint)
        if checkpoint is None:
            refuse_rows(settings.client, self._values, settings.prefix, settings.name, self._parts)
            return None
        stored_topics = {topic(settings.prefix, entity) for entity in checkpoint.settings}
        parts = [part for part in self._parts if part[0] in stored_topics]
        refuse_older(settings.client, self._values, settings.prefix, settings.name, checkpoint, parts)
        return replace(checkpoint, sink={name: value for name, value in checkpoint.sink.items() if name != _TOPICS})

    def _refuse_repartitioned(self, checkpoint: Checkpoint | None) -> None:
        """Raises ChangelogError (SETTINGS) if the topics were begun with other partitions or another envelope."""
        started_with = {} if checkpoint is None else checkpoint.settings
        topics.refuse_other_envelope(self._settings.prefix, self._settings.envelope, started_with, self._recreated)
        topics.refuse_repartitioned(self._settings.prefix, self._prepared, started_with, self._recreated)

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Sends rows, and returns before the broker has them. Raises STOP if a message is too large for its topic."""
        prepared = [self._calls(batch) for batch in rows if batch.num_rows]
        self._begin()
        producer = self._held()
        with self._translated("sending to Kafka"):
            for calls in prepared:
                for call in calls:
                    try:
                        producer.produce(*call)
                    except BufferError:
                        self._produce(call)
                producer.poll(0)
        self._reach("kafka:added")

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commits the rows, and the checkpoint with the topics' ids. Raises GAP if a topic was created again."""
        self._begin()
        assert self._topic_ids is not None
        self._topic_ids.check_if_due()
        record = replace(checkpoint, sink={**checkpoint.sink, _TOPICS: self._topic_ids.ids})
        settings = self._settings
        with self._translated("sending to Kafka"):
            self._produce((positions_topic(settings.prefix), record.to_json(), settings.name.encode(), 0))
        self._reach("kafka:positioned")
        self._commit_asked = True
        self._insist("committing to Kafka", self._held().commit_transaction)
        self._is_open, self._commit_asked, self._checkpoint = False, False, checkpoint
        self._reach("kafka:committed")

    def lost(self, entities: Collection[str]) -> Collection[str]:
        """See `Sink`. Returns the entities whose topics were created again; the rows of these entities are lost."""
        published_entities = entities if self._checkpoint is None else self._checkpoint.settings
        return [entity for entity in published_entities if topic(self._settings.prefix, entity) in self._recreated]

    def abandon(self) -> None:
        """Aborts the open transaction, if there is one. This is safe: the broker was not asked to commit it."""
        if self._is_open:
            self._insist("aborting in Kafka", self._held().abort_transaction)
            self._is_open = False

    def close(self) -> None:
        """Releases the producer.

        If a transaction is open and no commit was asked for, it is aborted now, because an open transaction blocks
        readers; the broker has `_LAST_CALL_S` to answer. If a commit was asked for, the transaction ends when the next
        producer starts, or by its timeout.
        """
        producer, blocks_readers = self._producer, self._is_open and not self._commit_asked
        self._producer, self._is_open, self._commit_asked = None, False, False
        if producer is None:
            return
        with suppress(KafkaException):
            if blocks_readers:
                producer.abort_transaction(_LAST_CALL_S)
        with suppress(KafkaException):
            producer.purge(blocking=False)

    def _config(self) -> dict[str, object]:
        timeout_ms = self._settings.transaction_timeout_s * 1000
        largest = max(self._limits.values(), default=topics.CHECKPOINT_BYTES_MAX)
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
        if not self._is_open:
            with self._translated("beginning a transaction in Kafka"):
                self._held().begin_transaction()
            self._is_open, self._begun_at = True, self._clock()
            self._reach("kafka:begun")

    def _calls(self, batch: pa.RecordBatch) -> list[ProduceCall]:
        """Returns the arguments of `Producer.produce` for each row's message, and for the tombstone after a delete."""
        messages = self._values.messages(batch)
        if not (batch := messages.rows).num_rows:
            return []
        entities = batch.column("entity").dictionary_encode()
        names = [topic(self._settings.prefix, entity) for entity in entities.dictionary.to_pylist()]
        calls: list[ProduceCall] = list(
            zip(
                map(names.__getitem__, entities.indices.tolist()),
                messages.values,
                messages.keys,
                batch.column("partition").to_pylist(),
                repeat(None),
                repeat(None),
                (batch.column("committed_at").cast(pa.int64()).to_numpy() // 1000).tolist(),
                messages.headers,
            )
        )
        if oversized.OVERHEAD_BYTES + messages.nbytes_max > min(self._limit(name) for name in names):
            rows = zip(calls, batch.column("op").to_pylist(), batch.column("position").to_pylist(), strict=True)
            return [call for row in rows for call in self._fitting(*row)]
        for index in reversed(pc.indices_nonzero(pc.equal(batch.column("op"), _DELETE)).to_pylist()):
            calls[index + 1 : index + 1] = self._tombstone(calls[index])
        return calls

    def _fitting(self, row: ProduceCall, op: str, position: str) -> Iterator[ProduceCall]:
        """Yields the message of a row, and for a delete a tombstone after it.

        In place of a message that is too large, it yields the message's parts for the topic of dead letters, or nothing
        if the decision is `skip`.
        """
        name, value, key, partition, _, _, at_ms, row_headers = row
        message = oversized.ProducerRecord(
            topic=name, partition=partition, key=key, value=value, headers=row_headers, timestamp_ms=at_ms
        )
        if message.nbytes <= self._limit(name):
            yield row
        elif self._decision(message, op, position) == "dead-letter":
            dead = dead_topic(self._settings.prefix)
            for part in oversized.parts(message, topic=dead, position=position, nbytes_max=self._limit(dead)):
                yield part.topic, part.value, part.key, part.partition, None, None, at_ms, part.headers
        if op == Op.DELETE:
            yield from self._tombstone(row)

    def _tombstone(self, row: ProduceCall) -> Sequence[ProduceCall]:
        """Returns the tombstone of a deleted key, which lets compaction remove the key.

        Returns nothing for a dead letter, or if the message of the row is a tombstone itself.
        """
        name, value, *rest, row_headers = row
        if value is None or name == dead_topic(self._settings.prefix):
            return []
        return [(name, None, *rest, [header for header in row_headers if header[0] != KEY])]

    def _decision(self, message: oversized.ProducerRecord, op: str, position: str) -> str:
        """Returns the decision on an oversized message: `dead-letter` or `skip`. Raises STOP if there is none."""
        at = Position.parse(position)
        accepted = None if self._checkpoint is None else self._checkpoint.decisions.at(at)
        if accepted in ("skip", "dead-letter"):
            return accepted
        if self._settings.on_too_large == "dead-letter":
            return "dead-letter"
        choices: tuple[str, ...] = ("skip", "dead-letter")
        remedy = f"`changelog accept {position} --as skip|dead-letter`"
        if op == Op.READ:  # a decision names a position, but each reading of the table gives this row another one
            choices = ()
            remedy = 'set [sink] on_too_large = "dead-letter" until the table is read'
        limit = self._limit(message.topic)
        limiter, setting = "the topic", "its max.message.bytes"
        if limit == self._settings.client.message_bytes:
            limiter, setting = "[sink] client", "its message.max.bytes, and max.message.bytes of the topic"
        raise ChangelogError(
            Kind.STOP,
            f"a message to {message.topic} has {message.nbytes} bytes, and {limiter} takes at most {limit}",
            hint=f"raise {setting}, or {remedy}",
            position=at,
            choices=choices,
        )

    def _limit(self, name: str) -> int:
        """Returns the size of the largest message that both the topic and the client accept, in bytes."""
        of_topic = self._limits.get(name, topics.MESSAGE_BYTES_DEFAULT)
        of_client = self._settings.client.message_bytes
        return of_topic if of_client is None else min(of_topic, of_client)

    def _produce(self, call: ProduceCall) -> None:
        """Sends a message; waits while the queue is full. Queued messages expire after `transaction_timeout_s`."""
        self._insist("sending to Kafka", partial(queue, self._held(), call))

    def _insist(self, action: str, call: Callable[[float], object]) -> None:
        with self._translated(action):
            self._insistence.insist(action, call)

    def _patience_s(self) -> float:
        return STOP_PATIENCE_S if self._stopping() else self._settings.patience_s

    def _error(self, error: KafkaError, action: str) -> ChangelogError:
        """Translates an error. Two ambiguous errors become CONNECTION, and the next `recover` finds out the cause.

        - *Another producer took over*: the broker also says this if it ended a transaction that was open for too long
          (KIP-588).
        - *The topic is unknown*: the topic may have been deleted, or it may not be visible yet.
        """
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            return self._refused_time(action)
        translated_error, timeout_s = error_of(error, action), self._settings.transaction_timeout_s
        if error.code() in UNKNOWN_TOPIC:
            return ChangelogError(Kind.CONNECTION, translated_error.message)
        if translated_error.kind is Kind.IN_USE and self._is_open and self._clock() - self._begun_at >= timeout_s:
            return ChangelogError(Kind.CONNECTION, f"{action}: a transaction was open for more than {timeout_s} s")
        return translated_error

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(error.args[0], action) from error

    def _refused_time(self, action: str) -> ChangelogError:
        """Returns the error for a refused time. A message has the time of its commit, by the database's clock."""
        first, *others = self._limiting_time or ["a topic"]
        names = first + (f" and {len(others)} other topics" if others else "")
        return ChangelogError(
            Kind.PRECONDITION,
            f"{action}: the database's clock is too far ahead of Kafka's: the limit is {topics.AHEAD} of {names}",
            hint="raise that limit (`changelog check` prints the command for each topic), start the service, and then "
            "correct the database's clock; the changes that are already committed keep their times",
        )
