"""Where the partitions of topics begin and end, as readers of committed messages see it."""

from collections.abc import Collection, Mapping

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from connectors.sinks.kafka.client import TIMEOUT_S, Admin, translated

Part = tuple[str, int]
"""A topic and one of its partitions."""

_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def begins(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """The first offset that each still has."""
    return _asked(admin, dict.fromkeys(parts, _EARLIEST))


def ends(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """The offset behind all that is committed in each; no open transaction stands before it."""
    return _asked(admin, dict.fromkeys(parts, _LATEST))


def since(admin: Admin, at_ms: Mapping[Part, int]) -> dict[Part, int | None]:
    """The first offset in each whose message is not older than a time (milliseconds since 1970); None when none is."""
    specs = {part: OffsetSpec.for_timestamp(at) for part, at in at_ms.items()}
    return {part: None if offset < 0 else offset for part, offset in _asked(admin, specs).items()}


def _asked(admin: Admin, specs: Mapping[Part, OffsetSpec]) -> dict[Part, int]:
    if not specs:
        return {}
    wanted = {TopicPartition(*part): spec for part, spec in specs.items()}
    with translated("asking Kafka for offsets"):
        answers = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S)
        return {(each.topic, each.partition): future.result().offset for each, future in answers.items()}
