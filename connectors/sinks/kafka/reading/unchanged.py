"""Whether the topics are still those that the checkpoint was stored beside.

A topic that was deleted and created again has another id, and has lost what it held. A checkpoint that is older than
rows in the topics was written over a newer one: going on from there would publish these rows again.
"""

from collections.abc import Callable, Collection, Mapping, Set
from contextlib import closing
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, Uuid

from connectors.sinks.kafka.admin.names import positions_topic
from connectors.sinks.kafka.client import TIMEOUT_S, Admin, Client, error_of
from connectors.sinks.kafka.encoding.messages import Headers, Values
from connectors.sinks.kafka.reading.offsets import Part, begins, ends
from connectors.sinks.kafka.reading.spans import Spans, committed, part_of
from envelope.checkpoint import Checkpoint
from envelope.errors import OVER_GAP, ChangelogError, Kind
from envelope.position import Position

LOOK_S = 10.0
"""How often a commit first makes sure that no topic was created again: librdkafka goes on in the new one, unsaid.
What was committed in between stays there; the way over the gap reads the tables, so it misses nothing of that."""

_NO_ID = str(Uuid(0, 0))
"""What a broker answers that gives topics no ids: one before 2.8."""

_BACK, _GROWTH = 4, 8


def read_ids(admin: Admin, topics: Set[str]) -> dict[str, str]:
    """The id of each topic, as far as the broker knows the topic and gives it one."""
    ids = {}
    for name, answer in admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S).items():
        try:
            ids[name] = str(answer.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # not heard of yet, or no longer
                raise error_of(error.args[0], "asking Kafka for the topics' ids") from error
    return {name: topic_id for name, topic_id in ids.items() if topic_id != _NO_ID}


class TopicIds:
    """The ids of a changelog's topics, which are looked at again every `LOOK_S`.

    Raises ChangelogError (GAP) from the start on, as soon as a topic has another id than the one that `known` has.
    """

    def __init__(self, client: Client, topics: Set[str], known: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._admin, self._topics, self._clock = client.admin(), topics, clock
        self.known = {name: known[name] for name in topics if name in known}
        self._look_at = 0.0
        self._look()

    def look(self) -> None:
        """Looks again, if it is time to."""
        if self._clock() >= self._look_at:
            self._look()

    def _look(self) -> None:
        self._look_at = self._clock() + LOOK_S
        found = read_ids(self._admin, self._topics)
        for name, topic_id in self.known.items():
            if found.get(name, topic_id) != topic_id:
                raise ChangelogError(
                    Kind.GAP,
                    f"topic {name} was deleted and created again: what the changelog had stored there is gone",
                    hint=OVER_GAP,
                )
        self.known = dict(sorted({**self.known, **found}.items()))


def refuse_older(
    client: Client, values: Values, prefix: str, name: str, stored: Checkpoint, parts: Collection[Part]
) -> None:
    """Raises ChangelogError (DIVERGED) when one of `parts` ends with a row that is newer than the checkpoint `stored`
    of the source `name`.

    Rows and checkpoint are committed together, so the checkpoint is never the older one. A partition without rows
    proves nothing, and neither does a row of another source or an event without a position.
    """
    last = "" if stored.position is None else str(stored.position)
    for (topic, number), message in newest(client, parts).items():
        position = position_of(message)
        if position is None or str(position) <= last or _is_foreign(message, values, name):
            continue
        raise ChangelogError(
            Kind.DIVERGED,
            f"the checkpoint in {positions_topic(prefix)} ends at {last or 'no position'}, and partition {number} of "
            f"{topic} holds a row at {position}: an older checkpoint was written over the newer one",
            hint=OVER_GAP,
        )


def refuse_rows(client: Client, values: Values, prefix: str, name: str, parts: Collection[Part]) -> None:
    """Raises ChangelogError (GAP) when one of `parts` holds a row of the source `name`, which has no checkpoint: begun
    again, its positions would go back.
    """
    for (topic, number), message in newest(client, parts).items():
        position = position_of(message)
        if position is not None and not _is_foreign(message, values, name):
            raise ChangelogError(
                Kind.GAP,
                f"{positions_topic(prefix)} has no checkpoint of {name}, and partition {number} of {topic} holds a row "
                f"at {position}",
                hint=OVER_GAP,
            )


def newest(client: Client, parts: Collection[Part]) -> dict[Part, Message]:
    """The newest committed message of each partition that has one, tombstones left out.

    Asks for the last few offsets of all partitions at once, and further back only where these held none.
    """
    admin = client.admin()
    first, last = begins(admin, parts), ends(admin, parts)
    short: Spans = {part: range(first[part], last[part]) for part in parts if first[part] < last[part]}
    found: dict[Part, Message] = {}
    back = _BACK
    with closing(client.reader()) as consumer:
        while short:
            looked = {part: range(max(span.start, span.stop - back), span.stop) for part, span in short.items()}
            _read(consumer, looked, found)
            short = {
                part: span for part, span in short.items() if part not in found and looked[part].start > span.start
            }
            back *= _GROWTH
    return found


def _read(consumer: Consumer, spans: Spans, found: dict[Part, Message]) -> None:
    for messages in committed(consumer, spans):
        found.update({part_of(message): message for message in messages if message.value() is not None})


def position_of(message: Message) -> Position | None:
    """The position of a changelog's row; None of an event that was published without one."""
    text = dict(cast(Headers, message.headers() or [])).get("position")
    position = None if text is None else Position.parse(text.decode())
    return position if position is not None and position.epoch else None


def _is_foreign(message: Message, values: Values, name: str) -> bool:
    """Whether a row is of another source than `name`, which had this topic before."""
    try:
        return values.decode(message.value() or b"").provenance.source.name != name
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        return False
