"""Tests how a block of events is divided into portions. A portion has a limited number of events and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.cutting import BLOCK_BYTES_MAX, divided, portion
from changelog.connectors.sources.mysql.decode.events.event_block import EventBlock
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Operation, RowsEvent, Xid
from tests.unit.mysql.binlog_encoder import encode, payload
from tests.unit.mysql.reading import format_description, header

LARGE = bytes(BLOCK_BYTES_MAX // 3)


@given(sizes=st.lists(st.sampled_from([b"x" * 20, LARGE]), max_size=12))
def test_a_portion_exceeds_the_limit_by_less_than_its_last_event(sizes: list[bytes]) -> None:
    count = portion(EventBlock.of(sizes))
    assert (count == 0) == (not sizes)
    assert sum(map(large, sizes[: max(count - 1, 0)])) < BLOCK_BYTES_MAX
    assert count == len(sizes) or sum(map(large, sizes[:count])) >= BLOCK_BYTES_MAX


def large(event: bytes) -> int:
    """Returns how many bytes of the event count towards the limit. The first 96 bytes do not: they stand for its header
    and names. So a small event does not count at all.
    """
    return len(event) - 96 if event is LARGE else 0


def test_a_block_of_many_small_events_is_divided() -> None:
    events = EventBlock.of([b"x"] * 100_000)
    assert 0 < portion(events) < len(events)


def rows(kind: EventType) -> RowsEvent:
    return RowsEvent(
        header=header(kind),
        table_id=1,
        operation=Operation.INSERT,
        flags=1,
        width=1,
        before=None,
        after=b"\x01",
        partial=False,
        body=bytes(BLOCK_BYTES_MAX // 20 + 1),
        offset=0,
    )


IN_A_PAYLOAD = payload(header(EventType.TRANSACTION_PAYLOAD), [encode(rows(EventType.WRITE_ROWS), checksum=False)])


@pytest.mark.parametrize(
    "event", [IN_A_PAYLOAD, encode(rows(EventType.WRITE_ROWS_COMPRESSED_V1))], ids=["MySQL", "MariaDB"]
)
def test_a_block_of_small_compressed_events_is_divided(event: bytes) -> None:
    block = EventBlock.of([encode(format_description()), *[event] * 100])
    assert portion(block) == len(block)
    parts = [0]
    for item in divided(EventReader(), block, lambda _: None):
        if item is None:
            parts.append(0)
        elif isinstance(item, RowsEvent):
            parts[-1] += len(item.body)
    assert sum(parts) == 100 * (BLOCK_BYTES_MAX // 20 + 1)
    assert max(parts) < BLOCK_BYTES_MAX + BLOCK_BYTES_MAX // 20 + 1


def test_a_block_is_not_divided_just_before_the_end_of_a_transaction() -> None:
    xid = encode(Xid(header=header(EventType.XID), number=1))
    compressed = encode(rows(EventType.WRITE_ROWS_COMPRESSED_V1))
    block = EventBlock.of([encode(format_description()), *[compressed] * 20, xid, xid])
    _, *items = divided(EventReader(), block, lambda _: None)
    assert [type(item) for item in items] == [*[RowsEvent] * 20, Xid, Xid]
