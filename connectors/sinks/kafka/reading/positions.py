"""`<prefix>.positions`: how far each source is in the changelog."""

import time
from collections.abc import Collection, Mapping, Set
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, TopicPartition

from connectors.sinks.kafka.admin.names import positions_topic, topic
from connectors.sinks.kafka.client import Client, error_of, translated
from connectors.sinks.kafka.reading.offsets import written_end
from envelope.checkpoint import Checkpoint
from envelope.errors import OVER_GAP, ChangelogError, Kind

SILENCE_S = 30.0
"""A broker that says nothing for so long is gone."""


def read_checkpoint(client: Client, prefix: str, name: str, entities: Collection[str] = ()) -> Checkpoint | None:
    """The last committed checkpoint of the source `name`, which publishes `entities`; None when it has none.

    For who is to go on from it: `init_transactions` has ended the last transaction of ours. What is committed behind
    another source's open transaction is not seen before that has ended, and so is waited for. Raises ChangelogError,
    CONNECTION while such a transaction, or the topic's absence, hides what may be there; GAP when what is there is no
    checkpoint; and as `refuse_shared` does.
    """
    stored = positions_topic(prefix)
    admin = client.admin()  # it must outlive the answer
    found = _newest(client, stored, end=written_end(admin, (stored, 0), f"reading {stored}"))
    _refuse_shared(found, prefix, name, entities)
    value = found.get(name.encode())
    return None if value is None else _parsed(value, stored)


def refuse_shared(client: Client, prefix: str, name: str, entities: Collection[str]) -> None:
    """Raises ChangelogError, PRECONDITION, when another source than `name` publishes one of `entities`, as far as
    readers see now.
    """
    _refuse_shared(_newest(client, positions_topic(prefix)), prefix, name, entities)


def read_stored(client: Client, prefix: str, name: str) -> tuple[Checkpoint, float] | None:
    """The last checkpoint of the source `name` that readers see now, and when it was stored, in seconds since 1970;
    None when there is none, or the topic is not there.
    """
    stored = positions_topic(prefix)
    found = _newest(client, stored).get(name.encode())
    return None if found is None else (_parsed(found, stored), found.at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A checkpoint's text, where it stands, and when it was stored, in seconds since 1970."""

    text: bytes
    offset: int
    at_s: float


def _parsed(stored: _Stored, topic: str) -> Checkpoint:
    """The checkpoint; GAP where the message holds none."""
    try:
        return Checkpoint.from_json(stored.text)
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        raise ChangelogError(
            Kind.GAP, f"the message at offset {stored.offset} of {topic} is no checkpoint", hint=OVER_GAP
        ) from error


def _refuse_shared(found: Mapping[bytes, _Stored], prefix: str, name: str, entities: Collection[str]) -> None:
    for key, stored in found.items():
        other = key.decode("utf-8", "replace")
        shared = sorted(_published(stored.text) & frozenset(entities)) if other != name else []
        if shared:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{other} publishes to {topic(prefix, shared[0])}, and so would {name}: two sources have no order",
                hint="give one of them another [sink] prefix; or, if it is no more, drop its checkpoint: "
                f"`changelog drop --positions --yes` with the configuration of {other}",
            )


def _published(text: bytes) -> Set[str]:
    """The entities of another source's checkpoint; none of one that a newer program wrote."""
    try:
        return Checkpoint.from_json(text).settings.keys()
    except ChangelogError:
        return set()


def _newest(client: Client, topic: str, *, end: int | None = None) -> dict[bytes, _Stored]:
    """What the topic's one partition holds by key: the newest, where it was not dropped.

    Reads as far as is committed, and waits until that is up to `end`, if it is given.
    """
    doing = f"reading {topic}"
    found: dict[bytes, _Stored] = {}
    deadline = time.monotonic() + SILENCE_S
    with closing(client.reader()) as consumer, translated(doing):
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(max(deadline - time.monotonic(), 0.0))
            if message is None:
                held_back = "" if end is None else ", or another source's transaction is open"
                text = f"{doing}: Kafka has been silent for {SILENCE_S:.0f} s{held_back}"
                raise ChangelogError(Kind.CONNECTION, text)
            error = message.error()
            if error is None:
                deadline = time.monotonic() + SILENCE_S
                _take(message, found)
            elif error.code() == KafkaError._PARTITION_EOF:
                if end is None or (message.offset() or 0) >= end:
                    return found
            elif error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
                if end is not None:
                    raise ChangelogError(Kind.CONNECTION, f"{doing}: the topic is not there")
                return found
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise error_of(error, doing)


def _take(message: Message, found: dict[bytes, _Stored]) -> None:
    key, text = message.key() or b"", message.value()
    if text is None:
        found.pop(key, None)
    else:
        found[key] = _Stored(text=text, offset=message.offset() or 0, at_s=message.timestamp()[1] / 1000)
