"""Reads single events of a binary log, with a reader that has already read a format description."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from changelog.connectors.sources.mysql.decode.events.event_reader import EventReader
from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Event, FormatDescription
from changelog.connectors.sources.mysql.decode.events.header import Header
from changelog.envelope.errors import ChangelogError, Kind
from tests.unit.mysql.binlog_encoder import encode
from tests.unit.mysql.random_events import HEADER_SIZES


def header(kind: int, *, flags: int = 0, end_log_pos: int = 0) -> Header:
    return Header(timestamp_s=7, type=kind, server_id=1, size=0, end_log_pos=end_log_pos, flags=flags)


def format_description(*, has_checksums: bool = True) -> FormatDescription:
    return FormatDescription(
        header=header(EventType.FORMAT_DESCRIPTION),
        server_version="8.0.15",
        created_s=0,
        has_checksums=has_checksums,
        header_sizes=HEADER_SIZES,
    )


def reader(*, has_checksums: bool = True) -> EventReader:
    """Returns a reader that has read a format description."""
    prepared = EventReader()
    assert list(prepared.read(encode(format_description(has_checksums=has_checksums))))
    return prepared


def read(content: bytes, *, has_checksums: bool = True) -> Sequence[Event]:
    return list(reader(has_checksums=has_checksums).read(content))


def refusal(content: bytes, *, has_checksums: bool = True) -> str:
    with pytest.raises(ChangelogError) as caught:
        read(content, has_checksums=has_checksums)
    assert caught.value.kind is Kind.MALFORMED
    assert "byte" in caught.value.message
    return caught.value.message


_Result = TypeVar("_Result")


def attempt(decode: Callable[[], _Result]) -> _Result | None:
    """Returns what `decode` returns, or None if it refuses the bytes as malformed. Its error must then name a byte."""
    try:
        return decode()
    except ChangelogError as error:
        if error.kind is not Kind.MALFORMED or "(byte " not in error.message:
            raise
        return None
