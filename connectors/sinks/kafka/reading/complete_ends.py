"""Finds how far a reader has to read so that it gets every row of a checkpoint that it has seen.

Kafka answers a commit as soon as its outcome is decided, and then marks the end of the transaction in one partition
after the other. Readers of committed messages see a partition's rows only once it is marked there, so they can see the
checkpoint before they see all of its rows: for a moment, or for as long as a replica is slow, or as a transaction of
another program is open before these rows.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from confluent_kafka import Message

from changelog.connectors.sinks.kafka.client import Client
from changelog.connectors.sinks.kafka.encoding.messages import Values
from changelog.connectors.sinks.kafka.reading.offsets import Part, ends, written_ends
from changelog.connectors.sinks.kafka.reading.spans import Spans, messages_in, part_of
from changelog.connectors.sinks.kafka.reading.unchanged import is_foreign, message_position
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

WAIT_S = 60.0
"""How long readers wait for rows that are committed and cannot be read yet."""

_LOOK_S = 0.05


def complete_ends(
    client: Client, values: Values, name: str, parts: Collection[Part], stored: Callable[[], Checkpoint | None]
) -> dict[Part, int]:
    """Waits until readers of committed messages see all of the checkpoint's rows; returns each partition's end then.

    `stored` reads the visible checkpoint of the source `name`. So the ends include the rows of every checkpoint that
    was visible before the call.

    1. Asks for the ends that readers see, and for the ends of all that is written. Usually they are the same.
    2. Looks in between, whatever is open there, for rows of the source up to its checkpoint.
    3. Waits until readers see these. It does not wait for other transactions, nor for the next one of the source.

    Raises ChangelogError (CONNECTION) if readers do not see them after `WAIT_S`.
    """
    admin = client.admin()
    visible = ends(admin, parts)  # 1
    written = written_ends(admin, parts)
    hidden = {part: range(visible[part], written[part]) for part in parts if visible[part] < written[part]}
    checkpoint = stored() if hidden else None
    if checkpoint is None or checkpoint.position is None:
        return visible
    needed = _needed(client, values, name, hidden, checkpoint.position)  # 2
    deadline = time.monotonic() + WAIT_S
    while short := [part for part, end in needed.items() if visible[part] < end]:  # 3
        if time.monotonic() >= deadline:
            raise _still_open(short[0], visible[short[0]])
        time.sleep(_LOOK_S)
        visible |= ends(admin, short)
    return visible


def _needed(client: Client, values: Values, name: str, hidden: Spans, last: Position) -> Mapping[Part, int]:
    """Returns the offset after the last row of the source `name` up to `last`, for each span that has such a row."""
    needed = {}
    with closing(client.reader(open_too=True)) as consumer:
        for messages in messages_in(consumer, hidden):
            for message in messages:
                if _is_row(message, values, name, last):
                    needed[part_of(message)] = (message.offset() or 0) + 1
    return needed


def _is_row(message: Message, values: Values, name: str, last: Position) -> bool:
    """Whether a message is a row of the source `name` up to `last`.

    A tombstone does not count, because the delete before it is in the same transaction.
    """
    if message.value() is None:
        return False
    position = message_position(message)
    return position is not None and position <= last and not is_foreign(message, values, name)


def _still_open(part: Part, offset: int) -> ChangelogError:
    return ChangelogError(
        Kind.CONNECTION,
        f"reading {part[0]}, partition {part[1]}: a transaction has been open at offset {offset} for {WAIT_S:.0f} s, "
        "before rows that are committed",
        hint="try again later; `kafka-transactions.sh describe-producers` names the program that holds it open",
    )
