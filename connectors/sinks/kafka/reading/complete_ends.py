"""Finds how far a reader must read, in each partition, to have all rows up to the changelog's checkpoint.

Kafka answers a commit as soon as the outcome is decided. After that, Kafka marks the end of the transaction in one
partition after the other. Readers of committed messages see the rows of a partition only after the end is marked there.
So a reader can see the checkpoint before it sees all rows up to that checkpoint. Usually, the rows follow a moment
later. They take longer while a replica is slow, or while another program has an open transaction at a lower offset.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from confluent_kafka import Message

from changelog.connectors.kafka.client import Client
from changelog.connectors.kafka.offsets import Part, ends, written_ends
from changelog.connectors.sinks.kafka.encoding.messages import ValueCodec, is_row
from changelog.connectors.sinks.kafka.reading.spans import Spans, messages_in, ordered_ends, part_of
from changelog.connectors.sinks.kafka.reading.unchanged import is_foreign, message_position
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position

WAIT_S = 60.0
"""How many seconds readers wait for committed rows that they do not see yet."""

_POLL_S = 0.05


def complete_ends(
    client: Client,
    values: ValueCodec,
    name: str,
    parts: Collection[Part],
    read_checkpoint: Callable[[], Checkpoint | None],
) -> dict[Part, int]:
    """Waits until readers of committed messages see all rows up to the checkpoint. Returns, for each partition, the
    offset up to which they then see the messages.

    `read_checkpoint` reads the visible checkpoint of the source `name`. A reader that reads up to the returned offsets
    has all rows of every checkpoint that was visible before the call. The function takes three steps:

    1. For each partition, it asks at which offset readers of committed messages stop, and at which offset everything
       that was written ends. Usually the two are the same.
    2. It searches between the two offsets, also in open transactions, for rows of the source up to its checkpoint.
    3. It waits until readers see these rows. It does not wait for transactions after these rows.

    Raises ChangelogError (CONNECTION) if readers still do not see the rows after `WAIT_S`.
    """
    admin = client.admin()
    visible = ordered_ends(admin, parts)  # 1
    all_ends = written_ends(admin, parts)
    hidden = {part: range(visible[part], all_ends[part]) for part in parts if visible[part] < all_ends[part]}
    checkpoint = read_checkpoint() if hidden else None
    if checkpoint is None or checkpoint.position is None:
        return visible
    needed_ends = _needed(client, values, name, hidden, checkpoint.position)  # 2
    deadline = time.monotonic() + WAIT_S
    while short := [part for part, end in needed_ends.items() if visible[part] < end]:  # 3
        if time.monotonic() >= deadline:
            raise _still_open(short[0], visible[short[0]])
        time.sleep(_POLL_S)
        visible |= ends(admin, short)
    return visible


def _needed(client: Client, values: ValueCodec, name: str, hidden: Spans, last: Position) -> Mapping[Part, int]:
    """Finds, in each span of offsets, the last row of the source `name` at or before the position `last`.

    Returns the offset after that row, by partition. Leaves out partitions whose span has no such row.
    """
    needed_ends = {}
    with closing(client.reader(open_too=True)) as consumer:
        for messages in messages_in(consumer, hidden):
            for message in messages:
                if _is_row(message, values, name, last):
                    needed_ends[part_of(message)] = (message.offset() or 0) + 1
    return needed_ends


def _is_row(message: Message, values: ValueCodec, name: str, last: Position) -> bool:
    """Returns whether a message is a row of the source `name`, at or before the position `last`.

    The tombstones after deletes can be ignored, because each is in the same transaction as its delete.
    """
    if not is_row(message):
        return False
    position = message_position(message)
    return position is not None and position <= last and not is_foreign(message, values, name)


def _still_open(part: Part, offset: int) -> ChangelogError:
    return ChangelogError(
        Kind.CONNECTION,
        f"reading topic {part[0]}, partition {part[1]}: a transaction has been open at offset {offset} for "
        f"{WAIT_S:.0f} s, before rows that are committed",
        hint="try again later; `kafka-transactions.sh describe-producers` names the program that holds it open",
    )
