"""Tests the fast decoders of frequent events. For each event, they must either return what the general decoders return,
or leave the event to the general decoders.

A reader uses the fast decoders for `bytes`, but not for a `memoryview`.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events import frequent_events
from changelog.connectors.sources.mysql.decode.events.dialect import Dialect
from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Event
from changelog.connectors.sources.mysql.decode.events.header import CHECKSUM_BYTES, Header, unpack_header
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.binlog_encoder import body, packet
from tests.unit.mysql.random_events import events
from tests.unit.mysql.reading import reader
from tests.unit.mysql.record_binlog import RECORDINGS, captured_events

BY_SERVER = {EventType.GTID: "mysql", EventType.ROWS_QUERY: "mysql"}
BY_SERVER |= dict.fromkeys((EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS), "mysql")
BY_SERVER |= dict.fromkeys((EventType.WRITE_ROWS_V1, EventType.UPDATE_ROWS_V1, EventType.DELETE_ROWS_V1), "mariadb")
BY_SERVER |= {EventType.MARIADB_GTID: "mariadb", EventType.ANNOTATE_ROWS: "mariadb"}
BY_SERVER |= {EventType.XID: "mysql", EventType.QUERY: "mysql", EventType.TABLE_MAP: "mysql"}
"""For each type of event, a recording that has such events."""

kinds = st.sampled_from(sorted(frequent_events.DECODERS))


def outcome(content: bytes | memoryview, *, has_checksums: bool) -> list[Event] | str:
    """Returns the events of a packet. If the reader refuses the packet, returns the message of the error."""
    try:
        return list(reader(has_checksums=has_checksums).read(content))
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED:
            raise
        return error.message


def assert_same(content: bytes, *, has_checksums: bool = True) -> None:
    assert outcome(content, has_checksums=has_checksums) == outcome(memoryview(content), has_checksums=has_checksums)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_both_decoders_decode_recorded_events_alike(recording: str) -> None:
    usual, general = EventReader(), EventReader()
    for content in captured_events(recording):
        assert list(usual.read(content)) == list(general.read(memoryview(content)))


@pytest.mark.parametrize(("kind", "recording"), BY_SERVER.items())
def test_the_fast_decoders_decode_most_recorded_events(kind: EventType, recording: str) -> None:
    recorded = [content for content in captured_events(recording) if content[4] == kind]
    decode = frequent_events.DECODERS[kind]
    decoded = [
        decode(content, Header._make(unpack_header(content)), len(content) - CHECKSUM_BYTES, Dialect.of(recording))
        for content in recorded
    ]
    assert len(decoded) - decoded.count(None) > len(decoded) / 2


@given(event=events, kind=kinds, has_checksums=st.booleans())
def test_both_decoders_decode_or_refuse_random_events_alike(event: Event, kind: int, has_checksums: bool) -> None:
    for header in (event.header, event.header._replace(type=kind)):
        content = packet(header, body(event), checksum=has_checksums)
        assert_same(content, has_checksums=has_checksums)
        assert_same(content[:-1], has_checksums=has_checksums)


@given(
    event=events, kind=kinds, start=st.sampled_from([b"", bytes(6), bytes(8), bytes(8) + b"\2\0"]), content=st.binary()
)
def test_both_decoders_handle_random_bytes_alike(event: Event, kind: int, start: bytes, content: bytes) -> None:
    assert_same(packet(event.header._replace(type=kind), start + content))
