"""Writes the changelog to Kafka: each commit is one transaction (KIP-98) with the rows and the checkpoint.

All transactions of a service have one `transactional.id`, by which Kafka fences (shuts out) an older producer.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from changelog.connectors.failpoints import Reach, nowhere
from changelog.connectors.kafka.client import UNKNOWN_TOPIC, Client, error_of, translated
from changelog.connectors.kafka.offsets import Part
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.sinks.kafka.admin import topics
from changelog.connectors.sinks.kafka.admin.generations import GenerationEntries, present_numbers
from changelog.connectors.sinks.kafka.admin.names import entity_of, gaps_topic, positions_topic, schemas_topic, topic
from changelog.connectors.sinks.kafka.admin.send_messages import ProduceCall
from changelog.connectors.sinks.kafka.admin.topics import OWN, Topic, TopicSettings
from changelog.connectors.sinks.kafka.encoding.messages import ValueCodec
from changelog.connectors.sinks.kafka.encoding.produce_calls import ProduceCalls
from changelog.connectors.sinks.kafka.insistence import Insistence, queue
from changelog.connectors.sinks.kafka.reading.positions import read_checkpoint, read_stored
from changelog.connectors.sinks.kafka.reading.read_generations import read_generations
from changelog.connectors.sinks.kafka.reading.unchanged import TopicIds, refuse_older, refuse_rows
from changelog.envelope.checkpoint import GENERATIONS, NO_DECISIONS, Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind

FAIL_POINTS = ("kafka:recovered", "kafka:begun", "kafka:added", "kafka:positioned", "kafka:committed")
"""The places between two steps at which tests make the process crash."""

PATIENCE_S, PATIENCE_S_MAX = 60.0, 100.0
"""One call to Kafka is retried for as long as a transaction's timeout, but for at least PATIENCE_S and at most
PATIENCE_S_MAX seconds. Then the sink is recovered. `/live` reports a stuck service only later, after 120 s.
"""

STOP_PATIENCE_S = 5.0
"""The seconds for which a call is retried while the service is stopping. They are enough for one or two attempts."""

_TOPICS = "topics"
"""The member of a checkpoint's `sink` that maps topics to their ids. A topic that is created again has another id."""

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
    `recover` makes a new producer, which asks the broker to end the transaction (`init_transactions`). Then `recover`
    reads the checkpoint, which shows the outcome. The sink never aborts such a transaction in order to send its rows
    again, because the transaction may already be committed.

    With `over_gap`, the service continues although changes were lost (a *gap*). Then missing topics are created again.
    This is safe, because the caller records the gap. Once `stopping` returns True, the sink waits only a few seconds
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
        self._calls = ProduceCalls(
            values,
            self.topic,
            prefix=settings.prefix,
            client_limit=settings.client.message_bytes,
            on_too_large=settings.on_too_large,
        )
        self._generations: GenerationEntries = {}
        self._parts: list[Part] = []
        self._topic_ids: TopicIds | None = None
        self._limiting_time: Sequence[str] = ()
        self._recreated: frozenset[str] = frozenset()
        self._producer: Producer | None = None
        self._checkpoint: Checkpoint | None = None
        self._is_open = self._commit_asked = False
        self._begun_at = 0.0

    def topic(self, entity: str) -> str:
        """Returns the present topic of an entity."""
        return topic(self._settings.prefix, entity, len(self._generations.get(entity, ())) or 1)

    def prepare(self, entities: Sequence[Entity]) -> None:
        """Creates missing topics, if the settings allow it.

        Raises ChangelogError: the errors of `topics.ensure`, and GAP if a topic of the stored checkpoint is gone.
        """
        settings = self._settings
        counts = {entity.name: entity.partitions for entity in entities}
        self._generations = read_generations(settings.client, settings.prefix, settings.name, counts)
        configured = topics.topics_of(settings.prefix, entities, settings.entities, present_numbers(self._generations))
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
        self._calls.limits = {name: state.message_bytes for name, state in states.items()}
        self._parts = [(self.topic(entity.name), number) for entity in entities for number in range(entity.partitions)]
        self._limiting_time = sorted(name for name, state in states.items() if state.limits_time)

    def _refuse_lost(self, configured: Sequence[Topic]) -> None:
        """Raises GAP if a topic of the changelog is gone.

        Without this check, `prepare` would create the topic again, without the rows of the old one.
        """
        settings = self._settings
        missing_topics = {absent.name for absent in topics.missing(settings.client, configured)}
        if not missing_topics or positions_topic(settings.prefix) in missing_topics:
            return
        entry = read_stored(settings.client, settings.prefix, settings.name)
        if entry is None:
            return
        names = {*map(self.topic, entry[0].settings), *entry[0].sink.get(_TOPICS, {})}
        for name in sorted(names & missing_topics):
            raise topics.lost(name)

    def recover(self) -> Checkpoint | None:
        """Fences every older producer that has our `transactional.id`, and then reads the checkpoint.

        Fencing also ends the last transaction of the older producer. The checkpoint is read only after that, because
        until then a commit of the older producer can still store a newer checkpoint. Raises ChangelogError:
        PRECONDITION if another source publishes one of the entities as well; GAP or DIVERGED if the topics are no
        longer those of the checkpoint (module `unchanged`).
        """
        self.close()
        with translated("connecting to Kafka"):
            self._producer = Producer(self._config())
        self._insist("taking over the topics of Kafka", self._held().init_transactions)
        checkpoint = self._stored()
        self._take_generations(checkpoint)
        self._checkpoint = self._unchanged(checkpoint)
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

    def _take_generations(self, checkpoint: Checkpoint | None) -> None:
        """Takes the entities' generations from the checkpoint.

        Raises ChangelogError (ALTERED) if an entity was repartitioned after `prepare`, because `prepare` checked and
        created the topics of the old generation.
        """
        if checkpoint is None:
            return
        generations: GenerationEntries = checkpoint.sink.get(GENERATIONS, {})
        if self._prepared and generations != self._generations:
            raise ChangelogError(Kind.ALTERED, "an entity was repartitioned while the service started")
        self._generations = generations

    def _present_generations(self) -> GenerationEntries:
        """Returns the entities' generations for a checkpoint that lacks them, because it was made anew after a gap.

        The present topic of an entity may have been created again with another number of partitions. So its generation
        gets the configured number.
        """
        counts = {entity.name: entity.partitions for entity in self._prepared}
        return {
            name: [*earlier, {**present, "partitions": counts.get(name, present["partitions"])}]
            for name, (*earlier, present) in self._generations.items()
        }

    def _unchanged(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Checks that the topics are those of the checkpoint. Returns the checkpoint without the topics' ids.

        With `over_gap`, raises nothing because of ids or rows that differ. Instead, finds out which topics were created
        again, and returns the checkpoint with the topics' ids.
        """
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
        parts = self._all_parts()
        if checkpoint is None:
            refuse_rows(settings.client, self._values, settings.prefix, settings.name, parts)
            return None
        parts = [part for part in parts if entity_of(settings.prefix, part[0]) in checkpoint.settings]
        refuse_older(settings.client, self._values, settings.prefix, settings.name, checkpoint, parts)
        return replace(checkpoint, sink={name: value for name, value in checkpoint.sink.items() if name != _TOPICS})

    def _refuse_repartitioned(self, checkpoint: Checkpoint | None) -> None:
        """Raises ChangelogError (SETTINGS) if a topic was begun with another envelope or number of partitions."""
        started_with = {} if checkpoint is None else checkpoint.settings
        topics.refuse_other_envelope(self.topic, self._settings.envelope, started_with, self._recreated)
        topics.refuse_repartitioned(self.topic, self._prepared, started_with, self._recreated)

    def _all_parts(self) -> list[Part]:
        """Returns the partitions of the prepared entities: of their present topics, and of older topics that exist."""
        settings = self._settings
        existing = topics.entities(settings.client.admin(), settings.prefix) if self._parts else {}
        other_parts = {part for entity in self._entities for part in existing.get(entity, ())}.difference(self._parts)
        return [*self._parts, *sorted(other_parts)]

    def add(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Sends rows, and returns before the broker has them. May raise STOP if a message is too large."""
        decisions = NO_DECISIONS if self._checkpoint is None else self._checkpoint.decisions
        calls_by_batch = [self._calls.of_rows(batch, decisions) for batch in rows if batch.num_rows]
        self._begin()
        producer = self._held()
        with self._translated("sending to Kafka"):
            for calls in calls_by_batch:
                for call in calls:
                    try:
                        producer.produce(*call)
                    except BufferError:
                        self._produce(call)
                producer.poll(0)
        self._reach("kafka:added")

    def send(self, calls: Iterable[ProduceCall]) -> None:
        """Sends messages that are not rows. The next commit includes them."""
        self._begin()
        with self._translated("sending to Kafka"):
            for call in calls:
                self._produce(call)

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commits the rows, and the checkpoint with the topics' ids. Raises GAP if a topic was created again."""
        self._begin()
        assert self._topic_ids is not None
        self._topic_ids.check_if_due()
        generations = {GENERATIONS: self._present_generations()} if self._generations else {}
        record = replace(checkpoint, sink={**generations, **checkpoint.sink, _TOPICS: self._topic_ids.ids})
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
        return [entity for entity in published_entities if self.topic(entity) in self._recreated]

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
        limits = self._calls.limits
        largest = max(limits.values(), default=topics.CHECKPOINT_BYTES_MAX)
        return self._settings.client.config(
            {
                **_DEFAULTS,
                "message.max.bytes": largest,
                "batch.size": min(largest, *map(self._calls.limit, limits), topics.MESSAGE_BYTES_DEFAULT),
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

        - *Another producer took over*, if our transaction was open for longer than its timeout. The broker may instead
          have ended the transaction because of the timeout: then it sends the same error (KIP-588).
        - *The topic is unknown*. The topic may have been deleted, or it may not be visible yet.
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
        """Returns the error for a message whose time the broker refused. A message has the time of the commit in the
        database, by the database's clock.
        """
        first, *others = self._limiting_time or ["a topic"]
        names = first + (f" and {len(others)} other topics" if others else "")
        return ChangelogError(
            Kind.PRECONDITION,
            f"{action}: the database's clock is too far ahead of Kafka's: the limit is the topic setting "
            f"{topics.AHEAD} of {names}",
            hint="raise that limit (`changelog check` prints the command for each topic), start the service, and then "
            "correct the database's clock; the changes that are already committed keep their times",
        )
