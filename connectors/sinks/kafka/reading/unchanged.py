"""Checks that the topics are still the same ones as when the checkpoint was stored.

A topic that was deleted and created again has another id, and has lost its messages. If the topics have rows that are
newer than the checkpoint, an older checkpoint has overwritten a newer one. Resuming from the older checkpoint would
publish these rows again.
"""

from collections.abc import Callable, Collection, Mapping, Set
from contextlib import closing
from typing import cast

from confluent_kafka import Consumer, Message

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, begins, ends
from changelog.connectors.kafka.topic_ids import read_ids
from changelog.connectors.sinks.kafka.admin.names import positions_topic
from changelog.connectors.sinks.kafka.encoding.messages import Headers, ValueCodec, is_row, source_of
from changelog.connectors.sinks.kafka.reading.spans import Spans, messages_in, part_of
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.position import Position

CHECK_INTERVAL_S = 10.0
"""The seconds between two checks of whether a topic was deleted and created again.

A commit begins with such a check if the last check began at least this long ago. A running service notices only by this
check that a topic was replaced by a new one, because librdkafka writes to the new topic without an error.

Rows that are committed before the check notices the new topic stay in that topic. They do no harm: the service stops,
and it continues only with `changelog run --over-gap`, which reads the tables again."""

_BACK, _GROWTH = 4, 8


class TopicIds:
    """The ids of a changelog's topics. They are read again every `CHECK_INTERVAL_S` seconds.

    `ids` has each topic's id from the checkpoint. For a topic that the checkpoint does not name, `ids` has the id that
    was read first. The constructor and `check_if_due` raise ChangelogError (GAP) if a topic's id differs from its id in
    `ids`.
    """

    def __init__(
        self, client: Client, topics: Set[str], known_ids: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        self._admin, self._topics, self._clock = client.admin(), topics, clock
        self.ids = {name: known_ids[name] for name in topics if name in known_ids}
        self._next_check_at = 0.0
        self._check()

    def check_if_due(self) -> None:
        """Reads the ids again if they were last read `CHECK_INTERVAL_S` ago or earlier."""
        if self._clock() >= self._next_check_at:
            self._check()

    def _check(self) -> None:
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        ids = read_ids(self._admin, self._topics)
        for name, topic_id in self.ids.items():
            if ids.get(name, topic_id) != topic_id:
                raise ChangelogError(
                    Kind.GAP,
                    f"topic {name} was deleted and created again: the messages that it held are gone",
                    hint=OVER_GAP,
                )
        self.ids = dict(sorted({**self.ids, **ids}.items()))


def refuse_older(
    client: Client, values: ValueCodec, prefix: str, name: str, checkpoint: Checkpoint, parts: Collection[Part]
) -> None:
    """Raises ChangelogError (DIVERGED) if a row at the end of one of `parts` is newer than `checkpoint`.

    Rows and checkpoint are committed together. So a row of the source `name` is never newer than the checkpoint, unless
    an older checkpoint has overwritten the newer one. Rows of other sources, and events without a position, are
    ignored.
    """
    last = "" if checkpoint.position is None else str(checkpoint.position)
    for (topic, number), message in newest(client, parts).items():
        position = message_position(message)
        if position is None or str(position) <= last or is_foreign(message, values, name):
            continue
        raise ChangelogError(
            Kind.DIVERGED,
            f"the checkpoint in topic {positions_topic(prefix)} ends at {last or 'no position'}, but partition "
            f"{number} of topic {topic} holds a row at {position}: an older checkpoint has overwritten the newer one",
            hint=OVER_GAP,
        )


def refuse_rows(client: Client, values: ValueCodec, prefix: str, name: str, parts: Collection[Part]) -> None:
    """Raises ChangelogError (GAP) if one of `parts` ends with a row of the source `name`.

    Call this if that source has no checkpoint. Without a checkpoint, the source would begin a new changelog, in which
    rows could have lower positions than the row that is already there.
    """
    for (topic, number), message in newest(client, parts).items():
        position = message_position(message)
        if position is not None and not is_foreign(message, values, name):
            raise ChangelogError(
                Kind.GAP,
                f"the topic {positions_topic(prefix)} has no checkpoint of the source {name}, but partition {number} "
                f"of the topic {topic} holds a row at {position}",
                hint=OVER_GAP,
            )


def newest(client: Client, parts: Collection[Part]) -> dict[Part, Message]:
    """Returns the newest committed message of each partition that has one. Tombstones are ignored.

    Reads the last few offsets of all partitions at once, and older offsets only of partitions that have no message
    among these.
    """
    admin = client.admin()
    first, last = begins(admin, parts), ends(admin, parts)
    incomplete: Spans = {part: range(first[part], last[part]) for part in parts if first[part] < last[part]}
    newest_by_part: dict[Part, Message] = {}
    back = _BACK
    with closing(client.reader()) as consumer:
        while incomplete:
            tails = {part: range(max(span.start, span.stop - back), span.stop) for part, span in incomplete.items()}
            newest_by_part |= _read(consumer, tails)
            incomplete = {
                part: span
                for part, span in incomplete.items()
                if part not in newest_by_part and tails[part].start > span.start
            }
            back *= _GROWTH
    return newest_by_part


def _read(consumer: Consumer, spans: Spans) -> dict[Part, Message]:
    return {
        part_of(message): message
        for messages in messages_in(consumer, spans)
        for message in messages
        if is_row(message)
    }


def message_position(message: Message) -> Position | None:
    """Returns the position of a changelog's row.

    Returns None for an event that was published without a position, and for a message of another program. The header
    `position` of such a message can hold anything.
    """
    text = dict(cast(Headers, message.headers() or [])).get("position")
    try:
        position = Position.parse((text or b"").decode())
    except ValueError:
        return None
    return position if position.epoch else None


def is_foreign(message: Message, values: ValueCodec, name: str) -> bool:
    """Returns whether a row was published by a source other than `name`.

    Two sources may not publish to one topic at the same time (`positions.refuse_shared`), so such a row is from a
    source that no longer publishes to the topic. A value that cannot be decoded counts as a row of `name`.
    """
    source = source_of(message)
    if source is not None:
        return source != name
    try:
        return values.decode(message.value() or b"").provenance.source.name != name
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        return False
