"""Tests the decoder of events. It must read back random events, and refuse events with too few, too many or wrong
bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    Event,
    FormatDescription,
    Other,
    Rotate,
    StatementContext,
    Unsupported,
)
from changelog.envelope.errors import ChangelogError
from tests.unit.mysql.binlog_encoder import compressed, encode, packed, packet, sized
from tests.unit.mysql.random_events import closed_events, events, format_descriptions
from tests.unit.mysql.reading import format_description, header, read, refusal


@given(event=events, has_checksums=st.booleans())
def test_every_event_is_read_back(event: Event, has_checksums: bool) -> None:
    content = encode(event, checksum=has_checksums)
    assert read(content, has_checksums=has_checksums) == [sized(event, checksum=has_checksums)]
    assert read(memoryview(content), has_checksums=has_checksums) == [sized(event, checksum=has_checksums)]  # type: ignore[arg-type]


@given(event=format_descriptions)
def test_a_format_description_says_whether_other_events_have_checksums(event: FormatDescription) -> None:
    prepared = EventReader()
    assert list(prepared.read(encode(event))) == [sized(event)]
    rotate = Rotate(header=header(EventType.ROTATE), file="binlog.000002", position=4)
    assert list(prepared.read(encode(rotate, checksum=event.has_checksums))) == [
        sized(rotate, checksum=event.has_checksums)
    ]


@given(event=events, missing=st.integers(1, 30))
def test_a_packet_that_lacks_its_last_bytes_is_refused(event: Event, missing: int) -> None:
    content = encode(event)
    assert "byte" in refusal(content[:-missing])


@given(event=closed_events)
def test_an_event_whose_content_lacks_its_last_bytes_is_refused(event: Event) -> None:
    content = encode(event, checksum=False)[19:]
    for length in range(len(content)):
        if event.header.type != EventType.GTID_LIST or any(content[length:]):
            refusal(packet(event.header, content[:length]))


@given(event=closed_events, more=st.binary(min_size=1, max_size=4))
def test_an_event_with_too_many_bytes_is_refused(event: Event, more: bytes) -> None:
    if event.header.type != EventType.GTID_LIST or any(more):
        refusal(packet(event.header, encode(event, checksum=False)[19:] + more))


@given(event=events, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_an_event_with_a_wrong_bit_is_refused(event: Event, at: int, bit: int) -> None:
    content = bytearray(encode(event))
    content[at % len(content)] ^= 1 << bit
    refusal(bytes(content))


def test_the_error_for_a_wrong_checksum_names_the_place_of_the_event() -> None:
    content = encode(Rotate(header=header(EventType.ROTATE, end_log_pos=1000), file="binlog.000002", position=4))
    message = refusal(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"at offset {1000 - len(content)} of the type ROTATE" in message


def test_the_checksum_ignores_the_flag_that_the_file_is_in_use() -> None:
    content = bytearray(encode(format_description()))
    content[17] |= 1
    [event] = EventReader().read(bytes(content))
    assert isinstance(event, FormatDescription)
    assert event.header.flags == 1


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_rotation_is_read_before_the_format_description(has_checksum: bool) -> None:
    rotate = Rotate(header=header(EventType.ROTATE, flags=0x20), file="binlog.000002", position=4)
    assert list(EventReader().read(encode(rotate, checksum=has_checksum))) == [sized(rotate, checksum=has_checksum)]
    assert rotate.header.artificial


def test_other_events_are_refused_before_the_format_description() -> None:
    with pytest.raises(ChangelogError, match="type XID before the format description"):
        EventReader().read(packet(header(EventType.XID), bytes(8)))


def test_an_unknown_event_is_refused_unless_it_may_be_ignored() -> None:
    assert "unknown type 99" in refusal(packet(header(99), b"?"))
    [event] = read(packet(header(99, flags=0x80), b"?"))
    assert isinstance(event, Other)
    assert event.name == "99"


STATEMENT = b"\0" * 8 + b"\1" + bytes(4) + b"d\0"
COMPRESSED = compressed(b"SELECT 1")


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        (EventType.QUERY, STATEMENT[:-1] + b"x", "a name without a zero byte after it (byte 33"),
        (EventType.QUERY, b"\0" * 8 + b"\1" + bytes(4) + b"\xff\0", "a name that is not UTF-8 (byte 32"),
        (EventType.QUERY, bytes(11) + b"\2\0\1\0", "too few bytes for a field: 8 needed, 1 left (byte 33"),
        (EventType.QUERY_COMPRESSED, STATEMENT + b"\x11\1?", "a compressed record that begins with 0x11 (byte 34"),
        (EventType.QUERY_COMPRESSED, STATEMENT + b"\x81\1?!", "a compressed record that is not a zlib stream (byte 34"),
        (EventType.QUERY_COMPRESSED, STATEMENT + COMPRESSED[:-1], "a compressed record that does not have 8 bytes"),
        (EventType.QUERY_COMPRESSED, STATEMENT + COMPRESSED + b"x", "a compressed record that does not have 8 bytes"),
        (EventType.QUERY_COMPRESSED, STATEMENT + b"\x81\7" + COMPRESSED[2:], "that does not have 7 bytes"),
        (EventType.QUERY_COMPRESSED, STATEMENT + b"\x81\x09" + COMPRESSED[2:], "that does not have 9 bytes"),
        (EventType.QUERY_COMPRESSED, STATEMENT + b"\x84\x40\0\0\1", "a compressed record of 1073741825 bytes"),
        (EventType.WRITE_ROWS, bytes(8) + b"\1\0", "an invalid size of extra data, 1 (byte 27"),
        (EventType.WRITE_ROWS_V1, bytes(8) + b"\xfb", "a length that begins with 0xfb (byte 27"),
        (EventType.XA_PREPARE, b"\0" * 5 + b"\x41\0\0\0" + bytes(4), "an XA id of 65 and 0 bytes (byte 24"),
        (EventType.GTID, bytes(25), "the transaction number 0 (byte 36"),
        (EventType.GTID, bytes(17) + b"\1" + bytes(7) + b"\1", "the unknown logical clock 1 (byte 44"),
        (EventType.GTID_TAGGED, packed(2), "the version 2 of a serialized event, not 1 (byte 19"),
        (EventType.GTID_TAGGED, packed(1) + packed(4) + packed(0), "a tagged GTID of 3 bytes whose size field says 4"),
        (EventType.GTID_TAGGED, packed(1) + packed(3) + packed(13), "an unknown field that must not be ignored"),
        (EventType.GTID_TAGGED, packed(1) + packed(3) + packed(0), "a tagged GTID without all necessary fields"),
        (EventType.PREVIOUS_GTIDS, bytes(7), "a set of GTIDs of only 7 bytes"),
        (EventType.HEARTBEAT_V2, b"\1\1a\0", "a heartbeat without a file or a position"),
        (EventType.MARIADB_GTID, bytes(13) + b"\x06" + bytes(8), "the flags 0x6 of a GTID (byte 32"),
        (EventType.MARIADB_GTID, bytes(18) + b"\1", "unknown fields (byte 33"),
        (EventType.TABLE_MAP, bytes(8) + b"\1d", "too few bytes for a field: 1 needed, 0 left"),
    ],
)
def test_an_error_names_the_problem_and_the_byte(kind: EventType, content: bytes, text: str) -> None:
    assert text in refusal(packet(header(kind), content))


FORMAT = encode(format_description())[19:-4]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\3" + FORMAT[1:], "the version 3, not 4 (byte 19"),
        (FORMAT[:2] + b"8\0" + b"9" + FORMAT[5:], "a server version with a zero byte in it (byte 21"),
        (FORMAT[:56] + b"\x14" + FORMAT[57:], "headers of 20 bytes, not 19 (byte 75"),
        (FORMAT[:70], "sizes for only 12 types of events (byte 76"),
        (FORMAT[:58] + b"\x0e" + FORMAT[59:], "14 fixed bytes in events of the type QUERY, not 13 (byte 77"),
        (FORMAT[:-1] + b"\2", "the unknown checksum algorithm 2 (byte 118"),
    ],
)
def test_a_format_that_the_decoders_do_not_know_is_refused(content: bytes, text: str) -> None:
    assert text in refusal(packet(header(EventType.FORMAT_DESCRIPTION), content))


def test_a_format_description_without_a_checksum_is_refused() -> None:
    assert "an event without a checksum" in refusal(packet(header(EventType.FORMAT_DESCRIPTION), b"\4", checksum=False))


def test_an_event_whose_header_has_a_wrong_size_is_refused() -> None:
    content = packet(header(EventType.ROTATE), bytes(9))
    assert "an event of 32 bytes whose header says 31 (byte 9" in refusal(content[:9] + b"\x1f" + content[10:])


def test_statement_events_have_names() -> None:
    for kind, name in ((EventType.RAND, "RAND"), (EventType.EXECUTE_LOAD_QUERY, "EXECUTE_LOAD_QUERY")):
        [event] = read(packet(header(kind), bytes(16)))
        assert isinstance(event, StatementContext | Unsupported)
        assert event.name == name
