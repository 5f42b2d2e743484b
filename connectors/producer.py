"""Publishes an application's own events to Kafka, as messages with the same envelope as those of a changelog.

    with ChangelogProducer(
        "localhost:9092", prefix="booking", service_name="web", api_version="v3", instance="web-0"
    ) as producer:
        producer.publish([
            Event(entity="viewed", id="01JD…", key=("7",), state={"id": 7, "page": 3}, at=datetime.now(UTC))
        ])

An event is something that happened, so it never changes. Its message is a `create` in JSON, and has neither `original`
nor a position. Readers derive a position from the message's partition and offset
(`changelog.envelope.position.at_offset`). The event's id is in `source.id` and in the header `id`. If a reader has seen
the id of a message before, the message is a repetition.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import TopicMetadata
from msgspec import Raw

from changelog.connectors.kafka.client import UNKNOWN_TOPIC, Client, error_of, translated
from changelog.connectors.sinks.kafka.admin.names import topic
from changelog.envelope.codec import json_codec
from changelog.envelope.entity import RESERVED
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text, partition
from changelog.envelope.model import MISSING, Envelope, Op, Provenance, Source, Stamp
from changelog.envelope.position import UNPLACED
from changelog.envelope.stamp import context_problem

CONNECTOR: Final = "producer"
"""The value of `source.connector` in the messages of events."""

EVENTS_MAX = 10_000
"""One call of `publish` accepts at most this many events."""

_CALL_S = 10.0
_NEW_TOPIC_S = 5.0
"""Brokers learn of a new topic with a delay. If a topic stays unknown for more than this many seconds, that is an
error.
"""

_NEW_TOPIC_WAIT_S = 0.1
_FULL_WAIT_S = 0.05

_CLIENT_LOG = logging.getLogger("changelog.librdkafka")
_CLIENT_LOG.addHandler(logging.NullHandler())  # a library is silent until the application asks for its log
_DEFAULTS: Mapping[str, Any] = {"compression.type": "lz4", "linger.ms": 5, "logger": _CLIENT_LOG}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100})*")
_ENTITY = re.compile(r"[a-z0-9_-]+")
_AGAIN = "publish the same events again, with the same ids"
_NEXT = "create a new producer, with an instance name that no other process uses"

_Call = tuple[str, bytes, bytes, int, int, list[tuple[str, str | bytes | None]]]
"""The arguments of `Producer.produce` for a message: topic, value, key, partition, milliseconds since 1970, headers."""

_OnDelivery = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, and that will not change.

    `id` is unique forever, for example a ULID or a UUID: readers drop an event whose id they have seen. `key` has the
    canonical text of the value in each column of the key. `partition_by` has such texts for the columns that choose the
    partition; by default, the key chooses the partition. `state` is a JSON object. docs/reference/types.md defines the
    canonical texts and the JSON values. `at` (with a zone) is when the event happened. `identifier` names the request
    or the run in which it happened. `context` has further details, as a JSON object within the limits of a stamp's
    context (docs/how-to/stamps.md).
    """

    entity: str
    id: str
    key: tuple[str, ...]
    state: Mapping[str, Any] = field(repr=False)
    at: datetime
    partition_by: tuple[str, ...] | None = None
    identifier: str = ""
    context: Mapping[str, Any] | None = field(default=None, repr=False)


class ChangelogProducer:
    """Publishes events to the topics `<prefix>.<entity>`, each batch in one Kafka transaction (KIP-98).

    `instance` identifies this process among the processes of the service, and must stay the same after a restart. If
    another process connects with the same `service_name` and `instance`, that process takes over, and this one can
    publish nothing more. `partitions` maps an entity to the number of partitions that its topic must have. The topic of
    an entity that is not in `partitions` may have any number. `client` has options for librdkafka (TLS, SASL).
    librdkafka's log goes to the logger `changelog.librdkafka` of `logging`. A call to Kafka is retried for at most
    `timeout_s`.

    A producer is a context manager. Any thread may call its methods; they run one at a time. The first `publish`
    connects. The constructor raises ChangelogError (USAGE) if a name or an option is invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        prefix: str,
        service_name: str,
        instance: str,
        api_version: str = "",
        partitions: Mapping[str, int] | None = None,
        client: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        for parameter, name in (("prefix", prefix), ("service_name", service_name), ("instance", instance)):
            if not _NAME.fullmatch(name):
                raise ChangelogError(Kind.USAGE, f"{parameter} should be made of A-Z, a-z, 0-9, -, _ and single dots")
        self._client = Client(bootstrap_servers=bootstrap_servers, options=dict(client or {}))
        self._prefix, self._service, self._version = prefix, service_name, api_version
        self._transactional_id = f"changelog-producer/{prefix}/{service_name}/{instance}"
        self._expected = dict(partitions or {})
        self._timeout_s = timeout_s
        self._counts: dict[str, int] = {}
        self._producer: Producer | None = None
        self._ended: Callable[[], ChangelogError] | None = None
        self._turn = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, events: Sequence[Event]) -> None:
        """Publishes all `events` in their order, or none of them; returns after they are durable.

        Raises ChangelogError of these kinds. IN_DOUBT: it is unknown whether the events are stored; publish the same
        events again, with the same ids. CONNECTION: no event is stored, and the caller may retry. IN_USE: another
        process took over permanently, and it is unknown whether the events are stored. USAGE: an event is invalid, or
        the producer is closed. PRECONDITION: a topic is missing, or has an unexpected number of partitions. LIMIT:
        there are more than EVENTS_MAX events, or a message is too large for its topic. ACCESS: a right is missing.
        """
        if len(events) > EVENTS_MAX:
            raise ChangelogError(Kind.LIMIT, f"a batch has {len(events)} events, and may have at most {EVENTS_MAX}")
        with self._turn:
            if self._ended is not None:
                raise self._ended()
            if events:
                calls = [self._call(event, transaction=events[0].id) for event in events]
                self._store(self._connected(), calls)

    def close(self) -> None:
        """Closes the connection. After that, `publish` raises ChangelogError."""
        with self._turn:
            self._ended = self._ended or _closed
            self._drop()

    def _connected(self) -> Producer:
        """Returns the connected Kafka producer. Makes and connects a new one if there is none.

        A new producer first ends the transactions that an earlier producer with the same id left open.
        """
        if self._producer is None:
            timeout_ms = int(2 * self._timeout_s * 1000)  # must be longer than the time for which a commit is retried
            config = self._client.config(
                {**_DEFAULTS, "message.timeout.ms": timeout_ms},
                transactional_id=self._transactional_id,
                transaction_timeout_ms=timeout_ms,
                enable_idempotence=True,
            )
            with translated("connecting to Kafka"):
                producer = Producer(config)
                self._insist(producer.init_transactions)
            self._producer = producer
        return self._producer

    def _call(self, event: Event, *, transaction: str) -> _Call:
        where = f"event {event.id!r} of {event.entity!r}"
        if not event.id or not event.key or event.at.tzinfo is None:
            raise ChangelogError(Kind.USAGE, f"{where} needs an id, a key, and a time with a zone")
        context = None if event.context is None else _context(event.context, where)
        provenance = self._provenance(event, transaction, context)
        envelope = Envelope(
            provenance=provenance, current=Raw(_json(event.state, f"{where} has a state")), original=MISSING
        )
        try:
            return (
                topic(self._prefix, event.entity),
                json_codec.encode(envelope),
                key_text(event.key).encode(),
                partition(key_text(event.partition_by or event.key).encode(), self._count(event.entity)),
                int(event.at.timestamp() * 1000),
                [
                    ("op", Op.CREATE.value.encode()),
                    ("transaction", transaction.encode()),
                    ("serviceName", self._service.encode()),
                    ("id", event.id.encode()),
                ],
            )
        except UnicodeEncodeError:  # the cause is left out, because it holds the text
            raise ChangelogError(Kind.USAGE, f"{where} has a text that is not valid Unicode") from None

    def _provenance(self, event: Event, transaction: str, context: str | None) -> Provenance:
        return Provenance(
            stamp=Stamp(
                api_version=self._version,
                service_name=self._service,
                identifier=event.identifier,
                context=context,
            ),
            source=Source(
                connector=CONNECTOR,
                name=self._service,
                database="",
                table="",
                op=Op.CREATE,
                position=UNPLACED,
                transaction=transaction,
                committed_at=event.at,
                id=event.id,
            ),
        )

    def _count(self, entity: str) -> int:
        """Returns the number of partitions of the entity's topic. Asks Kafka once for each topic."""
        if entity not in self._counts:
            if not _ENTITY.fullmatch(entity) or entity in RESERVED:
                raise ChangelogError(
                    Kind.USAGE, f"{entity!r} cannot be the name of an entity", hint="use a-z, 0-9, - and _"
                )
            name, expected_count = topic(self._prefix, entity), self._expected.get(entity)
            count = len(self._described(name).partitions)
            if expected_count not in (None, count):
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"topic {name} has {count} partitions, and {expected_count} are expected",
                    hint=f"a topic that grew cannot shrink: set partitions={{{entity!r}: {count}}} if readers need no "
                    "order between events before and after the topic grew; otherwise publish to a new topic, with "
                    "another prefix or entity",
                )
            self._counts[entity] = count
        return self._counts[entity]

    def _described(self, name: str) -> TopicMetadata:
        action, deadline = f"asking Kafka for topic {name}", time.monotonic() + _NEW_TOPIC_S
        while True:
            with translated(action):
                metadata: TopicMetadata = self._connected().list_topics(name, timeout=_CALL_S).topics[name]
            if metadata.error is None:
                return metadata
            if metadata.error.code() not in UNKNOWN_TOPIC or time.monotonic() > deadline:
                raise error_of(metadata.error, action)
            time.sleep(_NEW_TOPIC_WAIT_S)

    def _store(self, producer: Producer, calls: Sequence[_Call]) -> None:
        """Runs one transaction.

        After an error, the next transaction uses a new producer. This producer ends the failed transaction if it is
        still open.
        """
        failed_deliveries: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed_deliveries.append(error)

        began, commit_requested = time.monotonic(), False
        try:
            producer.begin_transaction()
            self._send(producer, calls, delivered)
            commit_requested = True
            self._insist(producer.commit_transaction)
        except KafkaException as error:
            cause = error.args[0]
            in_doubt = commit_requested and not cause.txn_requires_abort()
            if failed_deliveries and not in_doubt:
                cause = failed_deliveries[0]  # the commit's own error only says that messages were lost, but not why
            if not in_doubt:
                with suppress(KafkaException):  # an open transaction would block readers until it times out
                    producer.abort_transaction(_CALL_S)
            self._drop()
            raise self._fate(cause, in_doubt=in_doubt, age_s=time.monotonic() - began) from error
        except BaseException:
            self._drop()
            raise

    def _send(self, producer: Producer, calls: Sequence[_Call], on_delivery: _OnDelivery) -> None:
        for name, value, key, partition_number, at_ms, headers in calls:
            while True:
                try:
                    producer.produce(name, value, key, partition_number, on_delivery, timestamp=at_ms, headers=headers)
                except BufferError:
                    producer.poll(_FULL_WAIT_S)
                else:
                    break

    def _fate(self, error: KafkaError, *, in_doubt: bool, age_s: float) -> ChangelogError:
        """Returns the error for events whose transaction failed after `age_s` seconds.

        The error says that the events are not stored, or that it is unknown whether they are. If a broker ended a
        transaction because it was open for too long, the broker's answer is the same as if another process had taken
        over (KIP-588). So the answer proves a takeover only if the transaction was open for less than its timeout.
        """
        why = error_of(error, "publishing to Kafka")
        in_doubt |= why.kind is Kind.IN_USE
        if why.kind is Kind.IN_USE and age_s < 2 * self._timeout_s:
            self._ended = _taken_over
            return _taken_over()
        if in_doubt:
            return ChangelogError(Kind.IN_DOUBT, f"{why.message}; the events may or may not be stored", hint=_AGAIN)
        return ChangelogError(why.kind, f"{why.message}; nothing was stored", hint=why.hint or _AGAIN)

    def _insist(self, call: Callable[[float], object]) -> None:
        """Repeats a call until it returns, or until `timeout_s` has passed. The call must be safe to repeat."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                call(min(_CALL_S, self._timeout_s))
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= deadline:
                    raise
            else:
                return

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge(blocking=False)


def _taken_over() -> ChangelogError:
    return ChangelogError(Kind.IN_USE, "another process now uses the name of this instance", hint=_NEXT)


def _closed() -> ChangelogError:
    return ChangelogError(Kind.USAGE, "the producer is closed")


def _context(context: Mapping[str, Any], where: str) -> str:
    text = _json(context, f"{where} has a context").decode()
    problem = context_problem(text)
    if problem is not None:
        raise ChangelogError(Kind.USAGE, f"{where} has a context that {problem}")
    return text


def _json(value: Mapping[str, Any], subject: str) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):  # the cause is left out, because its message may hold a value
        hint = "use numbers, strings, booleans, null, lists and objects; see docs/reference/types.md for other types"
        raise ChangelogError(Kind.USAGE, f"{subject} that is not JSON", hint=hint) from None
