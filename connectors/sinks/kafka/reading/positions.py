"""Reads the topic `<prefix>.positions`, which holds the checkpoint of each source."""

import time
from collections.abc import Collection, Mapping, Set
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, TopicPartition

from changelog.connectors.kafka.client import Client, error_of, translated
from changelog.connectors.kafka.offsets import written_ends
from changelog.connectors.sinks.kafka.admin.names import positions_topic, topic
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

SILENCE_S = 30.0
"""A broker that sends nothing for so many seconds counts as lost."""


def read_checkpoint(client: Client, prefix: str, name: str, entities: Collection[str] = ()) -> Checkpoint | None:
    """Returns the last committed checkpoint of the source `name`, which publishes `entities`.

    Returns None if the source has no checkpoint. The caller must first end our last transaction (`init_transactions`),
    which could otherwise still store a newer checkpoint. An open transaction of another source hides all messages after
    its start, so this function waits until that transaction ends. Raises ChangelogError: CONNECTION if the transaction
    does not end in time, or if the topic does not exist; GAP if the source's message is not a checkpoint; PRECONDITION
    if another source publishes one of `entities`.
    """
    topic_name = positions_topic(prefix)
    admin = client.admin()  # the variable keeps the client alive until it has its answer
    part = topic_name, 0
    checkpoints = _newest(client, topic_name, end=written_ends(admin, [part], f"reading {topic_name}")[part])
    _refuse_shared(checkpoints, prefix, name, entities)
    entry = checkpoints.get(name.encode())
    return None if entry is None else _parsed(entry, topic_name)


def refuse_shared(client: Client, prefix: str, name: str, entities: Collection[str]) -> None:
    """Raises ChangelogError (PRECONDITION) if a source other than `name` publishes one of `entities`.

    The visible checkpoints say which source publishes which entities.
    """
    _refuse_shared(_newest(client, positions_topic(prefix)), prefix, name, entities)


def read_stored(client: Client, prefix: str, name: str) -> tuple[Checkpoint, float] | None:
    """Returns the last visible checkpoint of the source `name`, and when it was stored, in seconds since 1970.

    Returns None if there is no checkpoint, or no topic of checkpoints.
    """
    topic_name = positions_topic(prefix)
    entry = _newest(client, topic_name).get(name.encode())
    return None if entry is None else (_parsed(entry, topic_name), entry.at_s)


def read_all(client: Client, prefix: str) -> list[Checkpoint]:
    """Returns the last visible checkpoint of each source that publishes under `prefix`. Raises ChangelogError (GAP)."""
    topic_name = positions_topic(prefix)
    return [_parsed(entry, topic_name) for entry in _newest(client, topic_name).values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """The text of a stored checkpoint, its offset, and when it was stored, in seconds since 1970."""

    text: bytes
    offset: int
    at_s: float


def _parsed(entry: _Stored, topic: str) -> Checkpoint:
    """Parses a checkpoint. Raises ChangelogError (GAP) if the message is not a checkpoint."""
    try:
        return Checkpoint.from_json(entry.text)
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        raise ChangelogError(
            Kind.GAP, f"the message at offset {entry.offset} of topic {topic} is not a checkpoint", hint=OVER_GAP
        ) from error


def _refuse_shared(checkpoints: Mapping[bytes, _Stored], prefix: str, name: str, entities: Collection[str]) -> None:
    for key, entry in checkpoints.items():
        other = key.decode("utf-8", "replace")
        shared = sorted(_published(entry.text) & frozenset(entities)) if other != name else []
        if shared:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"the source {other} already publishes to the topic {topic(prefix, shared[0])}, and so would {name}: "
                "changes of two sources cannot be ordered",
                hint=f"give one of them another [sink] prefix; or, if {other} is no longer used, drop its checkpoint: "
                f"`changelog drop --positions --yes` with the configuration of {other}",
            )


def _published(text: bytes) -> Set[str]:
    """Returns the entities in another source's checkpoint.

    The set is empty if the checkpoint cannot be read, for example because a newer version of this program wrote it.
    """
    try:
        return Checkpoint.from_json(text).settings.keys()
    except ChangelogError:
        return set()


def _newest(client: Client, topic: str, *, end: int | None = None) -> dict[bytes, _Stored]:
    """Returns the newest checkpoint of each key in the topic's only partition; leaves out keys that were deleted.

    Stops where the committed messages ended when the first message arrived, because other sources may write to the
    topic all the time. If `end` is given, reads the committed messages up to the offset `end`, and waits for them if
    necessary.
    """
    action = f"reading {topic}"
    checkpoints: dict[bytes, _Stored] = {}
    part, stop = TopicPartition(topic, 0, 0), end
    deadline = time.monotonic() + SILENCE_S
    with closing(client.reader()) as consumer, translated(action):
        consumer.assign([part])
        while True:
            message = consumer.poll(max(deadline - time.monotonic(), 0.0))
            if message is None:
                other_cause = "" if end is None else ", or another source's transaction is open"
                text = f"{action}: Kafka has been silent for {SILENCE_S:.0f} s{other_cause}"
                raise ChangelogError(Kind.CONNECTION, text)
            error = message.error()
            if error is None:
                deadline = time.monotonic() + SILENCE_S
                _take(message, checkpoints)
                if stop is None:  # the end that came with this message
                    stop = consumer.get_watermark_offsets(part, cached=True)[1]
                if (message.offset() or 0) + 1 >= stop:
                    return checkpoints
            elif error.code() == KafkaError._PARTITION_EOF:
                if end is None or (message.offset() or 0) >= end:
                    return checkpoints
            elif error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
                if end is not None:
                    raise ChangelogError(Kind.CONNECTION, f"{action}: the topic does not exist")
                return checkpoints
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, action)


def _take(message: Message, checkpoints: dict[bytes, _Stored]) -> None:
    key, text = message.key() or b"", message.value()
    if text is None:
        checkpoints.pop(key, None)
    else:
        checkpoints[key] = _Stored(text=text, offset=message.offset() or 0, at_s=message.timestamp()[1] / 1000)
