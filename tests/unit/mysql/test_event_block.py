"""Tests blocks of events. A block must have the events of which it was made, in whatever pieces they came."""

from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events import event_block
from changelog.connectors.sources.mysql.decode.events.event_block import GAP_BYTES, EventBlock, EventPiece
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Xid
from changelog.connectors.sources.mysql.decode.usual.headers import Headers
from tests.unit.mysql.binlog_encoder import encode
from tests.unit.mysql.reading import header

EVENTS = st.lists(st.binary(max_size=20), max_size=12)


def cut_up(events: list[bytes], random: Random) -> EventBlock:
    """Builds a block of these events from slices of several other blocks."""
    block = EventBlock.of([])
    while events:
        count = random.randint(1, len(events))
        before, after = random.randrange(3), random.randrange(3)
        whole = EventBlock.of([*[b"before"] * before, *events[:count], *[b"after"] * after])
        block, events = block + whole[before : before + count], events[count:]
    return block


@given(events=EVENTS, random=st.randoms())
def test_a_block_has_its_events_in_order(events: list[bytes], random: Random) -> None:
    block = cut_up(events, random)
    assert len(block) == len(events)
    assert list(block) == events
    assert block.sizes.tolist() == [len(event) for event in events]
    assert block.nbytes == sum(map(len, events))
    first, end = sorted(random.randrange(len(events) + 1) for _ in range(2))
    assert list(block[first:end]) == events[first:end]
    data, ends = block.joined()
    assert [bytes(data[end - len(event) : end]) for event, end in zip(events, ends.tolist(), strict=True)] == events


def test_a_large_event_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_block, "_VIEW_BYTES_MIN", 10)
    data = bytes(GAP_BYTES) + b"a large event"
    event = EventBlock([EventPiece(data, np.array([len(data)]))])[0]
    assert isinstance(event, memoryview)
    assert event.tobytes() == b"a large event"
    assert event.obj is data


def test_the_index_after_the_last_event_of_a_block_is_refused() -> None:
    with pytest.raises(IndexError):
        EventBlock.of([b"one"])[1]


@given(wrong=st.sets(st.integers(0, 19), max_size=3), byte=st.integers(0, 15), bit=st.integers(0, 7))
def test_each_wrong_checksum_is_found(wrong: set[int], byte: int, bit: int) -> None:
    """All events are first checked together. Only if this check fails, each event is checked alone."""
    events = []
    for number in range(20):
        event = bytearray(encode(Xid(header=header(EventType.XID, end_log_pos=number + 4), number=number)))
        if number in wrong:
            event[-1 - byte % 12] ^= 1 << bit
        events.append(bytes(event))
    headers = Headers.of(EventBlock.of(events), has_checksums=True)
    assert (headers.types == 0).nonzero()[0].tolist() == sorted(wrong)
    assert crc32(events[0][:-4]) == int.from_bytes(events[0][-4:], "little") or 0 in wrong
