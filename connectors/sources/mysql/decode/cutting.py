"""Divides the stream of events into blocks that end where a transaction ends."""

from collections.abc import Callable, Iterator

import numpy as np

from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Event, RowsEvent, Xid
from changelog.connectors.sources.mysql.decode.usual.runs import TransactionRun

Item = Event | TransactionRun | None

BLOCK_BYTES_MAX = 1 << 20
"""A transaction that reaches this size before it ends is divided. Decoding takes some 20 times this memory, because the
rows of the changelog are much larger than those of the log.
"""

_EVENTS_MAX = 32_768
"""The most events that are decoded at once. This is a large number, because encoding a block has a fixed cost."""

_BYTES_WITHOUT_ROWS = 96
"""Roughly how many bytes of an event are not rows but its header or names. In small transactions, these are most of the
bytes.
"""

_TYPE_OFFSET = 4
_ENDS = frozenset({EventType.XID, EventType.XA_PREPARE, EventType.TRANSACTION_PAYLOAD})
_COMPRESSED = frozenset(
    {
        EventType.TRANSACTION_PAYLOAD,
        EventType.WRITE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.DELETE_ROWS_COMPRESSED_V1,
        EventType.WRITE_ROWS_COMPRESSED,
        EventType.UPDATE_ROWS_COMPRESSED,
        EventType.DELETE_ROWS_COMPRESSED,
    }
)
_OPENING = (b"BEGIN", b"XA START", b"XA END", b"SAVEPOINT", b"ROLLBACK TO")
_BETWEEN = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2, EventType.ROTATE, EventType.FORMAT_DESCRIPTION})


def is_portion(count: int, nbytes: int) -> bool:
    """Returns whether `count` events with `nbytes` bytes are certainly enough for a full `portion`."""
    return count >= _EVENTS_MAX or nbytes - _BYTES_WITHOUT_ROWS * count >= BLOCK_BYTES_MAX


def portion(events: EventBlock) -> int:
    """Returns how many of the first events to decode at once: at most `_EVENTS_MAX`.

    If the bytes that can be rows reach `BLOCK_BYTES_MAX` with fewer events, the portion ends with the event that
    reaches it.
    """
    count = min(len(events), _EVENTS_MAX)
    totals = np.cumsum(np.maximum(events.sizes[:count] - _BYTES_WITHOUT_ROWS, 0))
    return min(int(np.searchsorted(totals, BLOCK_BYTES_MAX)) + 1, count)


def cut(events: EventBlock) -> int:
    """Returns how many of the events make a block: all events up to the last one that ends a transaction.

    If no transaction ends among them, returns 0, so that the caller waits for more events. But events of
    `BLOCK_BYTES_MAX` bytes or more always make a block. It does no harm if the last event of a block is wrongly taken
    for the end of a transaction, because a transaction may also be published in parts.
    """
    for count in range(len(events), 0, -1):
        if _is_end(events[count - 1]):
            return count
    return len(events) if events.nbytes >= BLOCK_BYTES_MAX else 0


def divided(reader: EventReader, block: EventBlock, find: Callable[[int], TransactionRun | None]) -> Iterator[Item]:
    """Yields the decoded events of a block, and None wherever the caller must encode the rows so far before it goes on.

    Compressed events become larger when they are decompressed, so `portion` cannot limit how large their rows become.
    Therefore None is yielded when the decompressed rows since the last None have reached `BLOCK_BYTES_MAX` bytes.
    `find` is called with the index of an event. If it returns a run of transactions that begins with this event, the
    run is yielded instead of its events. The caller must handle each item before it asks for the next. Raises
    ChangelogError (MALFORMED).
    """
    at = total = 0
    while at < len(block):
        run = find(at) if total < BLOCK_BYTES_MAX else None
        if run is not None:
            yield run
            at = run.end
            continue
        packet, at = block[at], at + 1
        is_compressed = len(packet) > _TYPE_OFFSET and packet[_TYPE_OFFSET] in _COMPRESSED
        for event in reader.read(packet):
            if total >= BLOCK_BYTES_MAX and not isinstance(event, Xid):  # a transaction's end stays with its rows
                total = 0
                yield None
            yield event
            total += len(event.body) if is_compressed and isinstance(event, RowsEvent) else 0


def _is_end(event: bytes | memoryview) -> bool:
    kind = event[_TYPE_OFFSET] if len(event) > _TYPE_OFFSET else 0
    if kind == EventType.QUERY:
        return not any(word in bytes(event) for word in _OPENING)
    return kind in _ENDS or kind in _BETWEEN
