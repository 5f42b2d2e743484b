"""Makes all Kafka clients of this program, and translates their errors. All clients get the same options and log."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata

from changelog.envelope.errors import ChangelogError, Kind

TIMEOUT_S = 15.0
"""The seconds that one request to the cluster may take."""

OURS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "metadata.broker.list",
        "request.required.acks",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Options of librdkafka that users cannot set, because exactly-once delivery depends on them, or because other settings
of the service determine them.
"""

_log = structlog.get_logger("kafka")

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_FORBIDDEN = {
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}
UNKNOWN_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
_REFUSED = {
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_VERSION,
}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}

_TABLE: Mapping[int, tuple[Kind, str]] = {
    **dict.fromkeys(_FENCED, (Kind.IN_USE, "another instance of this service took over; run only one")),
    **dict.fromkeys(
        _FORBIDDEN,
        (
            Kind.ACCESS,
            "correct the credentials in the setting `client`, or grant the rights that docs/reference/kafka.md lists",
        ),
    ),
    **dict.fromkeys(
        UNKNOWN_TOPIC,
        (Kind.PRECONDITION, "the topic was deleted, or the service's user cannot see it; see `changelog check`"),
    ),
    KafkaError._INVALID_ARG: (Kind.PRECONDITION, "see the key `client`, and librdkafka's CONFIGURATION.md"),
    **dict.fromkeys(_REFUSED, (Kind.PRECONDITION, "see docs/reference/kafka.md for what the broker must offer")),
    **dict.fromkeys(
        _TOO_LARGE, (Kind.LIMIT, "raise max.message.bytes of the topic, and message.max.bytes of the client")
    ),
}
"""The kind and the hint of each Kafka error that stops a service.

Every other error becomes CONNECTION: the service recovers the sink and tries again."""


def error_of(error: KafkaError, action: str) -> ChangelogError:
    """Translates an error to a ChangelogError. `action` says what failed, as in "committing to Kafka"."""
    kind, hint = _TABLE.get(error.code(), (Kind.CONNECTION, None))
    if error.code() == KafkaError._SSL and "certificate" not in error.str():
        kind, hint = Kind.CONNECTION, None  # for example if the connection broke during the handshake
    return ChangelogError(kind, f"{action}: {error.str()} ({error.name()})", hint=hint)


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Translates the client's exceptions in the `with` block to ChangelogError. `action` is as in `error_of`."""
    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], action) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How to reach the cluster. `options` are the user's options for librdkafka; they may contain secrets.

    `section` is the section of the configuration that has the options. The constructor raises ChangelogError (USAGE) if
    an option is one of `OURS`, or if `message.max.bytes` is not a number.
    """

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    section: str = "[sink]"

    def __post_init__(self) -> None:
        for name in sorted(OURS & self.options.keys()):
            raise ChangelogError(
                Kind.USAGE, f"{self.section} client: {name} is managed by the service", hint="remove it"
            )
        try:
            _ = self.message_bytes
        except ValueError:
            text = f"{self.section} client: message.max.bytes is not a number of bytes"
            raise ChangelogError(Kind.USAGE, text, hint='write it as in "2097152"') from None

    @property
    def message_bytes(self) -> int | None:
        """The size of the largest message that the user's options allow, in bytes; None if they set no limit."""
        limit = self.options.get("message.max.bytes")
        return None if limit is None else int(limit, 0)  # librdkafka, too, accepts hexadecimal and octal numbers

    def config(self, defaults: Mapping[str, Any] | None = None, **ours: Any) -> dict[str, Any]:
        """Returns the configuration of a client.

        The user's options override `defaults`, and `ours` overrides both. The names in `ours` have _ in place of dots.
        """
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "changelog",
            "logger": _Logger(),
            **(defaults or {}),
            **self.options,
            **{name.replace("_", "."): value for name, value in ours.items()},
        }

    def admin(self) -> "Admin":
        """Returns a new client that lists, describes and creates topics."""
        with translated("connecting to Kafka"):
            return Admin(self.config())

    def reader(
        self,
        *,
        open_too: bool = False,
        group: str = "changelog",
        defaults: Mapping[str, Any] | None = None,
        **ours: Any,
    ) -> Consumer:
        """Returns a new consumer of committed messages. It joins no group: the caller assigns partitions to it.

        With `open_too`, the consumer also receives the messages of open and aborted transactions. If the caller commits
        offsets, Kafka stores them for the group `group`. `defaults` and `ours` are further options, as in `config`.
        """
        with translated("connecting to Kafka"):
            return Consumer(
                self.config(
                    # Only an empty answer shows a reader that it is at the end. With a low fetch.wait.max.ms, the
                    # empty answer comes soon.
                    {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 50, **(defaults or {})},
                    group_id=group,
                    isolation_level="read_uncommitted" if open_too else "read_committed",
                    enable_auto_commit=False,
                    enable_partition_eof=True,
                    **ours,
                )
            )


class Admin(AdminClient):
    """An admin client whose errors say why the cluster cannot be reached. librdkafka's own errors do not say why.

    `config` is the configuration for librdkafka.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._reported: deque[KafkaError] = deque(maxlen=64)
        self._answered = False
        super().__init__(config | {"error_cb": self._reported.append})

    def topics(self) -> dict[str, TopicMetadata]:
        """Returns all topics by name. Raises ChangelogError, with ACCESS if the broker refuses the credentials."""
        return self._topics("asking Kafka for its topics")

    def refresh(self, timeout_s: float) -> None:
        """Asks which brokers lead the partitions now. Does nothing if no broker answers within this time."""
        with suppress(KafkaException):
            self.list_topics(timeout=timeout_s)

    def await_answer(self, action: str) -> None:
        """Waits until a broker has answered this client once, so that a request for offsets is sent without a delay.

        For such a request, librdkafka first asks for the leaders of the partitions. If it has no connection yet, it
        tries again only after 3 s. But it sends a request for the topics as soon as it is connected; so this method
        sends one. `action` is as in `error_of`. Raises the errors of `topics`.
        """
        if not self._answered:
            self._topics(action)

    def _topics(self, action: str) -> dict[str, TopicMetadata]:
        self._reported.clear()
        try:
            topics = self.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            self.poll(0)
            raise error_of(self._cause(error.args[0]), action) from error
        self._answered = True
        return topics

    def _cause(self, error: KafkaError) -> KafkaError:
        specific = [reported for reported in self._reported if reported.code() != KafkaError._ALL_BROKERS_DOWN]
        refused = [reported for reported in specific if reported.code() == KafkaError._AUTHENTICATION]
        return [error, *specific, *refused][-1]


class _Logger(logging.Logger):
    """Receives librdkafka's own log, and passes it to ours at level DEBUG unless a line is critical.

    librdkafka logs a line for each broken connection, and such lines only help with debugging.
    """

    def __init__(self) -> None:
        super().__init__("librdkafka")

    def log(self, level: int, msg: object, *args: object, **_: object) -> None:
        """See `logging.Logger.log`."""
        text = str(msg) % args if args else str(msg)
        _log.log(logging.DEBUG if level < logging.CRITICAL else logging.WARNING, "client", said=text)
