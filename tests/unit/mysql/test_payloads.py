"""Tests how compressed transactions are read. A reader must return their events, and refuse malformed transactions."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Event, Heartbeat
from tests.unit.mysql.binlog_encoder import encode, packet, payload, payload_of, sized
from tests.unit.mysql.random_events import events
from tests.unit.mysql.reading import header, read, refusal

inner_events = events.filter(lambda event: not isinstance(event, Heartbeat))


@given(inner=st.lists(inner_events, max_size=4), end_log_pos=st.integers(0, 2**32 - 1))
def test_a_compressed_transaction_gives_its_events(inner: Sequence[Event], end_log_pos: int) -> None:
    outer = header(EventType.TRANSACTION_PAYLOAD, end_log_pos=end_log_pos)
    content = payload(outer, [encode(event, checksum=False) for event in inner])
    expected = [sized(event, checksum=False) for event in inner]
    if any(event.header.type == EventType.HEARTBEAT and event.header.end_log_pos != end_log_pos for event in inner):
        return  # no server puts heartbeats into transactions
    assert read(content) == [
        replace(event, header=event.header._replace(end_log_pos=end_log_pos)) for event in expected
    ]


XID = packet(header(EventType.XID), bytes(8), checksum=False)
PAYLOAD = header(EventType.TRANSACTION_PAYLOAD)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (payload_of(PAYLOAD, XID[:-1]), "only 7 of 8 bytes of an event"),
        (payload_of(PAYLOAD, XID + b"x"), "only 1 of 19 bytes of an event"),
        (payload_of(PAYLOAD, XID[:9] + bytes(4) + XID[13:]), "an event of 0 bytes"),
        (payload_of(PAYLOAD, XID[:4] + b"\x28" + XID[5:]), "type TRANSACTION_PAYLOAD in a compressed"),
        (payload_of(PAYLOAD, XID[:4] + b"\x0f" + XID[5:]), "type FORMAT_DESCRIPTION in a compressed"),
        (payload(PAYLOAD, [XID])[:-5], "an event of"),
        (packet(PAYLOAD, b"\1\1\1\2\1\0\3\1\1\0?"), "bytes that zstd cannot decompress"),
        (packet(PAYLOAD, b"\1\1\1\2\1\1\3\1\1\0?"), "compression is not known"),
        (packet(PAYLOAD, b"\1\1\1\2\1\0\0?"), "compression is not known"),
        (packet(PAYLOAD, b"\1\1\2\2\1\0\3\1\1\0?"), "whose size field differs"),
        (packet(PAYLOAD, b"\1\2\1\1\0"), "extra bytes after a field"),
        (packet(PAYLOAD, b"\1\1\1"), "too few bytes for a field: 1 needed, 0 left"),
    ],
)
def test_a_compressed_transaction_that_no_server_writes_is_refused(content: bytes, text: str) -> None:
    assert text in refusal(content)


def test_a_compressed_transaction_with_a_wrong_size_is_refused() -> None:
    content = payload(PAYLOAD, [XID, XID])[:-4]
    at = content.index(b"\3\1\x36") + 2
    for size, text in (
        (0x35, "only 7 of 8 bytes of an event"),
        (0x1B, "a different uncompressed size than it claims"),
        (0x37, "a different uncompressed size"),
    ):
        changed = content[:at] + bytes([size]) + content[at + 1 :]
        assert text in refusal(packet(PAYLOAD, changed[19:]))
