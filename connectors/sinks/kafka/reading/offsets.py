"""Asks Kafka where partitions begin and end."""

import time
from collections.abc import Collection, Mapping

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from changelog.connectors.sinks.kafka.client import TIMEOUT_S, Admin, error_of
from changelog.envelope.errors import Kind

Part = tuple[str, int]
"""A topic and one of its partitions."""

_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_ASKING = "asking Kafka for offsets"
_ASK_AGAIN_S = 0.1


def begins(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """The first offset that each partition still has."""
    return _asked(admin, dict.fromkeys(parts, _EARLIEST))


def ends(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """The offset after the last message that readers of committed messages see, before any open transaction."""
    return _asked(admin, dict.fromkeys(parts, _LATEST))


def since(admin: Admin, at_ms: Mapping[Part, int]) -> dict[Part, int | None]:
    """The first offset in each partition with a message of the given time or later; None if there is none.

    Times are milliseconds since 1970.
    """
    specs = {part: OffsetSpec.for_timestamp(at) for part, at in at_ms.items()}
    return {part: None if offset < 0 else offset for part, offset in _asked(admin, specs).items()}


def written_ends(admin: Admin, parts: Collection[Part], doing: str = _ASKING) -> dict[Part, int]:
    """The offset after the last message of each partition, including open transactions.

    The end that a reader receives with its messages may be out of date. A leader answers this request only once it
    knows what its predecessor had committed (KIP-207).
    """
    return _asked(admin, dict.fromkeys(parts, _LATEST), IsolationLevel.READ_UNCOMMITTED, doing)


def _asked(
    admin: Admin,
    specs: Mapping[Part, OffsetSpec],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    doing: str = _ASKING,
) -> dict[Part, int]:
    """Asks until there is an answer, for at most `TIMEOUT_S`, because a new topic has no leader yet."""
    if not specs:
        return {}
    requests = {TopicPartition(*part): spec for part, spec in specs.items()}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            answers = admin.list_offsets(requests, isolation_level=isolation, request_timeout=TIMEOUT_S)
            return {(part.topic, part.partition): future.result().offset for part, future in answers.items()}
        except KafkaException as error:
            failure = error_of(error.args[0], doing)
            if failure.kind is not Kind.CONNECTION or time.monotonic() >= deadline:
                raise failure from error
            time.sleep(_ASK_AGAIN_S)
