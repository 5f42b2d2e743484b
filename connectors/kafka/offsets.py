"""Asks Kafka where partitions begin and end."""

import time
from collections.abc import Collection, Mapping

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from changelog.connectors.kafka.client import TIMEOUT_S, Admin, error_of, translated
from changelog.envelope.errors import ChangelogError, Kind

Part = tuple[str, int]
"""One partition: the name of its topic, and its number."""

_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_ASKING = "asking Kafka for offsets"
_ASK_AGAIN_S = 0.1

_ATTEMPT_S = 5.0
"""Each of the first requests for offsets may take this many seconds. A request to a leader that has failed gets no
answer; the next request goes to the leader's successor.
"""


def begins(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """Returns the first offset that each partition still has."""
    return _list_offsets(admin, dict.fromkeys(parts, _EARLIEST))


def ends(admin: Admin, parts: Collection[Part]) -> dict[Part, int]:
    """Returns, for each partition, the offset at which readers of committed messages stop.

    This is the start of the first open transaction, or the end of the partition if no transaction is open.
    """
    return _list_offsets(admin, dict.fromkeys(parts, _LATEST))


def since(admin: Admin, at_ms: Mapping[Part, int]) -> dict[Part, int | None]:
    """Returns, for each partition, the offset of the first message that is not older than the partition's time in
    `at_ms`.

    The offset is None if there is no such message. Times are in milliseconds since 1970.
    """
    specs = {part: OffsetSpec.for_timestamp(at) for part, at in at_ms.items()}
    return {part: None if offset < 0 else offset for part, offset in _list_offsets(admin, specs).items()}


def written_ends(admin: Admin, parts: Collection[Part], action: str = _ASKING) -> dict[Part, int]:
    """Returns the offset after the last message of each partition, even if the message is in an open transaction.

    This end is up to date: a partition's leader answers the request only after it knows what the leader before it had
    committed (KIP-207). The end that a consumer receives together with messages may be older.
    """
    return _list_offsets(admin, dict.fromkeys(parts, _LATEST), IsolationLevel.READ_UNCOMMITTED, action)


def committed(consumer: Consumer, parts: Collection[Part]) -> dict[Part, int]:
    """Returns the offsets that the consumer's group has committed for `parts`. The group has read all messages before
    these offsets. Partitions without an offset are left out. The consumer needs no subscription and no partitions.

    An admin client could ask for these offsets, too. But it ends the process with a segmentation fault if another
    broker has become the coordinator of the group (confluentinc/librdkafka#5040).
    """
    consumer.poll(0)  # takes connection errors, which would otherwise pile up
    with translated(_ASKING):
        answers = consumer.committed([TopicPartition(*part) for part in parts], timeout=TIMEOUT_S)
    return {(part.topic, part.partition): part.offset for part in answers if part.offset >= 0}


def _list_offsets(
    admin: Admin,
    specs: Mapping[Part, OffsetSpec],
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    action: str = _ASKING,
) -> dict[Part, int]:
    """Returns the offset of each partition. Repeats the request until all leaders answer: a new topic may have no
    leader yet, and a leader may fail.

    Gives up after `TIMEOUT_S`, as soon as the request that is under way has ended.
    """
    if not specs:
        return {}
    admin.await_answer(action)
    requests = {TopicPartition(*part): spec for part, spec in specs.items()}
    began_s, pause_s = time.monotonic(), _ASK_AGAIN_S
    while True:
        # The last requests may take longer: to find offsets by time, a broker may have to read much.
        timeout = _ATTEMPT_S if time.monotonic() < began_s + 2 * _ATTEMPT_S else TIMEOUT_S
        cause: KafkaException | None = None
        try:
            answers = admin.list_offsets(requests, isolation_level=isolation, request_timeout=timeout)
            offsets = {(part.topic, part.partition): future.result().offset for part, future in answers.items()}
        except KafkaException as error:
            failure, cause = error_of(error.args[0], action), error
        else:
            unknown = [f"{topic}-{number}" for (topic, number), offset in offsets.items() if offset == OFFSET_INVALID]
            if not unknown:
                return offsets
            # If the leader of a partition does not answer, librdkafka reports OFFSET_INVALID, and no error.
            failure = ChangelogError(Kind.CONNECTION, f"{action}: the leader of partition {unknown[0]} does not answer")
        if failure.kind is not Kind.CONNECTION or time.monotonic() >= began_s + TIMEOUT_S:
            raise failure from cause
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)
        admin.refresh(_ATTEMPT_S)  # without this, librdkafka could ask former leaders for up to 5 minutes
