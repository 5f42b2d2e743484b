"""Behavioural events, straight from a service to their topic: immutable, in the envelope of every other message.

    with ChangelogProducer(
        "localhost:9092", prefix="booking", service_name="web", api_version="v3", instance="web-0"
    ) as producer:
        producer.publish([
            Event(entity="viewed", id="01JD…", key=("7",), state={"id": 7, "page": 3}, at=datetime.now(UTC))
        ])

An event is a `create` in JSON that never changes: it has no `original`, and no position. It stands at its partition
and offset (`envelope.position.at_offset`). Its id is in `source.id` and in the header `id`: an event whose id was
seen before is a repeat.
"""

import json
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
from msgspec import Raw

from connectors.sinks.kafka.admin.names import topic
from connectors.sinks.kafka.client import Client, error_of, translated
from envelope.codec import json_codec
from envelope.entity import RESERVED
from envelope.errors import ChangelogError, Kind
from envelope.key import key_text, partition
from envelope.model import MISSING, Envelope, Op, Provenance, Source, Stamp
from envelope.position import UNPLACED
from envelope.stamp import context_problem

CONNECTOR: Final = "producer"
"""`source.connector` of what comes this way."""

EVENTS_MAX = 10_000
"""The most events of one batch."""

_CALL_S = 10.0
_FULL_WAIT_S = 0.05
_DEFAULTS = {"compression.type": "lz4", "linger.ms": 5}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}(\.[A-Za-z0-9_-]{1,100})*")
_ENTITY = re.compile(r"[a-z0-9_-]+")
_AGAIN = "publish the same events again, with the same ids"
_NEXT = "make a new producer, with an instance name that nobody else has"

_Call = tuple[str, bytes, bytes, int, int, list[tuple[str, str | bytes | None]]]
"""What is sent: topic, value, key, partition, milliseconds, headers."""

_Delivered = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, and will not change.

    `id` is its own for ever, a ULID or UUID say: readers drop what has an id that they know. `key` are the canonical
    texts of the entity key's columns, `partition_by` those of the columns that choose the partition, by default the
    key. `state` is a JSON object. docs/reference/types.md has the forms of both. `at` (with a zone) is when it
    happened; `identifier` says in which request or run, `context` what else there is to know: an object, of JSON as the
    state is, and of the size that a stamp's may have (docs/how-to/stamps.md).
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

    `instance` names this process among those of the service, and stays the same when it is started again: a process
    with the same two names takes over, and this one publishes nothing more. `partitions` says how many each entity's
    topic must have; an entity that it does not name has as many as its topic. `client` are options of librdkafka, as
    they are (TLS, SASL). A call of Kafka's is tried again for `timeout_s` at most.

    A context manager; methods may be called from any thread, and take turns. It connects at the first `publish`.
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
        for what, name in (("prefix", prefix), ("service_name", service_name), ("instance", instance)):
            if not _NAME.fullmatch(name):
                raise ChangelogError(Kind.USAGE, f"{what} should be made of A-Z, a-z, 0-9, -, _ and single dots")
        self._client = Client(bootstrap_servers=bootstrap_servers, options=dict(client or {}))
        self._prefix, self._service, self._version = prefix, service_name, api_version
        self._transactional_id = f"changelog-producer/{prefix}/{service_name}/{instance}"
        self._pinned = dict(partitions or {})
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
        """Publishes all of the events or none, in their order; returns when they are durable.

        Raises ChangelogError. IN_DOUBT: nobody knows whether they are stored; publish the same events again, with the
        same ids. CONNECTION: none is stored, and all may be tried again. IN_USE: another process took over, for good;
        the batch is in doubt too. USAGE: an event is not as it must be. PRECONDITION: a topic is missing or has another
        number of partitions. LIMIT: more than EVENTS_MAX, or a message larger than its topic takes. ACCESS: a right
        is missing.
        """
        if len(events) > EVENTS_MAX:
            raise ChangelogError(Kind.LIMIT, f"a batch has {len(events)} events and may have {EVENTS_MAX}")
        with self._turn:
            if self._ended is not None:
                raise self._ended()
            if events:
                calls = [self._call(event, transaction=events[0].id) for event in events]
                self._store(self._connected(), calls)

    def close(self) -> None:
        """Lets go of the connection; nothing more can be published."""
        with self._turn:
            self._ended = self._ended or _closed
            self._drop()

    def _connected(self) -> Producer:
        """The producer; a new one first ends what an earlier one of the same name left open."""
        if self._producer is None:
            timeout_ms = int(2 * self._timeout_s * 1000)  # longer than a commit is tried
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
        except UnicodeEncodeError:  # without its cause, which holds the text
            raise ChangelogError(Kind.USAGE, f"{where} has a text that is no Unicode") from None

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
        """How many partitions the entity's topic has, asked once."""
        if entity not in self._counts:
            if not _ENTITY.fullmatch(entity) or entity in RESERVED:
                raise ChangelogError(Kind.USAGE, f"{entity!r} is no name of an entity", hint="a-z, 0-9, - and _")
            name, wanted = topic(self._prefix, entity), self._pinned.get(entity)
            with translated(f"asking Kafka for topic {name}"):
                found = self._connected().list_topics(name, timeout=_CALL_S).topics[name]
            if found.error is not None:
                raise error_of(found.error, f"asking Kafka for topic {name}")
            count = len(found.partitions)
            if wanted not in (None, count):
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"topic {name} has {count} partitions, and {wanted} are expected",
                    hint=f"a topic that grew cannot shrink: say partitions={{{entity!r}: {count}}} if readers need no "
                    "order across the change, else publish to a new topic, of another prefix or entity",
                )
            self._counts[entity] = count
        return self._counts[entity]

    def _store(self, producer: Producer, calls: Sequence[_Call]) -> None:
        """One transaction. Whatever error ends it, the next one is a new producer's, which finds everything settled."""
        lost: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                lost.append(error)

        began, asked = time.monotonic(), False
        try:
            producer.begin_transaction()
            self._send(producer, calls, delivered)
            asked = True
            self._insist(producer.commit_transaction)
        except KafkaException as error:
            cause = error.args[0]
            in_doubt = asked and not cause.txn_requires_abort()
            if lost and not in_doubt:
                cause = lost[0]  # the commit only says that messages were lost
            if not in_doubt:
                with suppress(KafkaException):  # it would keep readers waiting until its timeout
                    producer.abort_transaction(_CALL_S)
            self._drop()
            raise self._fate(cause, in_doubt=in_doubt, age_s=time.monotonic() - began) from error
        except BaseException:
            self._drop()
            raise

    def _send(self, producer: Producer, calls: Sequence[_Call], delivered: _Delivered) -> None:
        for name, value, key, place, at_ms, heads in calls:
            while True:
                try:
                    producer.produce(name, value, key, place, delivered, timestamp=at_ms, headers=heads)
                except BufferError:
                    producer.poll(_FULL_WAIT_S)
                else:
                    break

    def _fate(self, error: KafkaError, *, in_doubt: bool, age_s: float) -> ChangelogError:
        """What became of a batch that met `error` after `age_s`: in doubt, or not stored.

        A broker that ended a transaction for its age answers as if another had taken over (KIP-588).
        """
        why = error_of(error, "publishing to Kafka")
        in_doubt |= why.kind is Kind.IN_USE
        if why.kind is Kind.IN_USE and age_s < 2 * self._timeout_s:
            self._ended = _taken_over
            return _taken_over()
        if in_doubt:
            return ChangelogError(Kind.IN_DOUBT, f"{why.message}; it may be stored or not", hint=_AGAIN)
        return ChangelogError(why.kind, f"{why.message}; nothing of it is stored", hint=why.hint or _AGAIN)

    def _insist(self, call: Callable[[float], object]) -> None:
        """Makes a call that may be made again as it is until it is answered, for `timeout_s`."""
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
    return ChangelogError(Kind.IN_USE, "another process has the name of this instance now", hint=_NEXT)


def _closed() -> ChangelogError:
    return ChangelogError(Kind.USAGE, "the producer is closed")


def _context(context: Mapping[str, Any], where: str) -> str:
    text = _json(context, f"{where} has a context").decode()
    problem = context_problem(text)
    if problem is not None:
        raise ChangelogError(Kind.USAGE, f"{where} has a context that {problem}")
    return text


def _json(value: Mapping[str, Any], what: str) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):  # without its cause, whose message may hold a value
        hint = "numbers, texts, booleans, null, lists and objects; see docs/reference/types.md for all else"
        raise ChangelogError(Kind.USAGE, f"{what} that is not JSON", hint=hint) from None
