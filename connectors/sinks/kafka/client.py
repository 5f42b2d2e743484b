"""What every Kafka client of ours shares: its options, its log, and the one table from its errors to ours."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, TopicMetadata

from envelope.errors import ChangelogError, Kind

TIMEOUT_S = 15.0
"""How long one question to the cluster may take."""

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
"""Options on which exactly-once rests, or which the configuration has a name of its own for."""

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
    **dict.fromkeys(_FENCED, (Kind.IN_USE, "another instance of this service took over; let one run")),
    **dict.fromkeys(
        _FORBIDDEN, (Kind.ACCESS, "see docs/reference/kafka.md for the rights that are needed, and [sink] client")
    ),
    **dict.fromkeys(
        UNKNOWN_TOPIC, (Kind.PRECONDITION, "it was deleted, or is not visible to this user; see `changelog check`")
    ),
    KafkaError._INVALID_ARG: (Kind.PRECONDITION, "see [sink] client, and librdkafka's CONFIGURATION.md"),
    **dict.fromkeys(_REFUSED, (Kind.PRECONDITION, "see docs/reference/kafka.md for what the broker must offer")),
    **dict.fromkeys(
        _TOO_LARGE, (Kind.LIMIT, "raise max.message.bytes of the topic, and message.max.bytes of the client")
    ),
}
"""What stops a service, and what then to do. Every other error is of the connection: retried, from a new recovery."""


def error_of(error: KafkaError, doing: str) -> ChangelogError:
    """What `error`, met while `doing` (as in "committing to Kafka"), is to a service."""
    kind, hint = _TABLE.get(error.code(), (Kind.CONNECTION, None))
    if error.code() == KafkaError._SSL and "certificate" not in error.str():
        kind, hint = Kind.CONNECTION, None  # a link that broke while it was made, say
    return ChangelogError(kind, f"{doing}: {error.str()} ({error.name()})", hint=hint)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Makes a ChangelogError of what the client raises."""
    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], doing) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """How the cluster is reached; `options` are librdkafka's, as the user gave them, and may hold secrets.

    Raises ChangelogError (USAGE) when an option is one of `OURS`.
    """

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in sorted(OURS & self.options.keys()):
            raise ChangelogError(Kind.USAGE, f"[sink] client: {name} is not yours to set", hint="leave it out")

    @property
    def message_bytes(self) -> int | None:
        """The largest message that the user's options let through, in bytes; None where they do not say."""
        said = self.options.get("message.max.bytes")
        return None if said is None else int(said, 0)  # as librdkafka reads it

    def config(self, defaults: Mapping[str, Any] | None = None, **ours: Any) -> dict[str, Any]:
        """A client's configuration: the user's options over `defaults`, and `ours` over both, with _ for a dot."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "client.id": "changelog",
            "logger": _Logger(),
            **(defaults or {}),
            **self.options,
            **{name.replace("_", "."): value for name, value in ours.items()},
        }

    def admin(self) -> "Admin":
        """Who asks for topics, and makes them."""
        with translated("connecting to Kafka"):
            return Admin(self.config())

    def reader(self) -> Consumer:
        """Who reads what is committed, of partitions that it is assigned; it joins no group and stores no offset."""
        with translated("connecting to Kafka"):
            return Consumer(
                self.config(
                    {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 50},  # the end is waited for
                    group_id="changelog",
                    isolation_level="read_committed",
                    enable_auto_commit=False,
                    enable_partition_eof=True,
                )
            )


class Admin(AdminClient):
    """An admin client that knows why the cluster could not be reached: of its own accord it says only that it was not.

    `config` is librdkafka's.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._heard: deque[KafkaError] = deque(maxlen=64)
        super().__init__(config | {"error_cb": self._heard.append})

    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic, by name. Raises ChangelogError; ACCESS when the broker wants other credentials."""
        self._heard.clear()
        try:
            return self.list_topics(timeout=TIMEOUT_S).topics
        except KafkaException as error:
            self.poll(0)
            raise error_of(self._cause(error.args[0]), "asking Kafka for its topics") from error

    def _cause(self, error: KafkaError) -> KafkaError:
        told = [each for each in self._heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
        refused = [each for each in told if each.code() == KafkaError._AUTHENTICATION]
        return [error, *told, *refused][-1]


class _Logger(logging.Logger):
    """librdkafka's own log: it tells of each broken link, which is for who looks into it."""

    def __init__(self) -> None:
        super().__init__("librdkafka")

    def log(self, level: int, msg: object, *args: object, **_: object) -> None:
        """See `logging.Logger.log`."""
        text = str(msg) % args if args else str(msg)
        _log.log(logging.DEBUG if level < logging.CRITICAL else logging.WARNING, "client", said=text)
